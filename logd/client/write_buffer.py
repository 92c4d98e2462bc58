"""Messages one by one in, batches out: the half of a writer that a program's threads meet.

`write`, in `intake`, takes no lock: it appends to a list and adds to a count, and only when the
count passes the limit does it take the lock and `_attend`. A lock per message would more than
double what it takes. Why that is safe with threads:

- a list's append, slice and slice deletion are atomic, the list is never replaced, and only the
  holder of the lock takes messages out of it: no message is lost or doubled;
- the count can lose an addition when threads race. Then a batch is a little larger or smaller;
- `_limit` is written by the holder of the lock alone, and is -1 whenever the next write must take
  the lock: nothing is buffered, so that the linger must be started, or the writer has failed.

And with signals: a batch that was taken over has a number, so that its messages leave the buffer
exactly when they are somewhere else.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from itertools import islice
from time import monotonic
from typing import Literal

from logd.client.batch_encoder import BatchEncoder
from logd.client.delivery import Delivery
from logd.client.delivery_policy import closed
from logd.client.message_append import ATTEND, MessageAppend
from logd.client.unacked import UnackedBatch

DISK_RETRY_S = 1.0  # where the spool's disk took nothing more

_PIECE = 64  # messages that write_many looks at together

Full = Literal["wait", "raise", "drop"]


class QueueFull(Exception):
    """So much waits for the daemon that the message was not taken. Try again later, or drop it."""


class WriteBuffer(MessageAppend):
    """The buffer of a writer. Whoever inherits it has `_delivery` take the batches."""

    __slots__ = (
        "_batch_bytes",
        "_closed",
        "_cut",
        "_delivery",
        "_disk_error",
        "_full",
        "_futures",
        "_linger_s",
        "_lock",
        "_oldest_s",
        "_packer",
        "_room_bytes",
        "_topic",
        "dropped",
    )
    _delivery: Delivery

    def __init__(
        self, topic: str, *, batch_bytes: int, linger_s: float | None, compress: bool, full: Full,
        room_bytes: int,
    ) -> None:  # fmt: skip
        if batch_bytes < 1:
            raise ValueError("batch_bytes must be at least 1")
        super().__init__()
        self._topic = topic
        self._batch_bytes, self._linger_s = batch_bytes, linger_s or 0.0
        self._full, self._room_bytes = full, room_bytes
        self._packer = BatchEncoder(topic, compressed=compress)
        self._lock = threading.Lock()
        self._oldest_s = 0.0  # when the oldest buffered message came
        self._cut = 0  # messages that have left the buffer so far
        self._futures: dict[int, Future[int]] = {}  # by how many messages came before
        self._disk_error: OSError | None = None
        self._closed = False
        self.dropped = 0

    def write_many(self, messages: Iterable[bytes]) -> None:
        """The same as `write` for each, at half the cost."""
        rest = iter(messages)
        while piece := list(islice(rest, _PIECE)):
            if set(map(type, piece)) == {bytes}:
                size = sum(map(len, piece)) + len(piece)
                if self._size + size <= self._limit:
                    self._buffer.extend(piece)
                    self._size += size
                    if self._size > self._limit:
                        self._attend(piece[-1])
                    continue
            for message in piece:
                self.write(message)

    def submit(self, message: bytes) -> Future[int]:
        """The same as `write`, with a future that gets the message's offset when it is stored."""
        if type(message) is not bytes:
            raise TypeError(f"a message is bytes, not {type(message).__name__}")
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()  # it cannot be cancelled
        with self._lock:
            self._check()
            self._buffer.append(message)
            self._size += len(message) + 1
            place = self._place_of(message, is_new=True)
            assert place is not None
            self._futures[self._cut + place] = future
            self._sort(message)
        return future

    # -- with the lock held ---------------------------------------------------------------------

    def _check(self) -> None:
        failure = self._delivery.failure
        if failure is None and not self._closed:
            return
        self._discard(failure or closed())
        if failure is not None:
            # Without its old traceback, which would grow with every call that ignores it.
            raise failure.with_traceback(None)
        raise ValueError("this writer is closed")

    def _discard(self, error: Exception) -> None:
        """Empty the buffer: what is in it will never be sent."""
        self._buffer.clear()
        self._limit = ATTEND
        self._delivery.resolve(list(self._futures.items()), error)
        self._futures.clear()

    def _attend(self, message: bytes) -> None:
        """What a write does that passed the limit."""
        with self._lock:
            self._check()
            self._sort(message)

    def _sort(self, message: bytes) -> None:
        """The newest message passed the limit, or there is none yet: begin a batch, or end one."""
        if self._limit == ATTEND and self._buffer:
            self._begin()
        while self._buffer and self._size > self._limit:
            if self._is_full or not self._sent(len(self._buffer) - 1 or 1):
                if self._full != "wait":
                    self._drop(message)
                    return
                self._wait(None)

    @property
    def _is_full(self) -> bool:
        # Where all is done one batch more is always taken: a spool keeps its newest file.
        return (
            self._delivery.backlog.size >= self._room_bytes and not self._delivery.backlog.is_done
        )

    def _wait(self, timeout_s: float | None) -> None:
        if self._disk_error is not None:
            timeout_s = min(timeout_s or DISK_RETRY_S, DISK_RETRY_S)
        self._delivery.wait(timeout_s)
        self._check()

    def _drop(self, message: bytes) -> None:
        """Take a message back out of the buffer: there is no room to make a batch."""
        place = self._place_of(message)
        if place is None:
            return  # another thread has sent it
        del self._buffer[place]
        self._size -= len(message) + 1
        if not self._buffer:
            self._limit = ATTEND
        before, at = self._futures, self._cut + place
        self._futures = {p - (p > at): future for p, future in before.items() if p != at}
        if at in before:
            self._delivery.resolve([(0, before[at])], QueueFull(self._what_waits()))
        self._refuse(1)

    def _refuse(self, messages: int) -> None:
        if self._full == "raise":
            raise QueueFull(self._what_waits()) from self._disk_error
        self.dropped += messages

    def _what_waits(self) -> str:
        text = f"{self._delivery.backlog.size} bytes still wait for the daemon of {self._topic}"
        return text if self._disk_error is None else f"{text}, and {self._disk_error}"

    def _place_of(self, message: bytes, *, is_new: bool = False) -> int | None:
        """Where in the buffer a message is that was added last, but for what other threads add."""
        for place in range(len(self._buffer) - 1, -1, -1):
            is_taken = is_new and self._cut + place in self._futures
            if self._buffer[place] is message and not is_taken:
                return place
        return None

    def _begin(self) -> None:
        """Messages are buffered, and nobody has counted them or watches their age yet."""
        self._oldest_s = monotonic()
        self._size = sum(map(len, self._buffer)) + len(self._buffer)
        if self._linger_s:
            self._delivery.attend(self._linger_s)
        self._limit = self._batch_bytes

    def _sent(self, count: int) -> bool:
        """Make batches of the oldest messages in the buffer; did the spool's disk take them?"""
        try:
            self._send(count)
            self._disk_error = None
        except OSError as error:
            self._disk_error = error
        return self._disk_error is None

    def _send(self, count: int) -> None:
        while count > 0:
            # Threads may write large messages at the same moment: none should share a batch.
            batch = self._packer.pack(self._buffer[:count], 2 * self._batch_bytes)
            count -= batch.messages
            self._add(batch)
            if self._buffer and self._delivery.failure is None:
                self._begin()
            self._delivery.move()

    def _add(self, batch: UnackedBatch) -> None:
        end = self._cut + batch.messages
        if self._futures:
            offers = self._futures.items()
            batch.offers += [(p - self._cut, f) for p, f in offers if self._cut <= p < end]
        try:
            self._delivery.add(batch)
        finally:
            if batch.number:
                del self._buffer[: batch.messages]
                # Only now: a write that still saw the old limit has its message in the buffer.
                self._limit = ATTEND
                self._cut = end
        if batch.offers:
            self._futures = {p: f for p, f in self._futures.items() if p >= end}

    # -- what the delivery asks for ----------------------------------------------------------------

    def tend(self, now_s: float) -> float | None:
        if not self._buffer or not self._linger_s:
            return None
        left_s = self._oldest_s + self._linger_s - now_s
        if left_s > 0:
            return left_s
        if self._is_full:
            return None  # progress wakes the thread, and then this is asked again
        if not self._sent(len(self._buffer)):
            return DISK_RETRY_S
        return self._linger_s if self._buffer else None

    def failed(self) -> None:
        self._limit = ATTEND  # so that the next write notices
