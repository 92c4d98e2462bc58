# cython: language_level=3, annotation_typing=False
"""The part of a topic that can be read, and the readers that wait at its end.

The range consists of partitions in order. `next` is the first offset that cannot be read yet: with
fsync=always the end of what is synced, which may be less than what is written. A read is planned
here and sent elsewhere. Offsets and times increase from batch to batch, so look-ups are bisections.
Imports no asyncio, no sockets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sortedcontainers import SortedDict

from logd.batch import MAX_NUMBER, Buffer
from logd.errors import Faulted, OutOfRange
from logd.partition import Partition, Slice
from logd.repair import Damage
from logd.wire.requests import At, Where

_REPLY_PARTITIONS = 64  # files that one reply may keep open


class ReadPlan(NamedTuple):
    """The reply to a READ: the offset, the number of messages, and the bytes."""

    offset: int
    messages: int
    slices: list[Slice]


class OpenPartitions:
    """Keeps the sealed partitions open that were read last, and closes the others."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: OrderedDict[Partition, None] = OrderedDict()

    def mark_used(self, partition: Partition) -> None:
        self._open[partition] = None
        self._open.move_to_end(partition)
        if len(self._open) > self._limit:
            self._open.popitem(last=False)[0].release()


class ReadableRange:
    def __init__(self, on_read: Callable[[Partition], None]) -> None:
        self.partitions: SortedDict = SortedDict()  # by first offset
        self.first = self.next = 0  # plain numbers, because background jobs read them
        self.damages: tuple[Damage, ...] = ()  # in order
        self._active_size = 0  # how much of the active partition is readable
        self._on_read = on_read  # called with each sealed partition that is read

    @property
    def size(self) -> int:
        return sum(partition.size for partition in self.partitions.values())

    def add(self, partition: Partition) -> None:
        """Add the active partition; the one before it is readable completely."""
        self.partitions[partition.first] = partition
        self._set_first()

    def remove(self, partition: Partition) -> None:
        """Remove the oldest partition; reads that have started keep its file."""
        del self.partitions[partition.first]
        self._set_first()

    def exclude(self, damages: tuple[Damage, ...]) -> None:
        """These offsets, in order, cannot be read."""
        self.damages = damages
        self._set_first()

    def _set_first(self) -> None:
        firsts = [*self.partitions.keys()[:1], *(damage.first for damage in self.damages)]
        self.first = min(firsts, default=0)

    def set_end(self, next_: int, active_size: int) -> None:
        """Everything up to here can be read."""
        self.next, self._active_size = next_, active_size

    def resolve(self, where: Where) -> int:
        """The offset that `where` means now."""
        if isinstance(where, At):
            return self._at_time(where.time_ms)
        offset = (
            where if isinstance(where, int) else {"first": self.first, "next": self.next}[where]
        )
        if not self.first <= offset <= self.next:
            raise OutOfRange(f"first={self.first} next={self.next}")
        return offset

    def _at_time(self, time_ms: int) -> int:
        """The first offset at or after a time; times never decrease."""
        partitions = self.partitions.values()
        if self.damages:  # a damaged partition may have no times
            partitions = [part for part in partitions[:-1] if part.size] + list(partitions[-1:])
        at = bisect_left(partitions, time_ms, key=_ends_at_ms)
        found = partitions[at].since(time_ms) if at < len(partitions) else None
        return min(found.header.offset, self.next) if found else self.next

    def plan(self, offset: int, messages: int, max_bytes: int) -> ReadPlan:
        """Whole batches from the one with `offset`, up to the requested and allowed size."""
        end = self._before_damage(offset, min(offset + messages, self.next))
        slices: list[Slice] = []
        reached = offset
        at = self.partitions.bisect_right(offset) - 1
        while reached < end and max_bytes > 0 and len(slices) < _REPLY_PARTITIONS:
            partition: Partition = self.partitions.peekitem(at)[1]
            start = partition.position_of(reached) if not slices else 0
            stop, reached_here = self._stop(partition, end)
            if stop - start > max_bytes:
                limit = start + max_bytes
                stop, reached_here = partition.boundary(start, limit)
                if stop > limit and slices:
                    break
                max_bytes = 0
            if partition.sealed:
                self._on_read(partition)
            slices.append(Slice(partition.file, start, stop - start))
            max_bytes -= stop - start
            reached = reached_here
            at += 1
        return ReadPlan(offset, max(0, reached - offset), slices)

    def holding(self, offset: int) -> Partition:
        """The partition that contains `offset`, which is in the range."""
        partition: Partition = self.partitions.peekitem(self.partitions.bisect_right(offset) - 1)[1]
        if partition.sealed:
            self._on_read(partition)
        return partition

    def _before_damage(self, offset: int, end: int) -> int:
        """Where a read from `offset` must end; raises Faulted if it starts in damage."""
        for damage in self.damages:
            if damage.first <= offset < damage.next:
                raise Faulted(f"first={damage.first} next={damage.next} {damage}")
            if offset < damage.first:
                return min(end, damage.first)
        return end

    def _stop(self, partition: Partition, end: int) -> tuple[int, int]:
        """Where to stop reading this partition for messages before `end`."""
        next_, size = self.visible(partition)
        if end >= next_:
            return size, next_
        last = partition.holding(end - 1)
        return last.end, last.header.next

    def visible(self, partition: Partition) -> tuple[int, int]:
        """Up to which offset and position this partition is readable."""
        if partition.first == self.partitions.keys()[-1]:
            return self.next, self._active_size
        return partition.next, partition.size


class NewestWrite(NamedTuple):
    """The batches of the write that woke the readers."""

    offset: int
    messages: int
    size: int
    buffers: Sequence[Buffer]


class WaitingReaders:
    """Readers that wait at the end of a topic until there is more to read.

    Each is called once, when messages become readable or the topic closes. While they are called,
    `newest` holds the bytes just written, so that a reader that wants exactly these need not read
    them from the file.
    """

    def __init__(self) -> None:
        self.calls: dict[object, Callable[[], None]] = {}
        self.newest: NewestWrite | None = None
        self.group: object = None  # the followers at the end, which wait as one reader
        self.followers = 0  # FOLLOW streams, at the end or behind it

    @property
    def reads(self) -> int:
        """The number of READs that wait."""
        return len(self.calls) - (self.group in self.calls)

    def add(self, reader: object, call: Callable[[], None]) -> None:
        self.calls[reader] = call

    def remove(self, reader: object) -> None:
        self.calls.pop(reader, None)

    def wake(self, newest: NewestWrite | None = None) -> None:
        calls, self.calls = self.calls, {}
        self.newest = newest
        try:
            for call in calls.values():
                call()
        finally:
            self.newest = None


def _ends_at_ms(partition: Partition) -> int:
    """The newest time of a partition; an empty one, the last, can still get any."""
    return partition.max_time_ms if partition.size else MAX_NUMBER
