"""The batches that one turn of the loop writes to one topic, as buffers for one system call.

Small plain pushes are joined into one batch of up to 64 KB: each keeps its own offset and its own
reply, but they share a header and a sum. Larger ones, and those that came with a sum or an id, stay
the batch their producer made. Pure: offsets and bytes in, buffers out.
"""

from __future__ import annotations

from typing import NamedTuple

from logd.batch import LINES, NO_ID, Buffer, body_sum, encode_header
from logd.partition import Placed

JOIN_BYTES = 64 * 1024  # the largest batch made by joining
SMALL_BYTES = 16 * 1024  # what is larger is not worth the copy


class Batch(NamedTuple):
    """A checked batch to be stored as its producer made it."""

    body: bytes | bytearray
    enc: str
    messages: int
    sum: str
    id: str = NO_ID


class Group:
    __slots__ = (
        "_joined",
        "_joined_bytes",
        "_joined_first",
        "buffers",
        "next",
        "placed",
        "size",
        "time_ms",
    )

    def __init__(self, next_: int, time_ms: int) -> None:
        self.next = next_
        self.time_ms = time_ms
        self.buffers: list[Buffer] = []
        self.placed: list[Placed] = []
        self.size = 0  # of all bodies in it
        self._joined: list[bytes | bytearray] = []
        self._joined_bytes = 0
        self._joined_first = next_

    def add_plain(self, bodies: list[bytes | bytearray], counts: list[int] | None) -> int:
        """A run of plain pushes, all bodies of one size; returns the first one's offset."""
        offset, size = self.next, len(bodies[0])
        total = size * len(bodies)
        joined_bytes = self._joined_bytes + total
        if joined_bytes > JOIN_BYTES or size > SMALL_BYTES:
            return self._add_bulky(bodies, counts)
        self._joined += bodies
        self._joined_bytes = joined_bytes
        self.size += total
        self.next = offset + (len(bodies) if counts is None else sum(counts))
        return offset

    def _add_bulky(self, bodies: list[bytes | bytearray], counts: list[int] | None) -> int:
        """What does not fit into the batch being joined, or should not be copied."""
        offset, size = self.next, len(bodies[0])
        if size > SMALL_BYTES:
            for i, body in enumerate(bodies):
                self.add(Batch(body, LINES, counts[i] if counts else 1, body_sum(body)))
            return offset
        self._close_joined()
        most = max(1, JOIN_BYTES // size)
        for start in range(0, len(bodies), most):
            some = slice(start, start + most)
            self.add_plain(bodies[some], counts and counts[some])
        return offset

    def add(self, batch: Batch) -> int:
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
        self.buffers += (header, body)
        self.placed.append(Placed(offset, len(header) + len(body)))
        self.next = self._joined_first = offset + messages
        return offset
