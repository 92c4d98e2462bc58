"""The writer: messages one by one in, batches out, each stored once whatever the network does.

`write` takes no lock: it appends to a list and adds to a count, and only when the count passes the
limit does it take the lock and `_attend`. A lock per message would halve the rate (measured: 460
instead of 240 ns per message). Why that is safe with threads:

- a list's append, slice and slice deletion are atomic, the list is never replaced, and only the
  holder of the lock takes messages out of it: no message is lost or doubled;
- the count can lose an addition when threads race. Then a batch is a little larger or smaller;
- `_limit` is written by the holder of the lock alone, and is -1 whenever the next write must take
  the lock: nothing is buffered, so that the linger must be started, or the writer has failed.

Cutting into batches is here, getting them to the daemon in `delivery`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Literal, Self

from logd.addresses import ConnectionLost, Target, addresses
from logd.commands import checked_topic
from logd.delivery import Delivery, Loss
from logd.errors import BadRequest, LogdError
from logd.outbox import Batch, Outbox
from logd.packing import Packer
from logd.spool import Spool

PATIENCE_S = 60.0
QUEUE_BYTES = 32 << 20
SPOOL_BYTES = 1 << 30
CLOSE_S = 5.0

_ATTEND = -1  # a limit that every write exceeds
_PIECE = 64  # messages that write_many looks at together
_log = logging.getLogger("logd.writer")


class QueueFull(Exception):
    """So much waits for the daemon that the message was not taken. Try again later, or drop it."""


def warn_of_loss(loss: Loss) -> None:
    _log.warning("%s", loss)


class Writer:
    """Writes to one topic, from any number of threads. A context manager; `close` flushes.

    A batch goes out when it has `batch_bytes`, or when its oldest message has waited `linger_s`
    (None or 0: only by size and `flush`). A larger message is a batch of its own.

    What was not acknowledged when a connection ended is sent again, and stored once. The writer
    gives up, with the newest reason, when nothing was acknowledged for `patience_s` (None: never).
    When `queue_bytes` wait, `full` says what becomes of a message: "wait" for room, "raise"
    QueueFull, or "drop" it and count it in `dropped`. With a `spool` directory batches wait there
    instead, up to `spool_bytes`, survive the program, and patience has no end unless it is given.
    A batch that the daemon will never take ends the writer, unless `on_refused` is there to hear
    how many messages that are, and why. `on_loss` hears of what was acknowledged and is gone.

    `acknowledged` counts messages; `first_offset` and `next_offset` span them.
    """

    __slots__ = (
        "_append",
        "_batch_bytes",
        "_buffer",
        "_closed",
        "_delivery",
        "_full",
        "_futures",
        "_limit",
        "_linger_s",
        "_lock",
        "_oldest_s",
        "_on_loss",
        "_on_refused",
        "_packer",
        "_room_bytes",
        "_size",
        "_topic",
        "acknowledged",
        "dropped",
        "first_offset",
        "next_offset",
        "spool",
    )

    def __init__(
        self,
        target: Target,
        topic: str,
        *,
        batch_bytes: int = 64 * 1024,
        linger_s: float | None = 0.01,
        max_in_flight: int = 16,
        compress: bool = False,
        producer: str | None = None,
        full: Literal["wait", "raise", "drop"] = "wait",
        queue_bytes: int = QUEUE_BYTES,
        spool: Path | None = None,
        spool_bytes: int = SPOOL_BYTES,
        spool_fsync: bool = False,
        patience_s: float | None = None,
        timeout_s: float = 10.0,
        connect: Literal["now", "later"] | None = None,
        on_loss: Callable[[Loss], None] = warn_of_loss,
        on_refused: Callable[[int, LogdError], None] | None = None,
    ) -> None:
        """`connect` "now" raises where nobody answers; the default, unless there is a spool."""
        if batch_bytes < 1:
            raise ValueError("batch_bytes must be at least 1")
        addresses(target)
        self._topic = checked_topic(topic)
        self._batch_bytes, self._linger_s = batch_bytes, linger_s or 0.0
        self._full, self._room_bytes = full, spool_bytes if spool else queue_bytes
        self._on_loss, self._on_refused = on_loss, on_refused
        self._packer = Packer(self._topic, compressed=compress)
        self._buffer: list[bytes] = []
        self._append = self._buffer.append
        self._size, self._limit = 0, _ATTEND
        self._oldest_s = 0.0  # when the oldest buffered message came
        self._futures: dict[int, Future[int]] = {}  # by place in the buffer
        self._closed = False
        self.acknowledged = self.dropped = 0
        self.first_offset: int | None = None
        self.next_offset: int | None = None
        self._lock = threading.Lock()
        self.spool = Spool(spool, fsync=spool_fsync) if spool else None
        if patience_s is None and spool is None:
            patience_s = PATIENCE_S
        self._delivery = Delivery(
            target, self._topic, self, self._lock,
            outbox=self._outbox(producer, max_in_flight), spool=self.spool,
            patience_s=patience_s, timeout_s=timeout_s,
        )  # fmt: skip
        if (connect or ("later" if spool else "now")) == "now":
            self._delivery.connect_now()
        elif self.spool is not None:
            self._delivery.attend(0.0)  # something may be left of an earlier life

    def _outbox(self, producer: str | None, max_in_flight: int) -> Outbox:
        if self.spool is None:
            is_shared = producer is not None
            return Outbox(producer, is_shared=is_shared, max_in_flight=max_in_flight)
        rename = self.spool.rename
        return Outbox(self.spool.producer, max_in_flight=max_in_flight, renamed=rename)

    # -- writing --------------------------------------------------------------------------------

    def write(self, message: bytes) -> None:
        """Add one message. It is safe in the log only when `flush` or `close` has returned."""
        if type(message) is not bytes:
            raise TypeError(f"a message is bytes, not {type(message).__name__}")
        self._append(message)
        self._size += len(message) + 1
        if self._size > self._limit:
            self._attend(message)

    def write_many(self, messages: Iterable[bytes]) -> None:
        """The same as `write` for each, at half the cost."""
        rest = iter(messages)
        while piece := list(islice(rest, _PIECE)):
            if set(map(type, piece)) == {bytes}:
                size = sum(map(len, piece)) + len(piece)
                if self._size + size <= self._limit:
                    self._buffer.extend(piece)
                    self._size += size
                    continue
            for message in piece:
                self.write(message)

    def submit(self, message: bytes) -> Future[int]:
        """The same as `write`, with a future that gets the message's offset when it is stored."""
        if type(message) is not bytes:
            raise TypeError(f"a message is bytes, not {type(message).__name__}")
        future: Future[int] = Future()
        with self._lock:
            self._check()
            self._append(message)
            self._size += len(message) + 1
            self._futures[self._place_of(message)] = future
            self._sort(message)
        return future

    def push(self, messages: list[bytes], note: str = "-") -> None:
        """Exactly one batch, behind all that was written before. With a spool it is kept by now."""
        if not messages:
            raise BadRequest("a batch holds at least one message")
        with self._lock:
            self._check()
            if self._is_full and not self._waited():
                self.dropped += len(messages)
                return
            self._send(len(self._buffer))
            self._delivery.add(self._packer.pack(messages), note)
            self._check()

    def flush(self, timeout_s: float | None = None) -> None:
        """Send what is buffered, and wait until everything is acknowledged."""
        end_s = None if timeout_s is None else monotonic() + timeout_s
        with self._lock:
            self._check()
            self._send(len(self._buffer))
            while not self._delivery.is_done and self._delivery.failure is None:
                left_s = None if end_s is None else end_s - monotonic()
                if left_s is not None and left_s <= 0:
                    raise TimeoutError(f"{self._delivery.size} bytes still wait for the daemon")
                self._delivery.wait(left_s)
            self._check()

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, and end. After a failure: end, and raise it once more.

        What is in a spool may stay there: it is waited for no longer than CLOSE_S unless asked.
        """
        if self._closed:
            return
        if timeout_s is None and self.spool is not None:
            timeout_s = CLOSE_S
        try:
            self.flush(timeout_s)
        except TimeoutError:
            if self.spool is None:
                raise
        finally:
            with self._lock:
                self._closed, self._limit = True, _ATTEND
                self._delivery.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except (LogdError, ConnectionLost) as failure:
            if error is None:
                raise
            if error is not failure:
                error.add_note(f"and the writer of {self._topic} failed: {failure}")

    # -- with the lock held ---------------------------------------------------------------------

    def _check(self) -> None:
        failure = self._delivery.failure
        if failure is not None or self._closed:
            self._buffer.clear()
            self._futures.clear()
            self._limit = _ATTEND
        if failure is not None:
            # Without its old traceback, which would grow with every call that ignores it.
            raise failure.with_traceback(None)
        if self._closed:
            raise ValueError("this writer is closed")

    def _attend(self, message: bytes) -> None:
        """What a write does that passed the limit."""
        with self._lock:
            self._check()
            self._sort(message)

    def _sort(self, message: bytes) -> None:
        """The newest message passed the limit, or there is none yet: begin a batch, or end one."""
        if self._limit == _ATTEND and self._buffer:
            self._begin()
        while self._buffer and self._size > self._limit:
            if self._is_full and not self._waited():
                self._drop(message)
                return
            if not self._buffer or self._size <= self._limit:
                return  # another thread has seen to it while this one waited
            alone = len(self._buffer[-1]) >= self._batch_bytes
            self._send(len(self._buffer) - 1 or 1)
            if alone:
                self._send(len(self._buffer))

    @property
    def _is_full(self) -> bool:
        return self._delivery.size >= self._room_bytes

    def _waited(self) -> bool:
        """Make room, as far as that is this writer's way; is there room now?"""
        while self._full == "wait" and self._is_full:
            self._delivery.wait(None)
            self._check()
        return not self._is_full

    def _drop(self, message: bytes) -> None:
        """Take a message back out of the buffer: there is no room to make a batch."""
        place = self._place_of(message, taken=True)
        del self._buffer[place]
        self._size -= len(message) + 1
        future = self._futures.pop(place, None)
        error = QueueFull(f"{self._delivery.size} bytes wait for the daemon of {self._topic}")
        if self._full == "raise":
            raise error
        self.dropped += 1
        if future is not None:
            future.set_exception(error)

    def _place_of(self, message: bytes, *, taken: bool = False) -> int:
        """Where in the buffer a message is that was added last, but for what other threads add."""
        for place in range(len(self._buffer) - 1, -1, -1):
            if self._buffer[place] is message and (taken or place not in self._futures):
                return place
        raise AssertionError("it was added just now")

    def _begin(self) -> None:
        """Messages are buffered, and nobody has counted them or watches their age yet."""
        self._oldest_s = monotonic()
        self._size = sum(map(len, self._buffer)) + len(self._buffer)
        self._limit = self._batch_bytes
        if self._linger_s:
            self._delivery.attend(self._linger_s)

    def _send(self, count: int) -> None:
        """Make a batch, or a few, of the oldest messages in the buffer."""
        messages = self._buffer[:count]
        del self._buffer[:count]
        # In this order: a write that still saw the old limit has its message in the buffer by now.
        self._limit = _ATTEND
        futures = {}
        if self._futures:
            futures = {i: future for i, future in self._futures.items() if i < count}
            later = self._futures.items() - futures.items()
            self._futures = {i - count: future for i, future in later}
        if self._buffer:
            self._begin()
        if messages:
            self._deliver(messages, futures)

    def _deliver(self, messages: list[bytes], futures: dict[int, Future[int]]) -> None:
        batch = self._packer.pack(messages)
        if batch.size > 2 * self._batch_bytes and len(messages) > 1:
            # Threads wrote large messages at the same moment: none should share a batch.
            half = len(messages) // 2
            self._deliver(messages[:half], {i: f for i, f in futures.items() if i < half})
            self._deliver(messages[half:], {i - half: f for i, f in futures.items() if i >= half})
            return
        batch.offers += futures.items()
        self._delivery.add(batch)

    # -- what the delivery asks for ----------------------------------------------------------------

    def tend(self, now_s: float) -> float | None:
        if not self._buffer or not self._linger_s:
            return None
        left_s = self._oldest_s + self._linger_s - now_s
        if left_s > 0:
            return left_s
        if self._is_full:
            return None  # progress wakes the thread, and then this is asked again
        self._send(len(self._buffer))
        return self._linger_s if self._buffer else None

    def stored(self, batch: Batch, offset: int) -> None:
        if self.first_offset is None:
            self.first_offset = offset
        self.next_offset = offset + batch.messages
        self.acknowledged += batch.messages

    @property
    def hears_refusals(self) -> bool:
        return self._on_refused is not None

    def refused(self, batch: Batch, error: LogdError) -> None:
        if self._on_refused is not None:
            self._on_refused(batch.messages, error)

    def lost(self, loss: Loss) -> None:
        self._on_loss(loss)
