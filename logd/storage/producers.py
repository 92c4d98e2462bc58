"""The producers of a topic and their last batches, so that a retried batch is stored once.

Keeps the last 1,024 batches of each producer (number, offset, messages, checksum of the body) and
at least the 100,000 producers that wrote last. What a write adds is staged and applies when the
write has succeeded. Opens no file.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import NamedTuple

from xxhash import xxh3_64_digest

from logd.batch import NO_ID
from logd.errors import Conflict, OutOfOrder

KEEP_BATCHES = 1024
KEEP_PRODUCERS = 100_000
_BATCH = struct.Struct("<QQQ")  # offset, messages, sum of the body
_PRODUCER = struct.Struct("<BIQ")  # length of the name, batches kept, number of the last
_HEAD = struct.Struct("<8sQQI")  # magic, next offset, position in the partition, producers
_MAGIC = b"logd-ids"


class StoredId(NamedTuple):
    offset: int
    messages: int


class _Producer:
    """The last batches of one producer, packed, because there may be 100,000 producers."""

    __slots__ = ("batches", "last")

    def __init__(self, last: int, batches: bytes = b"") -> None:
        self.last = last
        self.batches = bytearray(batches)

    def add(self, n: int, packed: bytes) -> None:
        self.last = n
        self.batches += packed
        if len(self.batches) >= 2 * KEEP_BATCHES * _BATCH.size:
            del self.batches[: -KEEP_BATCHES * _BATCH.size]

    def find(self, n: int) -> tuple[int, int, int] | None:
        age = self.last - n
        kept = min(len(self.batches) // _BATCH.size, KEEP_BATCHES)
        if not 0 <= age < kept:
            return None
        return _BATCH.unpack_from(self.batches, len(self.batches) - (age + 1) * _BATCH.size)


class Producers:
    def __init__(self) -> None:
        self._known: OrderedDict[str, _Producer] = OrderedDict()
        self._staged: dict[str, list[tuple[int, StoredId, str]]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def stored(self, id_: str, sum_: str) -> StoredId | None:
        """Where this batch is stored; None if it is the next one; an error if it is neither."""
        name, n = _split(id_)
        for staged_n, place, staged_sum in self._staged.get(name, ()):
            if staged_n == n:
                return self._same(id_, place, staged_sum == sum_)
        producer = self._known.get(name)
        staged = self._staged.get(name)
        if producer is None and staged is None:
            return None
        last = staged[-1][0] if staged else producer.last  # type: ignore[union-attr]
        if n == last + 1:
            return None
        found = producer.find(n) if producer else None
        if found is None:
            raise OutOfOrder(f"last={last} is the last number of producer {name} in this topic")
        return self._same(id_, StoredId(found[0], found[1]), found[2] == int(sum_, 16))

    @staticmethod
    def _same(id_: str, place: StoredId, equal: bool) -> StoredId:
        if not equal:
            raise Conflict(f"{id_} is already stored with another body")
        return place

    def stage(self, id_: str, place: StoredId, sum_: str) -> None:
        name, n = _split(id_)
        self._staged.setdefault(name, []).append((n, place, sum_))

    def commit(self) -> None:
        for name, batches in self._staged.items():
            for n, place, sum_ in batches:
                self._add(name, n, place, sum_)
        self._staged.clear()

    def rollback(self) -> None:
        self._staged.clear()

    def note(self, id_: str, offset: int, messages: int, sum_: str) -> None:
        """Add a batch found in the log at the start."""
        if id_ != NO_ID:
            self._add(*_split(id_), StoredId(offset, messages), sum_)

    def _add(self, name: str, n: int, place: StoredId, sum_: str) -> None:
        producer = self._known.get(name)
        if producer is None or n != producer.last + 1:
            producer = self._known[name] = _Producer(n)
        producer.add(n, _BATCH.pack(*place, int(sum_, 16)))
        self._known.move_to_end(name)
        if len(self._known) > KEEP_PRODUCERS:
            self._known.popitem(last=False)

    # -- the .ids file --------------------------------------------------------------------------

    def encode(self, next_: int, position: int) -> bytes:
        """The state at offset `next_`, which is at `position` of the partition."""
        parts: list[bytes | bytearray] = [_HEAD.pack(_MAGIC, next_, position, len(self._known))]
        for name, producer in self._known.items():
            batches = producer.batches[-KEEP_BATCHES * _BATCH.size :]
            parts += (
                _PRODUCER.pack(len(name), len(batches) // _BATCH.size, producer.last),
                name.encode(),
                batches,
            )
        data = b"".join(parts)
        return data + xxh3_64_digest(data)

    @classmethod
    def decode(cls, data: bytes) -> tuple[Producers, int, int] | None:
        """The state that `encode` wrote, with its offset and position; None if it is invalid."""
        if len(data) < _HEAD.size + 8 or xxh3_64_digest(data[:-8]) != data[-8:]:
            return None
        magic, next_, position, count = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            return None
        producers, at = cls(), _HEAD.size
        for _ in range(count):
            name_size, batches, last = _PRODUCER.unpack_from(data, at)
            at += _PRODUCER.size
            name = data[at : at + name_size].decode()
            at += name_size
            producers._known[name] = _Producer(last, data[at : at + batches * _BATCH.size])
            at += batches * _BATCH.size
        return producers, next_, position


def _split(id_: str) -> tuple[str, int]:
    name, _, n = id_.rpartition(":")
    return name, int(n)
