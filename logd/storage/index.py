"""From an offset, a time or a position to where a batch starts in a partition file.

A sparse list of 32-byte little-endian entries: offset, position, time, and the XXH3 of those three.
It has one for the first batch and one for every batch that starts 4,096 bytes or more behind the
last one listed; a sealed partition's ends with (next, size, newest time). Disposable: whoever finds
it missing, short or wrong rebuilds it from the partition. Opens no file.
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
_key = None if _is_little else _swapped  # from how the machine sees a field to what it is


class IndexEntry(NamedTuple):
    offset: int
    position: int
    time_ms: int

    def encode(self) -> bytes:
        fields = _FIELDS.pack(*self)
        return fields + _FIELD.pack(xxh3_64_intdigest(fields))


class BadIndex(Exception):
    """An entry that is not what was once written. The index is to be rebuilt."""


class Index:
    """Entries over a bytearray that grows (active) or over a mapped file (sealed)."""

    __slots__ = ("_count", "_data", "_last_position")

    def __init__(self, data: bytearray | mmap.mmap | None = None) -> None:
        self._data = bytearray() if data is None else data
        self._count = len(self._data) // ENTRY_BYTES
        self._last_position = (
            self.entry(self._count - 1).position if self._count else -INTERVAL_BYTES
        )

    @classmethod
    def salvaged(cls, data: bytes) -> Index:
        """Entries as they were found; whoever asks for a bad one is told."""
        index = cls()
        index._data, index._count = bytearray(data), len(data) // ENTRY_BYTES
        try:
            index._last_position = index.entry(index._count - 1).position
        except BadIndex:
            pass  # it will not be added to
        return index

    def __len__(self) -> int:
        return self._count

    def encoded(self, start: int = 0) -> bytes:
        return bytes(self._data[start * ENTRY_BYTES :])

    def note(self, offset: int, position: int, time_ms: int) -> None:
        """A batch starts here: list it, if the last one listed is far enough away."""
        if position - self._last_position >= INTERVAL_BYTES:
            self.append(IndexEntry(offset, position, time_ms))

    def append(self, entry: IndexEntry) -> None:
        assert isinstance(self._data, bytearray)
        self._data += entry.encode()
        self._count += 1
        self._last_position = entry.position

    def entry(self, i: int) -> IndexEntry:
        if not 0 <= i < self._count:
            raise BadIndex(f"there is no index entry {i}")
        offset, position, time_ms, check = _ENTRY.unpack_from(self._data, i * ENTRY_BYTES)
        entry = IndexEntry(offset, position, time_ms)
        if xxh3_64_intdigest(_FIELDS.pack(*entry)) != check:
            raise BadIndex(f"index entry {i} does not match its sum")
        return entry

    def at_offset(self, offset: int) -> IndexEntry:
        """The last entry that is not behind `offset`."""
        return self._before(bisect_right(self._column(_OFFSET), offset, key=_key))

    def at_position(self, position: int) -> IndexEntry:
        return self._before(bisect_right(self._column(_POSITION), position, key=_key))

    def before_time(self, time_ms: int) -> IndexEntry:
        """The last entry older than `time_ms`, or the first of all."""
        return self._before(max(bisect_left(self._column(_TIME), time_ms, key=_key), 1))

    def _before(self, i: int) -> IndexEntry:
        if i == 0:
            raise BadIndex("the index does not reach back to the start")
        return self.entry(i - 1)

    def _column(self, field: int) -> Sequence[int]:
        """One field of all entries, to be let go of at once: what is looked at cannot grow."""
        return memoryview(self._data)[: self._count * ENTRY_BYTES].cast("Q")[field::4]
