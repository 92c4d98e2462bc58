"""The buffer of a blocking writer: single messages in, batches out.

`write`, in `message_append`, takes no lock: it appends to a list and adds to a count, and takes the
lock only when the count exceeds the limit. A lock per message would more than double its cost. This
is safe with threads:

- append, slice and slice deletion of a list are atomic, the list is never replaced, and only the
  holder of the lock removes messages: no message is lost or duplicated;
- the count can lose an addition when threads race. Then a batch is a little larger or smaller;
- only the holder of the lock writes `_limit`. It is EXCEEDED whenever the next write must take the
  lock: the buffer is empty, so that the linger time must be started, or the writer has failed.

It is safe with signals: a batch that was accepted has a number, so its messages are removed from
the buffer exactly when they are queued.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from time import monotonic
from typing import Literal

from logd.client.batch_encoder import BatchEncoder
from logd.client.delivery import Delivery, closed
from logd.client.message_append import EXCEEDED, MessageAppend
from logd.client.sender import Sender
from logd.client.unacked import UnackedBatch

Full = Literal["wait", "raise", "drop"]


class WriteBuffer(MessageAppend):
    """The base class of Writer, which sets `_delivery` and `_sender`."""

    _delivery: Delivery
    _sender: Sender

    def __init__(
        self, topic: str, *, batch_bytes: int, linger_s: float | None, compress: bool, full: Full
    ) -> None:
        if batch_bytes < 1:
            raise ValueError("batch_bytes must be at least 1")
        super().__init__()
        self._topic = topic
        self._batch_bytes, self._linger_s = batch_bytes, linger_s or 0.0
        self._full: Full = full
        self._encoder = BatchEncoder(topic, compressed=compress)
        self._lock = threading.Lock()
        self._oldest_s = 0.0  # when the oldest buffered message was written
        self._cut = 0  # messages that were removed from the buffer so far
        self._futures: dict[int, Future[int]] = {}  # by the number of messages written before
        self._closed = False
        self.dropped = 0

    def write_many(self, messages: Iterable[bytes]) -> None:
        """Like `write` for each message."""
        deque(map(self.write, messages), maxlen=0)  # a loop without Python code for each message

    def submit(self, message: bytes) -> Future[int]:
        """Like `write`; the future gets the offset of the message when it is stored."""
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
            self._cut_batches(message)
        return future

    # -- with the lock held ---------------------------------------------------------------------

    def _check(self) -> None:
        failure = self._delivery.failure
        if failure is None and not self._closed:
            return
        self._discard(failure or closed())
        if failure is not None:
            # Without the old traceback, which would grow with every call.
            raise failure.with_traceback(None)
        raise ValueError("this writer is closed")

    def _discard(self, error: Exception) -> None:
        """Empty the buffer: its messages will never be sent."""
        self._buffer.clear()
        self._limit = EXCEEDED
        self._delivery.resolve(list(self._futures.items()), error)
        self._futures.clear()

    def _exceed_limit(self, message: bytes) -> None:
        with self._lock:
            self._check()
            self._cut_batches(message)

    def _cut_batches(self, message: bytes) -> None:
        """Start a batch with the newest message, or end the batch that it does not fit into."""
        if self._limit == EXCEEDED and self._buffer:
            self._begin()
        while self._buffer and self._size > self._limit:
            if self._delivery.is_full or not self._sent(len(self._buffer) - 1 or 1):
                if self._full != "wait":
                    self._drop(message)
                    return
                self._wait()

    def _wait(self, end_s: float | None = None) -> None:
        """Until something may have changed; TimeoutError when the time `end_s` has come."""
        timeout_s = self._delivery.disk_retry_s
        if end_s is not None:
            left_s = end_s - monotonic()
            if left_s <= 0:
                raise TimeoutError(self._delivery.describe_queue())
            timeout_s = left_s if timeout_s is None else min(left_s, timeout_s)
        self._sender.wait(timeout_s)
        self._check()

    def _drop(self, message: bytes) -> None:
        """Remove a message from the buffer again: there is no room for another batch."""
        place = self._place_of(message)
        if place is None:
            return  # another thread has queued it
        del self._buffer[place]
        self._size -= len(message) + 1
        if not self._buffer:
            self._limit = EXCEEDED
        before, at = self._futures, self._cut + place
        self._futures = {p - (p > at): future for p, future in before.items() if p != at}
        if at in before:
            self._delivery.resolve([(0, before[at])], self._delivery.full_error())
        self._refuse(1)

    def _refuse(self, messages: int) -> None:
        if self._full == "raise":
            raise self._delivery.full_error()
        self.dropped += messages

    def _place_of(self, message: bytes, *, is_new: bool = False) -> int | None:
        """The place of the newest message of this thread; other threads may have added more."""
        for place in range(len(self._buffer) - 1, -1, -1):
            is_taken = is_new and self._cut + place in self._futures
            if self._buffer[place] is message and not is_taken:
                return place
        return None

    def _begin(self) -> None:
        """Count the messages in the buffer, and start their linger time."""
        self._oldest_s = monotonic()
        self._size = sum(map(len, self._buffer)) + len(self._buffer)
        if self._linger_s:
            self._sender.request_turn(self._linger_s)
        self._limit = self._batch_bytes

    def _sent(self, count: int) -> bool:
        """Queue the oldest messages of the buffer; False if the spool's disk refused them."""
        try:
            self._send(count)
        except OSError:
            return False
        return True

    def _send(self, count: int) -> None:
        while count > 0:
            # Threads may write large messages at the same time: each needs its own batch.
            batch = self._encoder.encode(self._buffer[:count], 2 * self._batch_bytes)
            count -= batch.messages
            self._add(batch)
            if self._buffer and self._delivery.failure is None:
                self._begin()
            self._sender.send_now()

    def _add(self, batch: UnackedBatch) -> None:
        end = self._cut + batch.messages
        if self._futures:
            futures = self._futures.items()
            batch.futures += [(p - self._cut, f) for p, f in futures if self._cut <= p < end]
        try:
            self._delivery.add(batch, monotonic())
        finally:
            if batch.number:
                del self._buffer[: batch.messages]
                # After the removal: a write that read the old limit is in the buffer by now.
                self._limit = EXCEEDED
                self._cut = end
        if batch.futures:
            self._futures = {p: f for p, f in self._futures.items() if p >= end}

    # -- for the sender ---------------------------------------------------------------------------

    def _add_due(self, now_s: float) -> float | None:
        if not self._buffer or not self._linger_s:
            return None
        left_s = self._oldest_s + self._linger_s - now_s
        if left_s > 0:
            return left_s
        if self._delivery.is_full:
            return None  # progress causes another turn
        if not self._sent(len(self._buffer)):
            return self._delivery.disk_retry_s
        return self._linger_s if self._buffer else None

    def _failed(self) -> None:
        self._limit = EXCEEDED  # the next write raises the failure
