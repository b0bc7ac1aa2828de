"""`espalier://` for fsspec: files of an Espalier file system, mounted or not, without the kernel.

    fs = fsspec.filesystem("espalier", place="/mnt/work")      # or "disk.img", or "disk.img:/data"
    fsspec.open("espalier://data/a", place="/mnt/work")        # paths begin at the place
    fsspec.open("espalier:///mnt/work/data/a")                 # without a place: paths of the system

Without a place the mount in which a path lies is found by the path; IMAGE:/PATH is a path in an image
that is not mounted. What concerns many files (`cat`, `cat_ranges`, `pipe`, `find`) is asked for with
one call, or a few for all of them; only what links lead to is read link by link. Whole directories
are copied and removed in one step where the rights allow it. Symbolic links to directories are not
followed by `find`.
"""

from __future__ import annotations

import io
import os
import secrets
import threading
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any, Optional, Union

from fsspec.spec import AbstractFileSystem  # type: ignore[import-untyped]
from fsspec.utils import stringify_path, tokenize  # type: ignore[import-untyped]

from . import Entry, Stat, Tree

__all__ = ["EspalierFileSystem"]

_WHOLE = 2**64 - 1
#: A larger file is copied without reading it.
_COPY_BYTES = 1 << 20
_BLOCK_BYTES = 4 << 20


class EspalierFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """A tree of files as fsspec has them.

    `place` and the other arguments are those of `espalier.Tree`. Directories that are missing are made
    when a file is made in them; without `auto_mkdir` that is an error.
    """

    protocol = "espalier"
    root_marker = "/"

    def __init__(
        self,
        place: Optional[str] = None,
        auto_mkdir: bool = True,
        read_only: bool = False,
        memory: int = 256 << 20,
        wait: float = 5.0,
        as_root: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.auto_mkdir = auto_mkdir
        self._options: dict[str, Any] = {"read_only": read_only, "memory": memory, "wait": wait, "as_root": as_root}
        self._lock = threading.Lock()
        # By where its paths begin.
        self._trees: dict[str, Tree] = {}
        self._place = place
        if place is not None:
            self._trees[""] = Tree(place, **self._options)

    @property
    def fsid(self) -> str:
        return "espalier" if self._place is None else f"espalier:{os.path.abspath(self._place)}"

    def close(self) -> None:
        """Ends the use of all places; images are made durable before."""
        with self._lock:
            trees, self._trees = self._trees, {}
        for tree in trees.values():
            tree.close()
        self.clear_instance_cache()

    # Where paths lead

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path).removeprefix("espalier://")
        return "/" + path.strip("/")

    @classmethod
    def _parent(cls, path: Any) -> str:
        return cls._strip_protocol(path).rsplit("/", 1)[0] or "/"

    def unstrip_protocol(self, name: str) -> str:
        return f"espalier://{self._strip_protocol(name)}"

    def _at(self, path: Any) -> tuple[Tree, str]:
        """The tree in which a path lies, and the path in it."""
        path = self._strip_protocol(path)
        top = self._top_of(path)
        return self._trees[top], path[len(top) :] or "/"

    def _top_of(self, path: str) -> str:
        with self._lock:
            if self._place is not None:
                if "" not in self._trees:
                    raise ValueError("the file system was closed")
                return ""
            known = [top for top in self._trees if path == top or path.startswith(top + "/")]
            if known:
                return max(known, key=len)
            top, place = _locate(path)
            if top not in self._trees:
                self._trees[top] = Tree(place, **self._options)
            return top

    def _each(self, paths: Iterable[str]) -> dict[str, list[tuple[int, str]]]:
        """The places of paths among the others, and the paths in their trees, by tree."""
        by_tree: dict[str, list[tuple[int, str]]] = {}
        for at, path in enumerate(paths):
            path = self._strip_protocol(path)
            top = self._top_of(path)
            by_tree.setdefault(top, []).append((at, path[len(top) :] or "/"))
        return by_tree

    # What is there

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        tree, inside = self._at(path)
        found = _info(self._strip_protocol(path), tree.stat(inside, follow=False))
        if found["islink"]:
            self._follow(tree, [(found, inside)])
        return found

    def _follow(self, tree: Tree, links: list[tuple[dict[str, Any], str]]) -> None:
        """Gives links the type and the size of what they lead to."""
        leads_to = tree.stat_many([inside for _, inside in links], errors="return")
        for (found, inside), stat in zip(links, leads_to):
            found["destination"] = tree.readlink(inside)
            if isinstance(stat, Stat):
                found.update(_info(found["name"], stat), islink=True)

    def _entries(self, path: str, entries: Iterable[Entry]) -> list[dict[str, Any]]:
        tree, inside = self._at(path)
        above, base = path.rstrip("/"), inside.rstrip("/")
        found, links = [], []
        for entry in entries:
            info = _info(f"{above}/{entry.path}", entry.stat)
            found.append(info)
            if info["islink"]:
                links.append((info, f"{base}/{entry.path}"))
        if links:
            self._follow(tree, links)
        return found

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        tree, inside = self._at(path)
        try:
            found = self._entries(path, tree.scandir(inside))
        except NotADirectoryError:
            found = [self.info(path)]
        return found if detail else [info["name"] for info in found]

    def find(
        self,
        path: str,
        maxdepth: Optional[int] = None,
        withdirs: bool = False,
        detail: bool = False,
        **kwargs: Any,
    ) -> Any:
        if maxdepth is not None:
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **kwargs)
        path = self._strip_protocol(path)
        tree, inside = self._at(path)
        try:
            found = self._entries(path, tree.walk(inside))
            if withdirs:
                found.append(self.info(path))
        except NotADirectoryError:
            found = [self.info(path)]
        except FileNotFoundError:
            found = []
        named = {info["name"]: info for info in found if withdirs or info["type"] != "directory"}
        names = sorted(named)
        return {name: named[name] for name in names} if detail else names

    def exists(self, path: str, **kwargs: Any) -> bool:
        try:
            tree, inside = self._at(path)
            return tree.exists(inside)
        except OSError:
            return False

    def lexists(self, path: str, **kwargs: Any) -> bool:
        try:
            tree, inside = self._at(path)
            tree.stat(inside, follow=False)
        except OSError:
            return False
        return True

    def islink(self, path: str) -> bool:
        try:
            tree, inside = self._at(path)
            return tree.stat(inside, follow=False).is_symlink()
        except OSError:
            return False

    def created(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path)["created"], tz=timezone.utc)

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=timezone.utc)

    def ukey(self, path: str) -> str:
        tree, inside = self._at(path)
        stat = tree.stat(inside)
        return str(tokenize(stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))

    # Directories and names

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        tree, inside = self._at(path)
        if create_parents and inside.count("/") > 1:
            tree.mkdir(inside.rsplit("/", 1)[0], parents=True)
        tree.mkdir(inside)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        if not exist_ok:
            self.mkdir(path)
            return
        tree, inside = self._at(path)
        tree.mkdir(inside, parents=True)

    def rmdir(self, path: str) -> None:
        tree, inside = self._at(path)
        tree.rmdir(inside)

    def rm_file(self, path: str) -> None:
        tree, inside = self._at(path)
        tree.unlink(inside)

    def _rm(self, path: str) -> None:
        if self.isdir(path) and not self.islink(path):
            self.rmdir(path)
        else:
            self.rm_file(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: Optional[int] = None) -> None:
        for one in path if isinstance(path, list) else [path]:
            if maxdepth is not None or _is_pattern(one):
                for found in reversed(self.expand_path(one, recursive=recursive, maxdepth=maxdepth)):
                    self._rm(found)
            elif self.islink(one) or not self.isdir(one):
                self.rm_file(one)
            elif recursive:
                self._rm_tree(one)
            else:
                raise IsADirectoryError(f"{one} is a directory; remove it with recursive=True")

    def _rm_tree(self, path: str) -> None:
        tree, inside = self._at(path)
        try:
            tree.remove_tree(inside)
        except PermissionError:
            # Not all of it is the caller's: as far as the rights go, name by name.
            for found in reversed(sorted(self.find(path, withdirs=True))):
                self._rm(found)

    def symlink(self, src: str, dst: str, **kwargs: Any) -> None:
        tree, inside = self._at(dst)
        tree.symlink(self._at(src)[1], inside)

    def link(self, src: str, dst: str, **kwargs: Any) -> None:
        (tree, old), (other, new) = self._at(src), self._at(dst)
        if tree is not other:
            raise OSError(18, "a file has all its names in one file system", src)
        tree.link(old, new)

    def chmod(self, path: str, mode: int) -> None:
        tree, inside = self._at(path)
        tree.chmod(inside, mode)

    # Copying and moving

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        (tree, old), (other, new) = self._at(path1), self._at(path2)
        stat = tree.stat(old)
        if stat.is_dir():
            other.mkdir(new, parents=True)
            return
        if stat.st_size <= _COPY_BYTES:
            other.write(new, tree.read(old), parents=self.auto_mkdir)
            return
        if self.auto_mkdir:
            self.makedirs(self._parent(path2), exist_ok=True)
        if tree is not other or not _clone_over(tree, old, new):
            with tree.open(old, "rb") as source, other.open(new, "wb") as target:
                while block := source.read(_BLOCK_BYTES):
                    target.write(block)

    def copy(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = False,
        maxdepth: Optional[int] = None,
        on_error: Optional[str] = None,
        **kwargs: Any,
    ) -> None:
        one = isinstance(path1, str) and isinstance(path2, str) and not _is_pattern(path1)
        if one and recursive and maxdepth is None and self.isdir(path1) and not self.lexists(path2):
            (tree, old), (other, new) = self._at(path1), self._at(path2)
            if tree is other and not new.startswith(old.rstrip("/") + "/"):
                try:
                    self.makedirs(self._parent(path2), exist_ok=True)
                    tree.clone(old, new)
                    return
                except PermissionError:
                    # Not all of it is the caller's: what can be read is copied.
                    pass
        super().copy(path1, path2, recursive=recursive, maxdepth=maxdepth, on_error=on_error, **kwargs)

    def mv(
        self, path1: Any, path2: Any, recursive: bool = True, maxdepth: Optional[int] = None, **kwargs: Any
    ) -> None:
        if not isinstance(path1, str) or not isinstance(path2, str) or _is_pattern(path1) or maxdepth is not None:
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)
            return
        if path2.endswith("/") or self.isdir(path2):
            path2 = f"{path2.rstrip('/')}/{self._strip_protocol(path1).rsplit('/', 1)[1]}"
        if self.auto_mkdir:
            self.makedirs(self._parent(path2), exist_ok=True)
        (tree, old), (other, new) = self._at(path1), self._at(path2)
        if tree is other:
            tree.rename(old, new)
        else:
            super().mv(path1, path2, recursive=recursive, **kwargs)

    # Content

    def cat_file(self, path: str, start: Optional[int] = None, end: Optional[int] = None, **kwargs: Any) -> bytes:
        tree, inside = self._at(path)
        found = _ranges(tree, [(inside, start, end)])[0]
        if isinstance(found, OSError):
            raise found
        return tree.read_many([(inside, *found)])[0]

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **kwargs: Any) -> Any:
        paths = self.expand_path(path, recursive=recursive)
        stripped = self._strip_protocol(path)
        if not isinstance(path, list) and len(paths) == 1 and paths[0] == stripped:
            return self.cat_file(paths[0], **kwargs)
        if recursive:
            stats = self._stats(paths)
            paths = [one for one, stat in zip(paths, stats) if not isinstance(stat, Stat) or not stat.is_dir()]
        ends = [kwargs.get("end")] * len(paths)
        read = self._read(paths, [kwargs.get("start")] * len(paths), ends, on_error)
        return {one: data for one, data in zip(paths, read) if on_error != "omit" or isinstance(data, bytes)}

    def cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: Optional[int] = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        if max_gap is not None:
            raise NotImplementedError
        starts = starts if isinstance(starts, list) else [starts] * len(paths)
        ends = ends if isinstance(ends, list) else [ends] * len(paths)
        if len(starts) != len(paths) or len(ends) != len(paths):
            raise ValueError("there are not as many ranges as paths")
        return self._read(paths, starts, ends, on_error)

    def _stats(self, paths: list[str]) -> list[Union[Stat, OSError]]:
        """What paths lead to."""
        stats: list[Any] = [None] * len(paths)
        for top, files in self._each(paths).items():
            found = self._trees[top].stat_many([inside for _, inside in files], errors="return")
            for (at, _), stat in zip(files, found):
                stats[at] = stat
        return stats

    def _read(self, paths: list[str], starts: list[Any], ends: list[Any], on_error: str) -> list[Any]:
        read: list[Union[bytes, OSError]] = [b""] * len(paths)
        for top, files in self._each(paths).items():
            tree = self._trees[top]
            pieces = []
            ranges = _ranges(tree, [(inside, starts[at], ends[at]) for at, inside in files])
            for (at, inside), found in zip(files, ranges):
                if isinstance(found, OSError):
                    read[at] = found
                else:
                    pieces.append((at, (inside, *found)))
            contents = tree.read_many([piece for _, piece in pieces], errors="return")
            for (at, _), data in zip(pieces, contents):
                read[at] = data
        if on_error == "raise":
            for data in read:
                if isinstance(data, OSError):
                    raise data
        return read

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        tree, inside = self._at(path)
        tree.write_many([(inside, value)], replace=mode != "create", parents=self.auto_mkdir)

    def pipe(self, path: Any, value: Optional[bytes] = None, **kwargs: Any) -> None:
        if not isinstance(path, dict):
            path = {path: value}
        contents = list(path.values())
        replace = kwargs.get("mode", "overwrite") != "create"
        for top, files in self._each(path).items():
            writes = [(inside, contents[at]) for at, inside in files]
            self._trees[top].write_many(writes, replace=replace, parents=self.auto_mkdir)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        tree, inside = self._at(path)
        if self.auto_mkdir:
            self.makedirs(self._parent(path), exist_ok=True)
        tree.open(inside, "wb" if truncate else "ab").close()
        tree.utime(inside)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: Optional[int] = None,
        autocommit: bool = True,
        cache_options: Optional[dict[str, Any]] = None,
        **kwargs: Any,
    ) -> EspalierFile:
        if self.auto_mkdir and mode[0] in "wxa":
            self.makedirs(self._parent(path), exist_ok=True)
        tree, inside = self._at(path)
        return EspalierFile(self, tree, self._strip_protocol(path), inside, mode, autocommit)


