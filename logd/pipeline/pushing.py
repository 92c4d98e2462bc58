"""Push segments of archived messages so that each is stored once, however often it is pushed.

A segment's producer is named by the archived topic's id and the segment's offsets; its batches are
numbered from 1 and cut by a rule that looks at nothing but its messages. So the same segment is the
same pushes, byte by byte, and the daemon stores those it does not have. The first batch of a segment
travels alone: from a producer that it does not know the daemon takes any number.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from time import monotonic, sleep

from logd import commands
from logd.addresses import ConnectionLost
from logd.batch import body_sum, encode_body
from logd.client import Client
from logd.errors import ArchiveError, Busy, NoSpace, OutOfOrder, ShuttingDown
from logd.pauses import Patience
from logd.pipeline.ranges import Range
from logd.requests import Push

BATCH_BYTES = 256 << 10
BATCH_MESSAGES = 4096
IN_FLIGHT = 16
PATIENCE_S = 60.0
_TRY_AGAIN = (ConnectionLost, Busy, NoSpace, ShuttingDown)
_LAST = re.compile(r"last=([0-9]{1,19})\b")


def batches(messages: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The cut. It must never change: a daemon may remember batches of an earlier version."""
    batch: list[bytes] = []
    size = 0
    for message in messages:
        if batch and (size + len(message) > BATCH_BYTES or len(batch) == BATCH_MESSAGES):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += len(message)
    if batch:
        yield batch


def producer(topic_id: str, segment: Range) -> str:
    return f"i{topic_id[:32]}.{segment.first:x}.{segment.next - segment.first:x}"


class Pushing:
    """One connection to one topic, made anew where it breaks."""

    def __init__(self, address: str, topic: str) -> None:
        self._address, self._topic = address, topic
        self._client: Client | None = None
        self._next = 0  # of the topic when this began: what is before it was there already

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def topic_id(self) -> str:
        return self._connected().stats(self._topic)["id"]

    def push(self, topic_id: str, segment: Range, messages: Iterable[bytes]) -> int:
        """How many of the segment's messages were not there yet."""
        name = producer(topic_id, segment)
        sent: deque[tuple[int, Push]] = deque()
        numbered = enumerate(batches(messages), 1)
        patience = Patience(PATIENCE_S, monotonic())
        before, written = self._written_before(), 0
        waiting: deque[tuple[int, Push]] = deque()
        return written
