"""The asyncio writer: stores each message once, whatever happens to the connection.

`write` is a coroutine that usually does not wait: it appends to a list. Only the message that
starts or ends a batch does more, and then yields to the event loop, so that a program that writes
without a pause does not starve its own connection. A message enters the buffer only when there is
room for it: a call that is cancelled while it waits for room has written nothing.

This module cuts messages into batches, `delivery` decides what to send, and `aio.sender` moves
bytes. For one event loop; programs with threads use the blocking `Writer`, which has the same
names.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal, Self

from logd.client.aio.sender import AsyncSender
from logd.client.batch_encoder import BatchEncoder
from logd.client.delivery import Delivery, Failure, Loss
from logd.client.message_append import EXCEEDED
from logd.client.spool import Spool, open_spool
from logd.client.unacked import Futures
from logd.client.writer import CLOSE_S, PATIENCE_S, QUEUE_BYTES, SPOOL_BYTES, warn_of_loss
from logd.errors import BadRequest, LogdError
from logd.wire.addresses import Target, addresses
from logd.wire.commands import checked_topic

_PIECE = 64  # messages that write_many handles together
_log = logging.getLogger("logd.writer")


class AsyncWriter:
    """Writes to one topic, from any number of tasks. Use `async with`, or `open` and `close`.

    The options, counters and guarantees are those of the blocking Writer.
    """

    _delivery: Delivery  # set by `open`, like `_sender`
    _sender: AsyncSender

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
        """With `connect="now"`, the default without a spool, `open` raises if no server answers."""
        if batch_bytes < 1:
            raise ValueError("batch_bytes must be at least 1")
        addresses(target)
        self._topic, self._timeout_s = checked_topic(topic), timeout_s
        self._batch_bytes, self._linger_s, self._full = batch_bytes, linger_s or 0.0, full
        self._open_spool: Callable[[], Spool] | None = None
        if spool is not None:
            self._open_spool = partial(open_spool, spool, spool_bytes, fsync=spool_fsync)
        self._make_delivery = partial(
            Delivery, self._topic, target, producer=producer, max_in_flight=max_in_flight,
            room_bytes=spool_bytes if spool else queue_bytes,
            memory_bytes=queue_bytes if spool_fsync else 0,
            patience_s=PATIENCE_S if patience_s is None and spool is None else patience_s,
            on_loss=on_loss, on_refused=on_refused,
        )  # fmt: skip
        self._connect_now = (connect or ("later" if spool else "now")) == "now"
        self._encoder = BatchEncoder(self._topic, compressed=compress)
        self._buffer: list[bytes] = []
        self._append = self._buffer.append
        self._size, self._limit = 0, EXCEEDED
        self._futures: Futures = []  # by place in the buffer
        self._timer: asyncio.TimerHandle | None = None
        self._is_overdue = False  # the linger time is over, and there was no room
        self._is_open = self._closed = False
        self.dropped = 0
        self.spool: Spool | None = None

    async def open(self) -> Self:
        """Open the spool if there is one, and connect, now or in the background."""
        if self._is_open or self._closed:
            raise RuntimeError("this Writer was opened before; make a new one")
        if self._open_spool is not None:
            self.spool = await _in_thread(self._open_spool)
        try:
            now_s = asyncio.get_running_loop().time()
            self._delivery = self._make_delivery(now_s, spool=self.spool)
            self._sender = AsyncSender(self._delivery, self._timeout_s, self._add_due, self._failed)
            if self._connect_now:
                await self._sender.connect_now()
        except BaseException:
            if self.spool is not None:
                self.spool.close()
            raise
        self._is_open = True
        self._sender.start()
        return self

    @property
    def acknowledged(self) -> int:
        return self._delivery.acknowledged if self._is_open else 0

    @property
    def first_offset(self) -> int | None:
        return self._delivery.first_offset if self._is_open else None

    @property
    def next_offset(self) -> int | None:
        return self._delivery.next_offset if self._is_open else None

    # -- writing --------------------------------------------------------------------------------

    async def write(self, message: bytes) -> None:
        """Add one message. It is safe in the log only when `flush` or `close` has returned."""
        if type(message) is not bytes:
            raise TypeError(f"a message is bytes, not {type(message).__name__}")
        size = self._size + len(message) + 1
        if size <= self._limit:
            self._append(message)
            self._size = size
        else:
            await self._exceed_limit(message)

    async def write_many(self, messages: Iterable[bytes]) -> None:
        """The same as `write` for each, at a fraction of the cost."""
        rest = iter(messages)
        while piece := list(islice(rest, _PIECE)):
            if set(map(type, piece)) == {bytes}:
                size = self._size + sum(map(len, piece)) + len(piece)
                if size <= self._limit:
                    self._buffer.extend(piece)
                    self._size = size
                    continue
            for message in piece:
                await self.write(message)

    def write_nowait(self, message: bytes) -> None:
        """The same as `write` where nothing can wait: QueueFull where there is no room."""
        if type(message) is not bytes:
            raise TypeError(f"a message is bytes, not {type(message).__name__}")
        self._check()
        if not self._fit(message) and not self._is_dropped(1):
            raise self._delivery.full_error()

    async def submit(self, message: bytes) -> int:
        """Write one message and wait until it is stored; its offset.

        Use it from many tasks at once: their messages share batches. When it is cancelled, the
        message may be stored or not.
        """
        if type(message) is not bytes:
            raise TypeError(f"a message is bytes, not {type(message).__name__}")
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        await self._exceed_limit(message, future)
        return await future

    async def push(self, messages: list[bytes], note: str = "-") -> None:
        """Queue one batch after everything written before. With a spool it is on disk on return."""
        if not messages:
            raise BadRequest("a batch holds at least one message")
        self._check()
        batch = self._encoder.encode(messages)
        while self._delivery.is_full:
            if not await self._waited(len(messages)):
                return
        self._cut()
        self._sender.add(batch, note)
        await asyncio.sleep(0)  # a program that pushes without a pause must not starve the loop
        await self._sender.spooled(batch)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send what is buffered, and wait until everything written so far is acknowledged."""
        self._check()
        try:
            async with asyncio.timeout(timeout_s):
                while not self._sent():
                    await self._changed()
                last = self._delivery.last
                while not self._delivery.is_settled(last):
                    await self._changed()
        except TimeoutError:
            raise TimeoutError(self._delivery.describe_queue()) from None

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush and end. After a failure: end, and raise the failure again.

        Batches may stay in a spool: without `timeout_s` it waits for them only CLOSE_S.
        """
        if self._closed or not self._is_open:
            self._closed = True
            return
        if timeout_s is None and self.spool is not None:
            timeout_s = CLOSE_S
        try:
            await self.flush(timeout_s)
        except TimeoutError:
            if self.spool is None or self._buffer:
                raise
        finally:
            self._closed, self._limit = True, EXCEEDED
            self._cancel_timer()
            await self._sender.end()
        if self._delivery.unspooled:
            raise TimeoutError(self._delivery.describe_queue()) from self._delivery.disk_error

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # A cancelled program wants to end soon: what is left has CLOSE_S to be stored.
        is_cancelled = isinstance(error, asyncio.CancelledError)
        try:
            await self.close(CLOSE_S if is_cancelled else None)
        except (LogdError, OSError) as failure:
            if error is None:
                raise
            if error is not failure:
                error.add_note(f"and the writer of {self._topic} failed: {failure}")
            if is_cancelled:
                _log.warning("%s: cancelled before everything was stored: %s", self._topic, failure)

    # -- the buffer -----------------------------------------------------------------------------

    def _check(self) -> None:
        if self._is_open and self._delivery.failure is not None:
            # Without the old traceback, which would grow with every call.
            raise self._delivery.failure.with_traceback(None)
        if self._closed:
            raise ValueError("this writer is closed")
        if not self._is_open:
            raise RuntimeError("write `async with Writer(...)`, or await open() first")

    async def _changed(self) -> None:
        await self._sender.changed()
        self._check()

    async def _exceed_limit(
        self, message: bytes, future: asyncio.Future[int] | None = None
    ) -> None:
        """A write that starts or ends a batch."""
        self._check()
        was_empty = not self._buffer
        while not self._fit(message, future):
            if not await self._waited(1):
                if future is not None:
                    future.set_exception(self._delivery.full_error())
                return
        if not was_empty or not self._buffer:
            await asyncio.sleep(0)  # a batch was queued

    def _fit(self, message: bytes, future: asyncio.Future[int] | None = None) -> bool:
        """Buffer the message; False if a batch has to be queued first and there is no room."""
        size = len(message) + 1
        is_alone = size > self._batch_bytes
        ends_batch = is_alone or self._size + size > self._batch_bytes
        if ends_batch and (self._delivery.is_full or not self._sent()):
            return False
        if not self._buffer:
            self._begin()
        if future is not None:
            self._futures.append((len(self._buffer), future))
        self._append(message)
        self._size += size
        if is_alone and not self._sent():
            self._empty()
            return False
        return True

    async def _waited(self, messages: int) -> bool:
        """Wait for room; False if the messages were dropped instead."""
        if self._full == "raise":
            raise self._delivery.full_error()
        if self._is_dropped(messages):
            return False
        await self._changed()
        return True

    def _is_dropped(self, messages: int) -> bool:
        if self._full == "drop":
            self.dropped += messages
        return self._full == "drop"

    def _begin(self) -> None:
        self._limit = self._batch_bytes
        if self._linger_s:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._linger_s, self._lingered)

    def _sent(self) -> bool:
        """Queue the buffer as a batch; False if the spool's disk refused it."""
        try:
            self._cut()
        except OSError:
            return False
        return True

    def _cut(self) -> None:
        """Queue the buffer as a batch. OSError: the spool refused it, and it stays buffered."""
        if not self._buffer:
            return
        batch = self._encoder.encode(self._buffer)
        batch.futures += self._futures
        self._sender.add(batch)
        self._empty()

    def _empty(self) -> None:
        self._buffer.clear()
        self._futures.clear()
        self._size, self._limit, self._is_overdue = 0, EXCEEDED, False
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _lingered(self) -> None:
        if self._buffer and self._delivery.failure is None:
            self._is_overdue = self._delivery.is_full
            if not self._is_overdue and not self._sent():
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(self._delivery.disk_retry_s or 0.0, self._lingered)

    # -- for the sender ---------------------------------------------------------------------------

    def _add_due(self) -> None:
        if self._is_overdue:
            self._lingered()

    def _failed(self, error: Failure) -> None:
        for _, future in self._futures:
            if not future.done():
                future.set_exception(error)
        self._empty()


async def _in_thread(open_spool: Callable[[], Spool]) -> Spool:
    """Everything that an earlier process has left in the spool is read and checked."""
    opening = asyncio.ensure_future(asyncio.to_thread(open_spool))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        await asyncio.wait([opening])
        if opening.exception() is None:
            opening.result().close()
        raise
