"""The batches that one turn of the event loop writes to a topic, as buffers for one system call.

Small plain pushes are joined into one batch of up to 64 KB: each keeps its own offset and its own
reply, but they share a header and a checksum. Larger pushes, and those with a checksum or an id,
stay the batch that their producer made. Pure: offsets and bytes in, buffers out.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

from logd.batch import JOIN_BYTES, LINES, NO_ID, SMALL_BYTES, Buffer, body_sum, encode_header
from logd.errors import LogdError
from logd.storage.producers import Producers, StoredId
from logd.wire.requests import Pushes


class CheckedBatch(NamedTuple):
    """A checked batch, to be stored as its producer made it."""

    body: Buffer
    enc: str
    messages: int
    sum: str
    id: str = NO_ID


class PendingPush(Protocol):
    """A push that is not acknowledged yet."""

    content: Pushes | CheckedBatch
    clients: int  # how many wait for the acknowledgement
    offset: int  # set before `stored` is called
    messages: int  # how many; only for a CheckedBatch

    def stored(self) -> None: ...
    def refused(self, error: LogdError) -> None: ...


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
        self.placed: list[tuple[int, int]] = []  # offset and size of each batch
        self.size = 0  # in bytes, without the header of a batch that is still being joined
        self._joined: list[Buffer] = []
        self._joined_bytes = 0
        self._joined_first = next_

    @property
    def batches(self) -> int:
        """How many there are, including the one that is still being joined."""
        return len(self.placed) + bool(self._joined)

    def add_alone(self, push: PendingPush) -> bool:
        """Add the only push of this group, if it is one plain batch, as single messages are."""
        content = push.content
        if not isinstance(content, Pushes) or len(content.bodies) > 1:
            return False
        body, counts = content.bodies[0], content.counts
        self.size += len(body)
        messages = 1 if counts is None else counts[0]
        push.offset = self._place(body, LINES, messages, body_sum(body), NO_ID)
        return True

    def add_pending(
        self, pending: deque[PendingPush], producers: Producers, max_bytes: int, max_batches: int
    ) -> list[PendingPush]:
        """Take pushes from `pending` until the group is full; returns those that it holds."""
        pushes: list[PendingPush] = []
        while pending and self.size < max_bytes and self.batches < max_batches:
            push = pending.popleft()
            content = push.content
            if isinstance(content, Pushes):
                push.offset = self.add_plain(content.bodies, content.counts)
            elif not self._add_once(content, push, producers):
                continue
            pushes.append(push)
        self.close_joined()
        return pushes

    def _add_once(self, batch: CheckedBatch, push: PendingPush, producers: Producers) -> bool:
        """Add a batch unless its id shows that it is stored already; False if it is refused."""
        try:
            known = producers.stored(batch.id, batch.sum) if batch.id != NO_ID else None
        except LogdError as error:
            push.refused(error)
            return False
        if known is None:
            known = StoredId(self.add(batch), batch.messages)
            if batch.id != NO_ID:
                producers.stage(batch.id, known, batch.sum)
        push.offset, push.messages = known
        return True

    def add_plain(self, bodies: list[Buffer], counts: list[int] | None) -> int:
        """Add plain pushes, at most one batch of them; returns the offset of the first."""
        offset, size = self.next, len(bodies[0])
        messages = len(bodies) if counts is None else sum(counts)
        if size > SMALL_BYTES and len(bodies) == 1:
            return self.add(CheckedBatch(bodies[0], LINES, messages, body_sum(bodies[0])))
        total = sum(map(len, bodies))
        if self._joined_bytes + total > JOIN_BYTES:
            self.close_joined()
        self._joined += bodies
        self._joined_bytes += total
        self.size += total
        self.next = offset + messages
        return offset

    def add(self, batch: CheckedBatch) -> int:
        """Add one batch as it is; returns its offset."""
        self.close_joined()
        self.size += len(batch.body)
        return self._place(*batch)

    def close_joined(self) -> None:
        """Complete `buffers` and `placed`."""
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
        self.placed.append((offset, len(header) + len(body)))
        self.next = self._joined_first = offset + messages
        return offset
