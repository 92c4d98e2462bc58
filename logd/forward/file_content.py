"""The bytes of one file or one compressed archive, by position, and what they are known by.

Names change with each rotation and inodes are used again, so a file is known by its bytes too: the
sums of its first 1, 2, 4 … 1,024 bytes (`head`), and the sum of the last bytes before the place
where reading stopped (`check`). A compressed archive has the positions of what it inflates to.

Symbolic links are followed: these are the user's files, not ours. Nothing here writes.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import stat
import zlib
from collections.abc import Callable
from typing import BinaryIO, NamedTuple, Protocol

from xxhash import xxh32_hexdigest

HEAD_SIZES = tuple(1 << n for n in range(11))  # powers of two, so that a shorter copy compares too
HEAD_BYTES = HEAD_SIZES[-1]
TAIL_BYTES = 256
_PIECE_BYTES = 1 << 18

Head = tuple[str, ...]
Identity = tuple[int, int]  # device and inode

ARCHIVES: dict[str, Callable[[str], BinaryIO]] = {
    ".gz": lambda path: gzip.open(path),  # type: ignore[dict-item,return-value]
    ".bz2": lambda path: bz2.open(path),  # type: ignore[dict-item,return-value]
    ".xz": lambda path: lzma.open(path),  # type: ignore[dict-item,return-value]
}
UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError)  # what a bad archive raises


class Stamp(NamedTuple):
    """A file's size and time, of one moment."""

    size: int
    mtime_ns: int


class Content(Protocol):
    """Bytes by position. `size` may grow from call to call; `read` gives less only at the end."""

    is_archive: bool
    identity: Identity

    def size(self) -> int: ...
    def stamp(self) -> Stamp: ...
    def read(self, position: int, size: int) -> bytes: ...
    def close(self) -> None: ...


class PlainFile:
    """A regular file, held open: whatever is renamed or removed, its bytes stay readable."""

    is_archive = False

    def __init__(self, path: str) -> None:
        # Not blocking: what looks like a log may be a pipe that nobody writes to.
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise OSError(f"{path} is not a regular file")
        self.identity: Identity = (status.st_dev, status.st_ino)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def stamp(self) -> Stamp:
        status = os.fstat(self._fd)
        return Stamp(status.st_size, status.st_mtime_ns)

    def read(self, position: int, size: int) -> bytes:
        data = os.pread(self._fd, size, position)
        while 0 < len(data) < size:
            more = os.pread(self._fd, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class CompressedFile:
    """A compressed file. It is inflated to its end at first, so that half of one is noticed."""

    is_archive = True

    def __init__(self, path: str) -> None:
        status = os.stat(path)
        self.identity: Identity = (status.st_dev, status.st_ino)
        self._mtime_ns = status.st_mtime_ns
        self._file = ARCHIVES[os.path.splitext(path)[1]](path)
        self._size = 0
        try:
            while piece := self._file.read(_PIECE_BYTES):
                self._size += len(piece)
        except BaseException:
            self._file.close()
            raise

    def size(self) -> int:
        return self._size

    def stamp(self) -> Stamp:
        return Stamp(self._size, self._mtime_ns)

    def read(self, position: int, size: int) -> bytes:
        self._file.seek(position)
        pieces = []
        while size > 0 and (piece := self._file.read(size)):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        self._file.close()


def is_archive_name(name: str) -> bool:
    """Is this compressed, judging by its name? Also forms that cannot be read here."""
    return name.endswith((*ARCHIVES, ".zst", ".Z", ".lz4", ".zip"))


def open_content(path: str) -> Content:
    return CompressedFile(path) if os.path.splitext(path)[1] in ARCHIVES else PlainFile(path)


def head_of(first: bytes) -> Head:
    return tuple(xxh32_hexdigest(first[:size]) for size in HEAD_SIZES if size <= len(first))


def heads_agree(one: Head, other: Head) -> bool:
    """Do both start with the same bytes, as far as both are known?"""
    common = min(len(one), len(other))
    return one[:common] == other[:common]


def check_of(tail: bytes) -> str:
    return xxh32_hexdigest(tail)


def tail_at(content: Content, position: int) -> bytes:
    """The bytes that `check` is the sum of."""
    start = max(0, position - TAIL_BYTES)
    return content.read(start, position - start)


def starts_with(content: Content, start: Content) -> bool:
    """Has it all bytes of the other one at its start? It may be truncated meanwhile: then not."""
    size, at = start.size(), 0
    while at < size:
        count = min(_PIECE_BYTES, size - at)
        if content.read(at, count) != start.read(at, count):
            return False
        at += count
    return True