class EspalierFile(io.IOBase):
    """An open file of the file system; in a transaction, one that gets its name at the end."""

    _file: Any = None

    def __init__(
        self, fs: EspalierFileSystem, tree: Tree, path: str, inside: str, mode: str, autocommit: bool
    ) -> None:
        self.fs, self.path, self.mode, self.autocommit = fs, path, mode, autocommit
        self.blocksize = io.DEFAULT_BUFFER_SIZE
        self._tree, self._inside = tree, inside
        self._beside: Optional[str] = None
        if not autocommit and mode[0] in "wx":
            if mode[0] == "x" and tree.exists(inside):
                raise FileExistsError(17, "the file exists", path)
            above = inside.rsplit("/", 1)[0]
            self._beside = inside = f"{above}/.espalier-{secrets.token_hex(8)}"
        self._file = tree.open(inside, mode if "b" in mode else mode + "b")

    @property
    def size(self) -> int:
        """Bytes, with what is not written yet."""
        if self.writable():
            self._file.flush()
        position = self._file.tell()
        size: int = self._file.seek(0, io.SEEK_END)
        self._file.seek(position)
        return size

    def commit(self) -> None:
        """Gives a file of a transaction its name."""
        if self._beside is not None:
            how = "keep" if self.mode[0] == "x" else "replace"
            self._tree.rename(self._beside, self._inside, how)  # type: ignore[arg-type]
            self._beside = None

    def discard(self) -> None:
        """Removes a file of a transaction that did not end well."""
        if self._beside is not None:
            self._tree.unlink(self._beside)
            self._beside = None

    def readable(self) -> bool:
        return bool(self._file.readable())

    def writable(self) -> bool:
        return bool(self._file.writable())

    def seekable(self) -> bool:
        return True

    def read(self, size: Optional[int] = -1) -> bytes:
        return self._file.read(size)  # type: ignore[no-any-return]

    def readinto(self, buffer: Any) -> int:
        return self._file.readinto(buffer)  # type: ignore[no-any-return]

    def readline(self, size: Optional[int] = -1) -> bytes:
        return self._file.readline(-1 if size is None else size)  # type: ignore[no-any-return]

    def write(self, data: Any) -> int:
        return self._file.write(data)  # type: ignore[no-any-return]

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)  # type: ignore[no-any-return]

    def tell(self) -> int:
        return self._file.tell()  # type: ignore[no-any-return]

    def truncate(self, size: Optional[int] = None) -> int:
        return self._file.truncate(size)  # type: ignore[no-any-return]

    def flush(self) -> None:
        # It may not have been opened.
        if self._file is not None and not self._file.closed and self.writable():
            self._file.flush()

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            finally:
                if self._file is not None:
                    self._file.close()

    def __enter__(self) -> EspalierFile:
        return self

    def __repr__(self) -> str:
        return f"<EspalierFile {self.path} {self.mode}>"


