"""The blocking writer: stores each message once, whatever happens to the connection.

`write_buffer` cuts messages into batches, `delivery` decides what to send, and `sender` moves
bytes. This module has what a program constructs, waits for and closes. The asyncio writer is not
generated from the same source: this one is used by many threads and buffers without a lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Literal, Self

from logd.client.delivery import Delivery, Loss, closed
from logd.client.sender import Sender
from logd.client.spool import open_spool
from logd.client.write_buffer import Full, WriteBuffer
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

    A batch is sent when it has `batch_bytes`, or when its oldest message is `linger_s` old (None or
    0: only by size and by `flush`). A larger message is sent as its own batch.

    What was not acknowledged when a connection ended is sent again, and stored once. The writer
    fails with the newest error when nothing was acknowledged for `patience_s` (None: never). While
    `queue_bytes` are waiting, `full` decides what happens to a new message: "wait" for room,
    "raise" QueueFull, or "drop" it and count it in `dropped`. With a `spool` directory, batches
    wait there instead, up to `spool_bytes`, and survive the program; then there is no limit of time
    by default. A batch that the server will never accept ends the writer, unless `on_refused` is
    given: it is called with the number of messages and the error. `on_loss` is called when the
    server has lost messages that it had acknowledged.

    `acknowledged` counts messages; `first_offset` and `next_offset` enclose them.
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
        """`connect="now"`, the default without a spool, raises if no server answers."""
        super().__init__(
            checked_topic(topic), batch_bytes=batch_bytes, linger_s=linger_s, compress=compress,
            full=full,
        )  # fmt: skip
        self._closing = False
        self.spool = open_spool(spool, spool_bytes, fsync=spool_fsync) if spool else None
        try:
            self._delivery = Delivery(
                self._topic, target, monotonic(), spool=self.spool, producer=producer,
                max_in_flight=max_in_flight, room_bytes=spool_bytes if spool else queue_bytes,
                patience_s=PATIENCE_S if patience_s is None and spool is None else patience_s,
                on_loss=on_loss, on_refused=on_refused,
            )  # fmt: skip
            self._sender = Sender(
                self._delivery, self._lock, timeout_s, self._add_due, self._failed
            )
            if (connect or ("later" if spool else "now")) == "now":
                self._sender.connect_now()
            if not self._delivery.is_done:
                self._sender.request_turn(0.0)  # an earlier process has left batches in the spool
        except BaseException:
            if self.spool is not None:
                self.spool.close()
            raise

    @property
    def trouble(self) -> Exception | None:
        """The error because of which nothing is stored at the moment; None while all is well."""
        return self._delivery.trouble

    @property
    def acknowledged(self) -> int:
        return self._delivery.acknowledged

    @property
    def first_offset(self) -> int | None:
        return self._delivery.first_offset

    @property
    def next_offset(self) -> int | None:
        return self._delivery.next_offset

    def push(self, messages: list[bytes], note: str = "-") -> None:
        """Queue one batch after everything written before. With a spool it is on disk on return."""
        if not messages:
            raise BadRequest("a batch holds at least one message")
        with self._lock:
            self._check()
            batch = self._encoder.encode(messages)
            while self._delivery.is_full:
                if self._full != "wait":
                    self._refuse(len(messages))
                    return
                self._wait()
            self._send(len(self._buffer))
            self._delivery.add(batch, monotonic(), note)
            self._sender.send_now()
            self._check()

    def flush(self, timeout_s: float | None = None) -> None:
        """Send what is buffered, and wait until everything written so far is acknowledged."""
        end_s = None if timeout_s is None else monotonic() + timeout_s
        with self._lock:
            self._check()
            while not self._sent(len(self._buffer)):
                self._wait(end_s)
            last = self._delivery.last
            while not self._delivery.is_settled(last):
                self._wait(end_s)
            self._check()

    def close(self, timeout_s: float | None = None) -> None:
        """Flush and end. After a failure: end, and raise the failure again.

        Batches may stay in a spool: without `timeout_s` it waits for them only CLOSE_S.
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
                self._sender.end()

    def abandon(self) -> None:
        """In a forked child: close its copies of the parent's descriptors."""
        self._sender.abandon()

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
