"""Partitions written for a test, together with a plain list that says what is in them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from logd.batch import body_sum, encode_header
from logd.partition import Partition


class Written(NamedTuple):
    """One batch as it was appended: the model to look things up in by walking the list."""

    offset: int
    next: int
    position: int
    end: int
    time_ms: int


Filled = tuple[Partition, list[Written]]


class Shape(NamedTuple):
    """What a batch should look like. `later_ms` is the time since the one before it."""

    messages: int = 1
    message_bytes: int = 10
    later_ms: int = 0
    id: str = "-"


def append(partition: Partition, shape: Shape) -> Written:
    """One batch of this shape at the end of an active partition."""
    body = (b"x" * shape.message_bytes + b"\n") * shape.messages
    time_ms = max(partition.max_time_ms, 1000) + shape.later_ms
    offset, start = partition.next, partition.size
    head = encode_header(
        offset, shape.messages, len(body), time_ms, "lines", body_sum(body), shape.id
    )
    next_, size = offset + shape.messages, len(head) + len(body)
    partition.append([head, body], [(offset, size)], next_, time_ms)
    return Written(offset, next_, start, start + size, time_ms)


def active(directory: Path, shapes: Iterable[Shape], first: int = 0) -> Filled:
    partition = Partition.create(directory, first)
    return partition, [append(partition, shape) for shape in shapes]


def seal(partition: Partition) -> None:
    partition.save_index(closing=True)
    partition.seal()


def sealed(directory: Path, shapes: Iterable[Shape], first: int = 0) -> Filled:
    """A sealed partition, opened anew: nothing of it is in memory."""
    partition, written = active(directory, shapes, first)
    seal(partition)
    opened = Partition.open_sealed(directory, first, partition.next, partition.max_time_ms)
    return opened, written


SMALL = [Shape(1 + i % 3, i % 20, i % 2) for i in range(20)]
LARGE = [Shape(1 + i % 5, (i * 317) % 1500, 3 * (i % 3 == 0)) for i in range(60)]