def _info(name: str, stat: Stat) -> dict[str, Any]:
    kind = "directory" if stat.is_dir() else "file" if stat.is_file() else "other"
    return {
        "name": name,
        "size": 0 if stat.is_dir() else stat.st_size,
        "type": kind,
        "islink": stat.is_symlink(),
        "created": stat.st_birthtime_ns / 1e9,
        "mtime": stat.st_mtime,
        "mode": stat.st_mode,
        "uid": stat.st_uid,
        "gid": stat.st_gid,
        "ino": stat.st_ino,
        "nlink": stat.st_nlink,
    }


def _ranges(
    tree: Tree, parts: list[tuple[str, Optional[int], Optional[int]]]
) -> list[Union[tuple[int, int], OSError]]:
    """Offset and length of parts of files, or an error; what is negative counts from the end of the file."""
    from_end = [path for path, start, end in parts if (start or 0) < 0 or (end or 0) < 0]
    stats = iter(tree.stat_many(from_end, errors="return") if from_end else [])
    ranges: list[Union[tuple[int, int], OSError]] = []
    for _, start, end in parts:
        start = start or 0
        if start < 0 or (end or 0) < 0:
            stat = next(stats)
            if isinstance(stat, OSError):
                ranges.append(stat)
                continue
            start = max(start + stat.st_size, 0) if start < 0 else start
            end = end + stat.st_size if end is not None and end < 0 else end
        ranges.append((start, _WHOLE if end is None else max(end - start, 0)))
    return ranges


def _clone_over(tree: Tree, old: str, new: str) -> bool:
    """Clones a file and gives it the name `new`; false if the rights do not allow it."""
    beside = f"{new.rsplit('/', 1)[0]}/.espalier-{secrets.token_hex(8)}"
    try:
        tree.clone(old, beside)
    except PermissionError:
        return False
    try:
        tree.rename(beside, new)
    except OSError:
        tree.unlink(beside)
        raise
    return True


def _is_pattern(path: Any) -> bool:
    return isinstance(path, str) and any(sign in path for sign in "*?[")


def _locate(path: str) -> tuple[str, str]:
    """Where the tree of a path of the system begins, and the place to open it by."""
    directory = path
    while not os.path.isdir(directory):
        image, colon, _ = directory.partition(":/")
        if colon and os.path.isfile(image):
            return image + ":", image
        if os.path.isfile(directory.removesuffix(":")):
            break
        directory = os.path.dirname(directory)
    while not os.path.ismount(directory):
        directory = os.path.dirname(directory)
    return directory.rstrip("/"), directory
