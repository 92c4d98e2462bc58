"""Splits: the offsets that each Spark task reads, in ranges of about the same number of bytes.

Pure. Within a partition, bytes are assumed to be distributed evenly over offsets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from pyspark.sql.datasource import InputPartition

from logd.wire.commands import PartitionInfo
from logd.wire.offset_ranges import OffsetRange
from logd.wire.topic_identity import TopicIdentity
from pyspark_logd.options import Location

SPLIT_BYTES = 64 << 20  # per task, unless minPartitions asks for more tasks


@dataclass(frozen=True)
class Split(InputPartition):
    """The offsets of a topic from `start` to before `stop`, and where the topic is."""

    location: Location
    topic: str
    start: int
    stop: int
    identity: TopicIdentity


class TopicSizes:
    """Converts offsets to positions in bytes, and back."""

    def __init__(self, partitions: Sequence[PartitionInfo]) -> None:
        self._offsets, self._bytes = [0], [0]
        for part in partitions:
            if part.first > self._offsets[-1]:  # offsets before it have expired
                self._offsets.append(part.first)
                self._bytes.append(self._bytes[-1])
            if part.next > self._offsets[-1]:
                self._offsets.append(part.next)
                self._bytes.append(self._bytes[-1] + part.bytes)

    def before(self, offset: int) -> float:
        return _interpolate(offset, self._offsets, self._bytes)

    def offset(self, bytes_: float) -> int:
        return round(_interpolate(bytes_, self._bytes, self._offsets))


def _interpolate(x: float, xs: list[int], ys: list[int]) -> float:
    at = bisect_right(xs, x)
    if at == len(xs):
        return ys[-1]
    share = (x - xs[at - 1]) / (xs[at] - xs[at - 1])
    return ys[at - 1] + share * (ys[at] - ys[at - 1])


def split_offsets(
    sizes: TopicSizes, start: int, stop: int, splits: int, max_messages: int
) -> list[int]:
    """The bounds of ranges of about equal size from `start` to `stop`; none if these are equal."""
    if start >= stop:
        return []
    splits = min(max(splits, ceil((stop - start) / max_messages)), stop - start)
    first, last = sizes.before(start), sizes.before(stop)
    step = (last - first) / splits
    inner = {sizes.offset(first + step * i) for i in range(1, splits)}
    found = [start, *sorted(offset for offset in inner if start < offset < stop), stop]
    return _limit_ranges(max_messages, found)


def _limit_ranges(max_messages: int, offsets: list[int]) -> list[int]:
    """Divide ranges that contain more than `max_messages`."""
    found = offsets[:1]
    for offset in offsets[1:]:
        pieces = ceil((offset - found[-1]) / max_messages)
        first, length = found[-1], offset - found[-1]
        found += [first + length * i // pieces for i in range(1, pieces + 1)]
    return found


def split_topics(
    topics: Sequence[tuple[TopicSizes, OffsetRange]], min_splits: int, max_messages: int
) -> list[list[int]]:
    """The bounds of the splits of each topic."""
    bytes_ = [sizes.before(stop) - sizes.before(start) for sizes, (start, stop) in topics]
    counts = split_counts(bytes_, min_splits)
    return [
        split_offsets(sizes, *offsets, count, max_messages)
        for (sizes, offsets), count in zip(topics, counts, strict=True)
    ]


def split_counts(bytes_: Sequence[float], min_splits: int) -> list[int]:
    """The number of splits of each topic by its bytes, at least `min_splits` in total."""
    total = sum(bytes_)
    wanted = max(min_splits, ceil(total / SPLIT_BYTES))
    return [max(1, ceil(wanted * one / total)) if total else 1 for one in bytes_]
