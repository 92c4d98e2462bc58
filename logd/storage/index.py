# cython: language_level=3, annotation_typing=False
"""The sparse index of a partition: from an offset, a time or a position to the position of a batch.

Entries of 32 bytes, little-endian: offset, position, time, and the XXH3 of these. There is one for
the first batch and one for every batch that starts at least 4,096 bytes after the last listed one;
the index of a sealed partition ends with (next, size, newest time). If the index is missing,
incomplete or wrong it is rebuilt from the partition. Opens no file.
"""

from __future__ import annotations

import mmap
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

INTERVAL_BYTES = 4096
ENTRY_BYTES = 32
_FIELDS = struct.Struct("<QQQ")
_ENTRY = struct.Struct("<QQQQ")
_FIELD = struct.Struct("<Q")
_OFFSET, _POSITION, _TIME = 0, 1, 2


def _swapped(number: int) -> int:
    return int.from_bytes(number.to_bytes(8, "big"), "little")


_is_little = memoryview(_FIELD.pack(1)).cast("Q")[0] == 1
_key = None if _is_little else _swapped  # converts a field from the byte order of the machine


class IndexEntry(NamedTuple):
    offset: int
    position: int
    time_ms: int

    def encode(self) -> bytes:
        fields = _FIELDS.pack(*self)
        return fields + _FIELD.pack(xxh3_64_intdigest(fields))


class BadIndex(Exception):
    """An invalid entry. The index has to be rebuilt."""


class Index:
    """Entries in a bytearray that grows (active) or in a mapped file (sealed)."""

    __slots__ = ("_count", "_last_position", "data")

    def __init__(self, data: bytearray | mmap.mmap | None = None) -> None:
        self.data = bytearray() if data is None else data  # the entries, as in the file
        self._count = len(self.data) // ENTRY_BYTES
        self._last_position = (
            self.entry(self._count - 1).position if self._count else -INTERVAL_BYTES
        )

    @classmethod
    def salvaged(cls, data: bytes) -> Index:
        """Entries of a possibly damaged file; reading a bad one raises BadIndex."""
        index = cls()
        index.data, index._count = bytearray(data), len(data) // ENTRY_BYTES
        try:
            index._last_position = index.entry(index._count - 1).position
        except BadIndex:
            pass  # such an index is not added to
        return index

    def __len__(self) -> int:
        return self._count

    def encoded(self, start: int = 0) -> bytes:
        return bytes(self.data[start * ENTRY_BYTES :])

    def note(self, offset: int, position: int, time_ms: int) -> None:
        """Add a batch, if it is far enough from the last entry."""
        if position - self._last_position >= INTERVAL_BYTES:
            self.append(IndexEntry(offset, position, time_ms))

    def append(self, entry: IndexEntry) -> None:
        assert isinstance(self.data, bytearray)
        self.data += entry.encode()
        self._count += 1
        self._last_position = entry.position

    def entry(self, i: int) -> IndexEntry:
        if not 0 <= i < self._count:
            raise BadIndex(f"there is no index entry {i}")
        offset, position, time_ms, check = _ENTRY.unpack_from(self.data, i * ENTRY_BYTES)
        entry = IndexEntry(offset, position, time_ms)
        if xxh3_64_intdigest(_FIELDS.pack(*entry)) != check:
            raise BadIndex(f"index entry {i} does not match its sum")
        return entry

    def at_offset(self, offset: int) -> IndexEntry:
        """The last entry up to `offset`."""
        return self._before(bisect_right(self._column(_OFFSET), offset, key=_key))

    def at_position(self, position: int) -> IndexEntry:
        return self._before(bisect_right(self._column(_POSITION), position, key=_key))

    def before_time(self, time_ms: int) -> IndexEntry:
        """The last entry older than `time_ms`, or the first entry."""
        return self._before(max(bisect_left(self._column(_TIME), time_ms, key=_key), 1))

    def _before(self, i: int) -> IndexEntry:
        if i == 0:
            raise BadIndex("the index does not reach back to the start")
        return self.entry(i - 1)

    def _column(self, field: int) -> Sequence[int]:
        """One field of all entries. Release it at once: the bytearray cannot grow meanwhile."""
        return memoryview(self.data)[: self._count * ENTRY_BYTES].cast("Q")[field::4]
