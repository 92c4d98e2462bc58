"""The asyncio writer: messages one by one in, batches out, each stored once.

`write` is a coroutine that in most cases does not wait: it appends to a list. Only the message that
begins a batch or ends one does more, and then the loop gets a turn, so that a program that writes
without a pause does not hold up its own connection. A message enters the buffer only when there is
room for it; whoever is cancelled while waiting for room has written nothing.

Cutting into batches is here, getting them to the daemon in `aio_delivery`. For one loop; a program
with threads takes the blocking `Writer`, which has the same names.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Literal, Self

from logd.client.aio.delivery import DISK_RETRY_S, AsyncDelivery
from logd.client.batch_encoder import BatchEncoder
from logd.client.delivery import Loss
from logd.client.delivery_policy import Failure
from logd.client.send_queue import new_outbox, open_spool
from logd.client.spool import Spool
from logd.client.unacked import UnackedBatch
from logd.client.writer import (
    CLOSE_S,
    PATIENCE_S,
    QUEUE_BYTES,
    SPOOL_BYTES,
    QueueFull,
    warn_of_loss,
)
from logd.errors import BadRequest, LogdError
from logd.wire.addresses import Target, addresses
from logd.wire.commands import checked_topic

_ATTEND = -1  # a limit that every write exceeds
_PIECE = 64  # messages that write_many looks at together
_log = logging.getLogger("logd.writer")


class AsyncWriter:
    """Writes to one topic, from any number of tasks. `async with`, or `open` and `close`.

    The options are those of the blocking Writer. A batch goes out when it has `batch_bytes`, or
    when its oldest message has waited `linger_s` (None or 0: only by size and `flush`).

    What was not acknowledged when a connection ended is sent again, and stored once. The writer
    gives up, with the newest reason, when nothing was acknowledged for `patience_s` (None: never).
    When `queue_bytes` wait, `full` says what becomes of a message: "wait" for room, "raise"
    QueueFull, or "drop" it and count it in `dropped`. With a `spool` directory batches wait there
    instead, up to `spool_bytes`, survive the program, and patience has no end unless it is given.
    A batch that the daemon will never take ends the writer, unless `on_refused` is there to hear
    how many messages that are, and why. `on_loss` hears of what was acknowledged and is gone.

    `acknowledged` counts messages; `first_offset` and `next_offset` span them.
    """

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
        """`connect` "now": `open` raises where nobody answers; the default, unless spooling."""
        if batch_bytes < 1:
            raise ValueError("batch_bytes must be at least 1")
        addresses(target)
        self._target, self._topic, self._timeout_s = target, checked_topic(topic), timeout_s
        self._batch_bytes, self._linger_s = batch_bytes, linger_s or 0.0
        self._full, self._queue_bytes, self._spool_bytes = full, queue_bytes, spool_bytes
        self._on_loss, self._on_refused = on_loss, on_refused
        self._producer, self._max_in_flight = producer, max_in_flight
        self._spool_dir, self._spool_fsync = spool, spool_fsync
        self._patience_s = PATIENCE_S if patience_s is None and spool is None else patience_s
        self._connect_now = (connect or ("later" if spool else "now")) == "now"
        self._packer = BatchEncoder(self._topic, compressed=compress)
        self._buffer: list[bytes] = []
        self._append = self._buffer.append
        self._size, self._limit = 0, _ATTEND
        self._offers: list[tuple[int, asyncio.Future[int]]] = []  # by place in the buffer
        self._timer: asyncio.TimerHandle | None = None
        self._is_overdue = False  # it has lingered long enough, and waits for room
        self._delivery: AsyncDelivery | None = None
        self._closed = False
        self.acknowledged = self.dropped = 0
        self.first_offset: int | None = None
        self.next_offset: int | None = None
        self.spool: Spool | None = None

    async def open(self) -> Self:
        """Take the spool if there is one, and connect, now or in the background."""
        if self._delivery is not None or self._closed:
            raise RuntimeError("this Writer was opened before; make a new one")
        if self._spool_dir is not None:
            self.spool = await self._opened_spool(self._spool_dir)
        try:
            delivery = AsyncDelivery(
                self._target, self._topic, self,
                # A new producer's name is saved on the loop: that is rare, and has to come first.
                outbox=new_outbox(self.spool, self._producer, self._max_in_flight),
                spool=self.spool, in_threads=self._spool_fsync,
                room_bytes=self._spool_bytes if self.spool else self._queue_bytes,
                memory_bytes=self._queue_bytes,
                patience_s=self._patience_s, timeout_s=self._timeout_s,
            )  # fmt: skip
            if self._connect_now:
                await delivery.connect_now()
        except BaseException:
            if self.spool is not None:
                self.spool.close()
            raise
        self._delivery = delivery
        delivery.start()
        return self

    async def _opened_spool(self, directory: Path) -> Spool:
        """In a thread: everything that an earlier life has left there is read and checked."""
        opening = asyncio.ensure_future(
            asyncio.to_thread(open_spool, directory, self._spool_bytes, fsync=self._spool_fsync)
        )
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait([opening])
            if opening.exception() is None:
                opening.result().close()
            raise

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
            await self._attend(message)

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
        delivery = self._check()
        if not self._fit(delivery, message) and not self._is_dropped(1):
            raise self._queue_full(delivery) from delivery.disk_error

    async def submit(self, message: bytes) -> int:
        """Write one message and wait until it is stored; its offset.

        Use it from many tasks at once: their messages share batches. When it is cancelled, the
        message may be stored or not.
        """
        if type(message) is not bytes:
            raise TypeError(f"a message is bytes, not {type(message).__name__}")
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        await self._attend(message, future)
        return await future

    async def push(self, messages: list[bytes], note: str = "-") -> None:
        """Exactly one batch, behind all that was written before. With a spool it is kept by now."""
        if not messages:
            raise BadRequest("a batch holds at least one message")
        delivery = self._check()
        batch = self._packer.pack(messages)
        while delivery.is_full:
            if not await self._waited(delivery, len(messages)):
                return
        self._cut(delivery)
        delivery.add(batch, note)
        await asyncio.sleep(0)  # so that a program that pushes without a pause holds up nobody
        await delivery.kept(batch)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send what is buffered, and wait until everything until now is acknowledged."""
        delivery = self._check()
        try:
            async with asyncio.timeout(timeout_s):
                while not self._sent(delivery):
                    await delivery.moved()
                    self._check()
                last = delivery.last
                while not delivery.is_settled(last):
                    await delivery.moved()
                    self._check()
        except TimeoutError:
            raise TimeoutError(self._what_waits(delivery)) from None

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush, and end. After a failure: end, and raise it once more.

        What is in a spool may stay there: it is waited for no longer than CLOSE_S unless asked.
        """
        if self._closed or self._delivery is None:
            self._closed = True
            return
        if timeout_s is None and self._spool_dir is not None:
            timeout_s = CLOSE_S
        try:
            await self.flush(timeout_s)
        except TimeoutError:
            if self._spool_dir is None or self._buffer:
                raise
        finally:
            self._closed, self._limit = True, _ATTEND
            self._forget_timer()
            await self._delivery.end()
        if not self._delivery.is_kept:
            raise TimeoutError(self._what_waits(self._delivery)) from self._delivery.disk_error

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # Whoever cancels wants an end soon: the daemon has CLOSE_S for what is still here.
        is_cancelled = isinstance(error, asyncio.CancelledError)
        try:
            await self.close(CLOSE_S if is_cancelled else None)
        except (LogdError, OSError) as failure:
            if error is None:
                raise
            if error is not failure:
                error.add_note(f"and the writer of {self._topic} failed: {failure}")
            if is_cancelled:
                _log.warning("%s: cancelled before all was stored: %s", self._topic, failure)

    # -- the buffer -----------------------------------------------------------------------------

    def _check(self) -> AsyncDelivery:
        delivery = self._delivery
        if delivery is not None and delivery.failure is not None:
            # Without its old traceback, which would grow with every call that ignores it.
            raise delivery.failure.with_traceback(None)
        if self._closed:
            raise ValueError("this writer is closed")
        if delivery is None:
            raise RuntimeError("write `async with Writer(...)`, or await open() first")
        return delivery

    async def _attend(self, message: bytes, future: asyncio.Future[int] | None = None) -> None:
        """What a write does that begins a batch, or ends one."""
        delivery = self._check()
        was_empty = not self._buffer
        while not self._fit(delivery, message, future):
            if not await self._waited(delivery, 1):
                if future is not None:
                    future.set_exception(self._queue_full(delivery))
                return
        if not was_empty or not self._buffer:
            await asyncio.sleep(0)  # a batch has gone

    def _fit(
        self, delivery: AsyncDelivery, message: bytes, future: asyncio.Future[int] | None = None
    ) -> bool:
        """Take the message; False where that needs a batch to go for which there is no room."""
        size = len(message) + 1
        is_alone = size > self._batch_bytes
        ends_batch = is_alone or self._size + size > self._batch_bytes
        if ends_batch and (delivery.is_full or not self._sent(delivery)):
            return False
        if not self._buffer:
            self._begin()
        if future is not None:
            self._offers.append((len(self._buffer), future))
        self._append(message)
        self._size += size
        if is_alone and not self._sent(delivery):
            self._empty()
            return False
        return True

    async def _waited(self, delivery: AsyncDelivery, messages: int) -> bool:
        """There is no room: False where that was the end of so many messages; or wait for some."""
        if self._full == "raise":
            raise self._queue_full(delivery) from delivery.disk_error
        if self._is_dropped(messages):
            return False
        await delivery.moved()
        self._check()
        return True

    def _is_dropped(self, messages: int) -> bool:
        if self._full == "drop":
            self.dropped += messages
        return self._full == "drop"

    def _queue_full(self, delivery: AsyncDelivery) -> QueueFull:
        return QueueFull(self._what_waits(delivery))

    def _what_waits(self, delivery: AsyncDelivery) -> str:
        text = f"{delivery.size} bytes still wait for the daemon of {self._topic}"
        return text if delivery.disk_error is None else f"{text}, and {delivery.disk_error}"

    def _begin(self) -> None:
        self._limit = self._batch_bytes
        if self._linger_s:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._linger_s, self._lingered)

    def _sent(self, delivery: AsyncDelivery) -> bool:
        """Make a batch of what is in the buffer; did the spool's disk take it?"""
        try:
            self._cut(delivery)
        except OSError:
            return False
        return True

    def _cut(self, delivery: AsyncDelivery) -> None:
        """The same; OSError where a spool cannot take it. Then it stays in the buffer."""
        if not self._buffer:
            return
        batch = self._packer.pack(self._buffer)
        batch.offers += self._offers
        delivery.add(batch)
        self._empty()

    def _empty(self) -> None:
        self._buffer.clear()
        self._offers.clear()
        self._size, self._limit, self._is_overdue = 0, _ATTEND, False
        self._forget_timer()

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _lingered(self) -> None:
        delivery = self._delivery
        if delivery is not None and self._buffer and delivery.failure is None:
            self._is_overdue = delivery.is_full
            if not self._is_overdue and not self._sent(delivery):
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(DISK_RETRY_S, self._lingered)

    # -- what the delivery tells -------------------------------------------------------------------

    @property
    def hears_refusals(self) -> bool:
        return self._on_refused is not None

    def tend(self) -> None:
        if self._is_overdue:
            self._lingered()

    def stored(self, batch: UnackedBatch, offset: int) -> None:
        if self.first_offset is None:
            self.first_offset = offset
        self.next_offset = offset + batch.messages
        self.acknowledged += batch.messages

    def failed(self, error: Failure) -> None:
        for _, future in self._offers:
            if not future.done():
                future.set_exception(error)
        self._empty()

    def refused(self, batch: UnackedBatch, error: LogdError) -> None:
        if self._on_refused is not None:
            self._on_refused(batch.messages, error)

    def lost(self, loss: Loss) -> None:
        self._on_loss(loss)
