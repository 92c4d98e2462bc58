"""The bytes of a plain or compressed file by position, and its fingerprint.

Names change with each rotation and inodes are reused, so a file is also identified by its content:
by the checksums of its first 1, 2, 4 … 1,024 bytes (the fingerprint), and by the checksum of the
last bytes before the read position. Positions in a compressed file are those of the decompressed
bytes.

Symbolic links are followed, since the files belong to the user. Nothing here writes.
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

FINGERPRINT_SIZES = tuple(1 << n for n in range(11))  # powers of two: a shorter copy compares too
FINGERPRINT_BYTES = FINGERPRINT_SIZES[-1]
TAIL_BYTES = 256
_READ_BYTES = 1 << 18

Fingerprint = tuple[str, ...]
Identity = tuple[int, int]  # device and inode

DECOMPRESSORS: dict[str, Callable[[str], BinaryIO]] = {
    ".gz": lambda path: gzip.open(path),  # type: ignore[dict-item,return-value]
    ".bz2": lambda path: bz2.open(path),  # type: ignore[dict-item,return-value]
    ".xz": lambda path: lzma.open(path),  # type: ignore[dict-item,return-value]
}
UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError)  # also of damaged compressed files


class Stamp(NamedTuple):
    """The size and modification time of a file at one moment."""

    size: int
    mtime_ns: int


class Content(Protocol):
    """Bytes by position. `size` may grow; `read` returns fewer bytes only at the end."""

    is_compressed: bool
    identity: Identity

    def size(self) -> int: ...
    def stamp(self) -> Stamp: ...
    def read(self, position: int, size: int) -> bytes: ...
    def close(self) -> None: ...


class PlainFile:
    """A regular file, kept open, so that it stays readable when it is renamed or removed."""

    is_compressed = False

    def __init__(self, path: str) -> None:
        # Nonblocking: the path may be a pipe without a writer.
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
    """A compressed file. It is decompressed completely first, to detect an incomplete one."""

    is_compressed = True

    def __init__(self, path: str) -> None:
        status = os.stat(path)
        self.identity: Identity = (status.st_dev, status.st_ino)
        self._mtime_ns = status.st_mtime_ns
        self._file = DECOMPRESSORS[os.path.splitext(path)[1]](path)
        self._size = 0
        try:
            while chunk := self._file.read(_READ_BYTES):
                self._size += len(chunk)
        except BaseException:
            self._file.close()
            raise

    def size(self) -> int:
        return self._size

    def stamp(self) -> Stamp:
        return Stamp(self._size, self._mtime_ns)

    def read(self, position: int, size: int) -> bytes:
        self._file.seek(position)
        chunks = []
        while size > 0 and (chunk := self._file.read(size)):
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)

    def close(self) -> None:
        self._file.close()


def identity_of(path: str) -> Identity | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def is_compressed_name(name: str) -> bool:
    """Whether the name is that of a compressed file, also in formats that cannot be read here."""
    return name.endswith((*DECOMPRESSORS, ".zst", ".Z", ".lz4", ".zip"))


def open_content(path: str) -> Content:
    return CompressedFile(path) if os.path.splitext(path)[1] in DECOMPRESSORS else PlainFile(path)


def fingerprint_of(first: bytes) -> Fingerprint:
    return tuple(xxh32_hexdigest(first[:size]) for size in FINGERPRINT_SIZES if size <= len(first))


def fingerprints_match(one: Fingerprint, other: Fingerprint) -> bool:
    """Whether both files start with the same bytes, up to the length of the shorter one."""
    common = min(len(one), len(other))
    return one[:common] == other[:common]


def checksum_of(tail: bytes) -> str:
    return xxh32_hexdigest(tail)


def tail_at(content: Content, position: int) -> bytes:
    """The bytes before a position that its checksum covers."""
    start = max(0, position - TAIL_BYTES)
    return content.read(start, position - start)


def starts_with(content: Content, start: Content) -> bool:
    """Whether it starts with all bytes of `start`. False if it is truncated meanwhile."""
    size, at = start.size(), 0
    while at < size:
        count = min(_READ_BYTES, size - at)
        if content.read(at, count) != start.read(at, count):
            return False
        at += count
    return True
