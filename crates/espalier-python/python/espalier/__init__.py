"""Files of an Espalier file system without the kernel, mounted or not.

A `Tree` is what lies below a directory of a mount, of an image that is not mounted, or of a directory
in one. Paths are `str`, `bytes` or objects with `__fspath__`; they begin at that directory, which
`..` and links do not leave, with or without a slash in front. Paths that are given out are `str`.

Every call lets other threads run meanwhile. Errors are `OSError`, with number and path; of calls on
many files the first one is raised, unless `errors="return"` asks for a list with the errors in it.

A tree can be passed to other processes: by pickle it is opened anew there, and after `fork` with the
first call of the child. Only a tree that writes an image cannot be shared.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, NamedTuple, Optional, TextIO, TypeVar, Union, overload

from . import _espalier
from ._espalier import Entry, Stat
from ._files import open_file

__all__ = ["Changes", "Entry", "Stat", "Tree", "Watch", "Write", "format_image"]

PathLike = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
Data = Union[bytes, bytearray, memoryview]
#: A file as a whole, or a part of it: path, first byte, and how many bytes at most.
Piece = Union[PathLike, "tuple[PathLike, int, int]"]
Errors = Literal["raise", "return"]
#: The least and the most, both included; None is no bound.
Range = tuple[Optional[int], Optional[int]]

_T = TypeVar("_T")
#: What the native part takes for a `Write`.
_NewFile = tuple[
    bytes, bytes, bool, Optional[int], Optional[int], Optional[int], Optional[int], "list[tuple[bytes, bytes]]"
]
_WHOLE = 2**64 - 1
_KINDS = {"fifo": 0o01, "character": 0o02, "directory": 0o04, "block": 0o06, "file": 0o10, "link": 0o12, "socket": 0o14}


@dataclass(frozen=True)
class Write:
    """A file that is to be made or replaced.

    With `symlink` a symbolic link is made, and `content` is its target. `mode` is the low 12 bits,
    which no umask changes; without it a file gets 0666 less the umask. `mtime_ns` is the time of the
    last change, in nanoseconds since the Unix epoch. `xattrs` are extended attributes by their whole
    names, access control lists among them.
    """

    path: PathLike
    content: Data = b""
    symlink: bool = False
    mode: Optional[int] = None
    uid: Optional[int] = None
    gid: Optional[int] = None
    mtime_ns: Optional[int] = None
    xattrs: Optional[Mapping[PathLike, Data]] = None


class Changes(NamedTuple):
    """What was changed below a directory."""

    #: Of this answer, for the next question.
    position: bytes
    #: Anything may have changed; there are no paths.
    everything: bool
    #: Below the directory; one that ends with a slash stands for a directory with all below.
    paths: list[str]


class Watch:
    """A watch of a directory with everything below; `Tree.watch` begins one.

    It is an iterator that waits for changes without end. Each change is told once. `close`, which
    ends a wait of another thread too, also comes at the end of a `with` block. A watch goes on
    without its tree; an image stays locked as long. After `fork` it is the parent's.
    """

    def __init__(self, watch: _espalier.Watch) -> None:
        self._watch = watch

    @property
    def position(self) -> bytes:
        """Where the watch has come to, for a later one, which tells the last second again."""
        return self._watch.position

    def wait(self, timeout: Optional[float] = None) -> Changes:
        """Waits until something is changed, and says what; no paths after `timeout` seconds.

        Raises `RuntimeError` while another call waits, also to the handler of a signal that comes
        during the wait.
        """
        return Changes(*self._watch.wait(timeout))

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> Changes:
        while True:
            changes = self.wait()
            if changes.everything or changes.paths:
                return changes

    def close(self) -> None:
        """Ends the watch. Later waits raise `ValueError`."""
        self._watch.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def format_image(path: PathLike, size: int) -> None:
    """Makes an empty file system in a new image file (or an empty one) of `size` bytes.

    Its root directory belongs to the user of the process. `FileExistsError` if something is there.
    """
    _espalier.format_image(_path(path), size)


class Tree:
    """What lies below a directory of a mount, or of an image that is not mounted.

    `place` is a directory in a mount, an image, or IMAGE:/DIRECTORY. The other arguments concern
    images: `read_only` lets several processes read one at the same time; `memory` is that of the
    store in bytes; `wait` says how many seconds another process that has the image open is waited
    for; `as_root` gives root's rights in the image instead of those of the process.

    Several threads may use a tree. On a mount their calls come one after the other; threads that
    shall not wait for each other have a tree each.
    """

    def __init__(
        self,
        place: PathLike,
        *,
        read_only: bool = False,
        memory: int = 256 << 20,
        wait: float = 5.0,
        as_root: bool = False,
    ) -> None:
        arguments = (os.path.abspath(os.fsdecode(place)), read_only, memory, wait, as_root)
        self._begin(arguments, _espalier.Tree(*arguments))

    def _begin(self, arguments: tuple[str, bool, int, float, bool], tree: _espalier.Tree) -> None:
        self._arguments = arguments
        self._tree = tree
        # An image is made durable when it is forgotten, and at the end of the program.
        self._closing = weakref.finalize(self, _close, self._tree, os.getpid())

    @property
    def place(self) -> str:
        """Where the tree lies: an absolute path."""
        return self._arguments[0]

    def __repr__(self) -> str:
        return f"espalier.Tree({self.place!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, self._arguments

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the use of the place; an image is made durable before. Later calls fail."""
        self._closing.detach()
        self._tree.close()

    def sync(self) -> None:
        """Makes everything durable that was done so far; on a mount, by any program."""
        self._tree.sync()

    def subtree(self, path: PathLike) -> Tree:
        """A directory as a tree of its own, which the process may list and search.

        Paths begin there, whatever happens to the name of the directory, and do not leave it. In an
        image it ends when this tree is closed. A pickle has the path by which it was opened.
        """
        name = os.fsdecode(path).lstrip("/")
        below = self.place + (":/" if os.path.isfile(self.place) else "/") + name
        tree = Tree.__new__(Tree)
        tree._begin((below, *self._arguments[1:]), self._tree.subtree(_path(path)))
        return tree

    # Many files at once

    @overload
    def stat_many(self, paths: Iterable[PathLike], *, follow: bool = True) -> list[Stat]: ...

    @overload
    def stat_many(
        self, paths: Iterable[PathLike], *, follow: bool = True, errors: Errors
    ) -> list[Union[Stat, OSError]]: ...

    def stat_many(self, paths: Iterable[PathLike], *, follow: bool = True, errors: Errors = "raise") -> Any:
        """The attributes of many files, in the order in which they were asked for."""
        return _checked(self._tree.stat_many([_path(path) for path in paths], follow), errors)

    @overload
    def read_many(self, pieces: Iterable[Piece]) -> list[bytes]: ...

    @overload
    def read_many(self, pieces: Iterable[Piece], *, errors: Errors) -> list[Union[bytes, OSError]]: ...

    def read_many(self, pieces: Iterable[Piece], *, errors: Errors = "raise") -> Any:
        """The content of many files, or parts of them, in the order in which they were asked for.

        They are read in the order in which it is fastest. Each is of an instant of its own.
        """
        return _checked(self._tree.read_many([_piece(piece) for piece in pieces]), errors)

    @overload
    def write_many(
        self,
        files: Iterable[Union[Write, tuple[PathLike, Data]]],
        *,
        replace: bool = True,
        parents: bool = True,
    ) -> list[None]: ...

    @overload
    def write_many(
        self,
        files: Iterable[Union[Write, tuple[PathLike, Data]]],
        *,
        replace: bool = True,
        parents: bool = True,
        errors: Errors,
    ) -> list[Union[None, OSError]]: ...

    def write_many(
        self,
        files: Iterable[Union[Write, tuple[PathLike, Data]]],
        *,
        replace: bool = True,
        parents: bool = True,
        errors: Errors = "raise",
    ) -> Any:
        """Makes many files: `Write` or path and content of each. What has a name is replaced.

        Files of one directory are written in batches that take effect as a whole: each is seen with
        all of its content and attributes, extended ones too, or not at all, also after a crash. Files
        beside one that fails are written all the same. Missing directories are made, unless `parents`
        is false.
        """
        directories = 0o777 if parents else None
        return _checked(self._tree.write_many([_file(file) for file in files], replace, directories), errors)

    def walk(
        self,
        path: PathLike = ".",
        *,
        pattern: Optional[PathLike] = None,
        kinds: Sequence[str] = (),
        size: Optional[Range] = None,
        mtime_ns: Optional[Range] = None,
    ) -> Iterator[Entry]:
        """Everything below a directory with attributes, of one instant, in the order of keys.

        The entries of a directory come by name, then what lies below its subdirectories. Links are
        not followed. `pattern` is one for names, or with a slash for paths: `*`, `?`, `[a-z]`, `**`.
        `kinds` are of "file", "directory", "link", "fifo", "socket", "character", "block". `size` and
        `mtime_ns` are the least and the most, both included, in bytes and in nanoseconds since the
        Unix epoch; None is no bound. Directories that the caller may not enter are given in any case.
        """
        return self._tree.walk(_path(path), _filter(pattern, kinds, size, mtime_ns))

    def scandir(
        self,
        path: PathLike = ".",
        *,
        pattern: Optional[PathLike] = None,
        kinds: Sequence[str] = (),
        size: Optional[Range] = None,
        mtime_ns: Optional[Range] = None,
    ) -> list[Entry]:
        """The entries of a directory with attributes, of one instant, by name.

        What is left out is said as for `walk`.
        """
        return self._tree.scandir(_path(path), _filter(pattern, kinds, size, mtime_ns))

    # One file

    def stat(self, path: PathLike, *, follow: bool = True) -> Stat:
        """The attributes of a file."""
        return self._tree.stat(_path(path), follow)

    def exists(self, path: PathLike) -> bool:
        """Whether a path leads to something that the caller may see."""
        try:
            self.stat(path)
        except OSError:
            return False
        return True

    def read(self, path: PathLike) -> bytes:
        """The whole content of a file."""
        return self.read_many([path])[0]

    def write(self, path: PathLike, content: Data, *, parents: bool = False) -> None:
        """Makes a file, or replaces it: it is seen with all of its content or not at all."""
        self.write_many([(path, content)], parents=parents)

    @overload
    def open(self, path: PathLike, mode: Literal["rb", "wb", "ab", "xb", "rb+", "r+b", "wb+", "w+b"]) -> BinaryIO: ...

    @overload
    def open(
        self,
        path: PathLike,
        mode: str = "r",
        buffering: int = -1,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
    ) -> Union[BinaryIO, TextIO]: ...

    def open(
        self,
        path: PathLike,
        mode: str = "r",
        buffering: int = -1,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
    ) -> Any:
        """Opens a file, as the built-in `open` does. It stays the same file if it is renamed."""
        return open_file(self._tree, _path(path), mode, buffering, encoding, errors, newline)

    def readlink(self, path: PathLike) -> str:
        """The target of a symbolic link."""
        return self._tree.readlink(_path(path))

    def symlink(self, target: PathLike, path: PathLike) -> None:
        """Makes a symbolic link to `target`."""
        self._tree.symlink(_path(target), _path(path))

    def link(self, old: PathLike, new: PathLike) -> None:
        """Gives the file at `old` another name."""
        self._tree.link(_path(old), _path(new))

    def unlink(self, path: PathLike) -> None:
        """Removes a name of a file."""
        self._tree.unlink(_path(path))

    def mkdir(self, path: PathLike, mode: int = 0o777, *, parents: bool = False) -> None:
        """Makes a directory; with `parents` also those above, and then it may be there.

        Those above get the same mode.
        """
        self._tree.mkdir(_path(path), mode, parents)

    def rmdir(self, path: PathLike) -> None:
        """Removes an empty directory."""
        self._tree.rmdir(_path(path))

    def rename(
        self, old: PathLike, new: PathLike, how: Literal["replace", "keep", "exchange"] = "replace"
    ) -> None:
        """Moves what is at `old` to `new`.

        What is there is replaced; with "keep" the call fails, with "exchange" the two change places.
        """
        self._tree.rename(_path(old), _path(new), how)

    def chmod(self, path: PathLike, mode: int) -> None:
        """Sets the mode: the low 12 bits."""
        self._tree.chmod(_path(path), mode)

    def chown(
        self, path: PathLike, uid: Optional[int] = None, gid: Optional[int] = None, *, follow: bool = True
    ) -> None:
        """Sets owner and group; None leaves as it is."""
        self._tree.chown(_path(path), uid, gid, follow)

    def utime(self, path: PathLike, ns: Optional[tuple[int, int]] = None, *, follow: bool = True) -> None:
        """Sets the times of the last read and of the last change, in nanoseconds; None is now."""
        self._tree.utime(_path(path), ns, follow)

    def truncate(self, path: PathLike, size: int) -> None:
        """Gives a file `size` bytes."""
        self._tree.truncate(_path(path), size)

    def listxattr(self, path: PathLike, *, follow: bool = True) -> list[str]:
        """The names of the extended attributes of a file, access control lists among them."""
        return self._tree.listxattr(_path(path), follow)

    def getxattr(self, path: PathLike, name: PathLike, *, follow: bool = True) -> bytes:
        """The value of an extended attribute."""
        return self._tree.getxattr(_path(path), _path(name), follow)

    def setxattr(
        self,
        path: PathLike,
        name: PathLike,
        value: Data,
        how: Literal["set", "create", "replace"] = "set",
        *,
        follow: bool = True,
    ) -> None:
        """Sets an extended attribute, which with "create" must be missing, with "replace" be there."""
        self._tree.setxattr(_path(path), _path(name), bytes(value), how, follow)

    def removexattr(self, path: PathLike, name: PathLike, *, follow: bool = True) -> None:
        """Removes an extended attribute."""
        self._tree.removexattr(_path(path), _path(name), follow)

    # Whole trees

    def clone(self, old: PathLike, new: PathLike) -> None:
        """Makes `new` a clone of what is at `old` with everything below, in one step.

        Nothing is copied. `PermissionError` if the caller is not root, and not all of it is its own.
        """
        self._tree.clone(_path(old), _path(new))

    def remove_tree(self, path: PathLike) -> None:
        """Removes a directory with everything below, in one step."""
        self._tree.remove_tree(_path(path))

    def chown_tree(self, path: PathLike, uid: Optional[int] = None, gid: Optional[int] = None) -> None:
        """Sets owner and group of what is at a path and of everything below, in one step.

        None leaves as it is. `PermissionError` unless the caller is root.
        """
        self._tree.chown_tree(_path(path), uid, gid)

    def chmod_tree(self, path: PathLike, *, clear: int = 0, add: int = 0, execute: int = 0) -> None:
        """Changes the modes of what is at a path and of everything below but links, in one step.

        Each entry gets its mode without `clear`, and with `add`; directories, and files that have an
        execute bit, also get `execute`, as for the X of chmod. `clear=0o022, add=0o600, execute=0o100`
        is `chmod -R u+rwX,go-w`; with `clear=0o7777` modes are set.
        """
        self._tree.chmod_tree(_path(path), clear, add, execute)

    def diff(self, old: PathLike, new: PathLike) -> Iterator[tuple[str, str]]:
        """What differs between two directories: "added", "removed" or "changed", and the path.

        The older one may lie in a snapshot (`.snapshots/NAME`). The time grows with what differs, not
        with what there is. `PermissionError` if the caller is not root, and not all is its own.
        """
        return self._tree.diff(_path(old), _path(new))

    def changes(self, path: PathLike = ".", position: bytes = b"") -> Changes:
        """What was changed below a directory since `position`, which is that of an earlier answer.

        The answer may tell too much, never too little: changes of the last second may be told again,
        and a position that is not known any more is answered with "everything", like the first two
        questions about a directory.
        """
        return Changes(*self._tree.changes(_path(path), position))

    def watch(
        self, path: PathLike = ".", position: bytes = b"", *, since: Optional[PathLike] = None
    ) -> Watch:
        """Watches a directory with everything below; each change is told once.

        It begins at `position`, which is that of an earlier answer or of a watch that has ended; an
        empty one stands for now, and is answered with "everything" first. With `since`, a snapshot
        (`.snapshots/NAME`), what differs from it is told first. A position is good in any process as
        long as the server of the mount runs; that of an image as long as this tree has it open.
        """
        if since is None:
            return Watch(self._tree.watch(_path(path), position))
        if position:
            raise ValueError("a watch begins at a position or at a snapshot, not at both")
        return Watch(self._tree.watch_since(_path(path), _path(since)))


