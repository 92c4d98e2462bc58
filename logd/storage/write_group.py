"""The batches that one turn of the loop writes to one topic, as buffers for one system call.

Small plain pushes are joined into one batch of up to 64 KB: each keeps its own offset and its own
reply, but they share a header and a sum. Larger ones, and those that came with a sum or an id, stay
the batch their producer made. Pure: offsets and bytes in, buffers out.
"""

from __future__ import annotations

from typing import NamedTuple

from logd.batch import JOIN_BYTES, LINES, NO_ID, SMALL_BYTES, Buffer, body_sum, encode_header
from logd.partition import Placed


class CheckedBatch(NamedTuple):
    """A checked batch to be stored as its producer made it."""

    body: Buffer
    enc: str
    messages: int
    sum: str
    id: str = NO_ID


class WriteGroup:
    __slots__ = (
        "_joined",
        "_joined_bytes",
        "_joined_first",
        "buffers",
        "first",
        "next",
        "placed",
        "size",
        "time_ms",
    )

    def __init__(self, next_: int, time_ms: int) -> None:
        self.first = self.next = next_
        self.time_ms = time_ms
        self.buffers: list[Buffer] = []
        self.placed: list[Placed] = []
        self.size = 0  # in bytes, but for the header of a batch that is still being joined
        self._joined: list[Buffer] = []
        self._joined_bytes = 0
        self._joined_first = next_

    @property
    def batches(self) -> int:
        """How many there are, the one that is still being joined included."""
        return len(self.placed) + bool(self._joined)

    def add_plain(self, bodies: list[Buffer], counts: list[int] | None) -> int:
        """A run of plain pushes, at most one batch of them; returns the first one's offset."""
        offset, size = self.next, len(bodies[0])
        messages = len(bodies) if counts is None else sum(counts)
        if size > SMALL_BYTES and len(bodies) == 1:
            return self.add(CheckedBatch(bodies[0], LINES, messages, body_sum(bodies[0])))
        total = sum(map(len, bodies))
        if self._joined_bytes + total > JOIN_BYTES:
            self._close_joined()
        self._joined += bodies
        self._joined_bytes += total
        self.size += total
        self.next = offset + messages
        return offset

    def add_alone(self, body: Buffer, messages: int) -> int:
        """A plain push that nothing else will be joined with; returns its offset."""
        self.size += len(body)
        return self._place(body, LINES, messages, body_sum(body), NO_ID)

    def add(self, batch: CheckedBatch) -> int:
        """One batch as it is; returns its offset."""
        self._close_joined()
        self.size += len(batch.body)
        return self._place(*batch)

    def close(self) -> None:
        """Nothing more comes: `buffers` and `placed` are complete after this."""
        self._close_joined()

    def _close_joined(self) -> None:
        if self._joined:
            body = b"".join(self._joined) if len(self._joined) > 1 else self._joined[0]
            messages = self.next - self._joined_first
            self.next = self._joined_first
            self._joined, self._joined_bytes = [], 0
            self._place(body, LINES, messages, body_sum(body), NO_ID)

    def _place(self, body: Buffer, enc: str, messages: int, sum_: str, id_: str) -> int:
        offset = self.next
        header = encode_header(offset, messages, len(body), self.time_ms, enc, sum_, id_)
        self.size += len(header)
        self.buffers += (header, body)
        self.placed.append(Placed(offset, len(header) + len(body)))
        self.next = self._joined_first = offset + messages
        return offset
