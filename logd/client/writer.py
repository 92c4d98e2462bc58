"""The writer: messages in, each stored once whatever the network does.

Cutting messages into batches is `gathering`'s, getting these to the daemon `delivery`'s; this is
what a program makes, waits for and closes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Literal, Self

from logd.client.delivery import Delivery, Loss
from logd.client.delivery_policy import closed
from logd.client.send_queue import SendQueue, new_outbox, open_spool
from logd.client.unacked import UnackedBatch
from logd.client.write_buffer import Full, WriteBuffer
from logd.client.write_buffer import QueueFull as QueueFull
from logd.errors import BadRequest, LogdError
from logd.wire.addresses import Target
from logd.wire.commands import checked_topic

PATIENCE_S = 60.0
QUEUE_BYTES = 32 << 20
SPOOL_BYTES = 1 << 30
CLOSE_S = 5.0

_log = logging.getLogger("logd.writer")


def warn_of_loss(loss: Loss) -> None:
    _log.warning("%s", loss)


class Writer(WriteBuffer):
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
        "_closing",
        "_on_loss",
        "_on_refused",
        "acknowledged",
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
        full: Full = "wait",
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
        super().__init__(
            checked_topic(topic), batch_bytes=batch_bytes, linger_s=linger_s, compress=compress,
            full=full, room_bytes=spool_bytes if spool else queue_bytes,
        )  # fmt: skip
        self._on_loss, self._on_refused = on_loss, on_refused
        self._closing = False
        self.acknowledged = 0
        self.first_offset: int | None = None
        self.next_offset: int | None = None
        self.spool = open_spool(spool, spool_bytes, fsync=spool_fsync) if spool else None
        try:
            self._delivery = Delivery(
                target, self._topic, self, self._lock,
                backlog=SendQueue(new_outbox(self.spool, producer, max_in_flight), self.spool),
                patience_s=PATIENCE_S if patience_s is None and spool is None else patience_s,
                timeout_s=timeout_s,
            )  # fmt: skip
            if (connect or ("later" if spool else "now")) == "now":
                self._delivery.connect_now()
            if not self._delivery.backlog.is_done:
                self._delivery.attend(0.0)  # something is left of an earlier life
        except BaseException:
            if self.spool is not None:
                self.spool.close()
            raise

    @property
    def trouble(self) -> Exception | None:
        """Why nothing is stored at the moment and it tries again; None while all is well."""
        return self._delivery.trouble

    def push(self, messages: list[bytes], note: str = "-") -> None:
        """Exactly one batch, behind all that was written before. With a spool it is kept by now."""
        if not messages:
            raise BadRequest("a batch holds at least one message")
        with self._lock:
            self._check()
            batch = self._packer.pack(messages)
            while self._is_full:
                if self._full != "wait":
                    self._refuse(len(messages))
                    return
                self._wait(None)
            self._send(len(self._buffer))
            self._delivery.add(batch, note)
            self._delivery.move()
            self._check()

    def flush(self, timeout_s: float | None = None) -> None:
        """Send what is buffered, and wait until everything until now is acknowledged."""
        end_s = None if timeout_s is None else monotonic() + timeout_s
        with self._lock:
            self._check()
            while not self._sent(len(self._buffer)):
                self._wait_until(end_s)
            last = self._delivery.backlog.last
            while not self._delivery.backlog.is_settled(last):
                self._wait_until(end_s)
            self._check()

    def _wait_until(self, end_s: float | None) -> None:
        left_s = None if end_s is None else end_s - monotonic()
        if left_s is not None and left_s <= 0:
            raise TimeoutError(self._what_waits())
        self._wait(left_s)

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, and end. After a failure: end, and raise it once more.

        What is in a spool may stay there: it is waited for no longer than CLOSE_S unless asked.
        """
        with self._lock:
            if self._closing:
                return
            self._closing = True
        if timeout_s is None and self.spool is not None:
            timeout_s = CLOSE_S
        try:
            self.flush(timeout_s)
        except TimeoutError:
            if self.spool is None or self._buffer:
                raise
        finally:
            with self._lock:
                self._closed = True
                self._discard(closed())
                self._delivery.end()

    def abandon(self) -> None:
        """In a forked child: close its copies of what is the parent's. The parent's goes on."""
        self._delivery.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except (LogdError, OSError) as failure:
            if error is None:
                raise
            if error is not failure:
                error.add_note(f"and the writer of {self._topic} failed: {failure}")

    # -- what the delivery asks for ----------------------------------------------------------------

    def stored(self, batch: UnackedBatch, offset: int) -> None:
        if self.first_offset is None:
            self.first_offset = offset
        self.next_offset = offset + batch.messages
        self.acknowledged += batch.messages

    @property
    def hears_refusals(self) -> bool:
        return self._on_refused is not None

    def refused(self, batch: UnackedBatch, error: LogdError) -> None:
        if self._on_refused is not None:
            self._on_refused(batch.messages, error)

    def lost(self, loss: Loss) -> None:
        self._on_loss(loss)