def _close(tree: _espalier.Tree, process: int) -> None:
    # What a process has opened it closes; a child of fork has nothing to do with it.
    if os.getpid() == process:
        tree.close()


def _reopen(place: str, read_only: bool, memory: int, wait: float, as_root: bool) -> Tree:
    return Tree(place, read_only=read_only, memory=memory, wait=wait, as_root=as_root)


def _path(path: PathLike) -> bytes:
    return os.fsencode(path)


def _filter(
    pattern: Optional[PathLike], kinds: Sequence[str], size: Optional[Range], mtime_ns: Optional[Range]
) -> tuple[Optional[bytes], int, Optional[tuple[int, int]], Optional[tuple[int, int]]]:
    def bounds(limits: Optional[Range], least: int, most: int) -> Optional[tuple[int, int]]:
        if limits is None:
            return None
        low, high = limits
        return (least if low is None else low, most if high is None else high)

    bits = sum({1 << _KINDS[kind] for kind in kinds})
    name = None if pattern is None else _path(pattern)
    return name, bits, bounds(size, 0, 2**64 - 1), bounds(mtime_ns, -(2**63), 2**63 - 1)


def _piece(piece: Piece) -> tuple[bytes, int, int]:
    if isinstance(piece, tuple):
        path, offset, length = piece
        return _path(path), offset, length
    return _path(piece), 0, _WHOLE


def _file(
    file: Union[Write, tuple[PathLike, Data]],
) -> _NewFile:
    if isinstance(file, tuple):
        file = Write(*file)
    xattrs = [(_path(name), bytes(value)) for name, value in (file.xattrs or {}).items()]
    path, content = _path(file.path), bytes(file.content)
    return path, content, file.symlink, file.mode, file.uid, file.gid, file.mtime_ns, xattrs


def _checked(results: list[Union[_T, OSError]], errors: Errors) -> list[Union[_T, OSError]]:
    if errors not in ("raise", "return"):
        raise ValueError(f"errors is 'raise' or 'return', not {errors!r}")
    if errors == "raise":
        for result in results:
            if isinstance(result, OSError):
                raise result
    return results
