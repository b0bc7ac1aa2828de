"""Open files as Python has them: raw ones, and what `open` puts around them."""

from __future__ import annotations

import io
import os
from typing import Any, Optional

from . import _espalier


class RawFile(io.RawIOBase):
    """An open file with a position."""

    def __init__(self, file: _espalier.File, name: str, mode: str) -> None:
        self._file = file
        self._position = 0
        self.name = name
        self.mode = mode
        if "a" in mode:
            self._position = file.stat().st_size

    def readable(self) -> bool:
        return "r" in self.mode or "+" in self.mode

    def writable(self) -> bool:
        return "r" not in self.mode or "+" in self.mode

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._check(self.readable(), "not readable")
        view = memoryview(buffer).cast("B")
        data = self._file.pread(len(view), self._position)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def readall(self) -> bytes:
        self._check(self.readable(), "not readable")
        parts: list[bytes] = []
        while True:
            left = self._file.stat().st_size - self._position
            data = self._file.pread(max(left, 1), self._position)
            if not data:
                return b"".join(parts)
            parts.append(data)
            self._position += len(data)

    def write(self, data: Any) -> int:
        self._check(self.writable(), "not writable")
        if "a" in self.mode:
            self._position = self._file.stat().st_size
        data = data if isinstance(data, bytes) else bytes(memoryview(data).cast("B"))
        self._file.pwrite(data, self._position)
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._check(True, "")
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}
        if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
            raise ValueError(f"invalid whence ({whence})")
        position = offset + (self._file.stat().st_size if whence == os.SEEK_END else start[whence])
        if position < 0:
            raise ValueError(f"negative seek value {position}")
        self._position = position
        return position

    def tell(self) -> int:
        self._check(True, "")
        return self._position

    def truncate(self, size: Optional[int] = None) -> int:
        self._check(self.writable(), "not writable")
        size = self._position if size is None else size
        self._file.truncate(size)
        return size

    def sync(self) -> None:
        """Makes the content durable."""
        self._check(True, "")
        self._file.sync()

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._file.close()

    def _check(self, is_allowed: bool, what: str) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if not is_allowed:
            raise io.UnsupportedOperation(what)


def open_raw(tree: _espalier.Tree, path: bytes, mode: str) -> RawFile:
    """Opens a file unbuffered; `mode` is that of `open` without "b" and "t"."""
    kind = mode.replace("+", "", 1)
    if kind not in ("r", "w", "a", "x"):
        raise ValueError(f"invalid mode: {mode!r}")
    update = "+" in mode
    create = None if kind == "r" else 0o666
    access = (kind == "r" or update, kind != "r" or update)
    file = tree.open(path, access, create, kind == "x", kind == "w")
    return RawFile(file, os.fsdecode(path), mode)


def open_file(
    tree: _espalier.Tree,
    path: bytes,
    mode: str,
    buffering: int,
    encoding: Optional[str],
    errors: Optional[str],
    newline: Optional[str],
) -> Any:
    """Opens a file as the built-in `open` does."""
    if len(set(mode)) != len(mode) or set(mode) - set("rwaxbt+"):
        raise ValueError(f"invalid mode: {mode!r}")
    binary = "b" in mode
    if binary and ("t" in mode or encoding or errors or newline):
        raise ValueError("a binary file takes no encoding, errors or newline argument")
    if buffering == 0 and not binary:
        raise ValueError("a text file has a buffer")
    raw = open_raw(tree, path, mode.replace("b", "").replace("t", ""))
    if buffering == 0:
        return raw
    size = buffering if buffering > 1 else 1 << 17
    buffer: Any
    if raw.readable() and raw.writable():
        buffer = io.BufferedRandom(raw, size)
    elif raw.writable():
        buffer = io.BufferedWriter(raw, size)
    else:
        buffer = io.BufferedReader(raw, size)
    if binary:
        return buffer
    text = io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=buffering == 1)
    text.mode = mode  # type: ignore[misc]
    return text
