"""The delivery of a writer's batches: what to send, what a reply means, when to retry or give up.

One object for the blocking and the asyncio writer. It has no socket, thread, event loop or clock: a
sender (`sender`, `aio.sender`) reports what happened and when, sends what `next_push` returns,
calls `advance` no later than `wake_at_s` says, and runs the callbacks that `take_callbacks`
returns. The only I/O is the spool, if there is one.

Invariants: `failure` is set once and never cleared. Batches are settled (stored or refused) in the
order in which they were added. A loss is reported once: after a report by offsets, a gap in the
producer's numbers is the same loss until another batch has been stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from logd.client.backoff import Backoff
from logd.client.spool import Spool
from logd.client.unacked import (
    BatchesLost,
    Futures,
    NumberReused,
    Outcome,
    PushRefused,
    RetryLater,
    UnackedBatch,
    UnackedBatches,
    WriterRefused,
)
from logd.errors import LogdError
from logd.wire.addresses import ConnectionLost, Target, addresses, lost
from logd.wire.commands import Pushed
from logd.wire.requests import Push
from logd.wire.topic_identity import TopicIdentity, kept

WINDOW_BYTES = 8 << 20  # batches of a spool that are in memory at a time
DISK_RETRY_S = 1.0  # after the spool's disk refused a batch

Failure = LogdError | OSError  # an OSError is a ConnectionLost, or comes from the spool


class QueueFull(Exception):
    """The message was not accepted because too many bytes are waiting. Try again later."""


class Loss(NamedTuple):
    """Messages that the server had acknowledged and no longer has."""

    topic: str
    reason: str

    def __str__(self) -> str:
        return f"{self.topic}: acknowledged messages are gone: {self.reason}"


def closed() -> ConnectionLost:
    """The error of each message that was not stored when its writer was closed."""
    return ConnectionLost("the writer was closed before this was stored")


class Delivery:
    """`memory_bytes` is for a sender that appends to the spool later: see `unspooled`."""

    def __init__(
        self,
        topic: str,
        target: Target,
        now_s: float,
        *,
        spool: Spool | None,
        producer: str | None,
        max_in_flight: int,
        room_bytes: int,
        memory_bytes: int = 0,
        patience_s: float | None,
        on_loss: Callable[[Loss], None],
        on_refused: Callable[[int, LogdError], None] | None,
    ) -> None:
        self.topic, self.target, self.spool = topic, target, spool
        self.address = ", ".join(addresses(target))
        self._room_bytes, self._memory_bytes = room_bytes, memory_bytes
        self._patience_s, self._on_loss, self._on_refused = patience_s, on_loss, on_refused
        self._unacked = UnackedBatches(
            producer if spool is None else spool.producer,
            is_shared=spool is None and producer is not None,
            max_in_flight=max_in_flight,
            first_own=1 if spool is None else spool.last + 1,
            renamed=(lambda name: None) if spool is None else spool.rename,
        )
        self._unacked.settled = self._settled
        self.failure: Failure | None = None
        self.trouble: Failure | None = None  # the newest error; None while batches are stored
        self.disk_error: OSError | None = None  # of the newest append to the spool
        self.acknowledged = 0  # messages
        self.first_offset: int | None = None
        self.next_offset: int | None = None
        self.unspooled: deque[tuple[UnackedBatch, str]] = deque()  # and their notes
        self._unspooled_bytes = 0
        self._spooled = spool.last if spool else 0
        self._done = spool.acknowledged if spool else 0  # the batch that was settled last
        self._futures: dict[int, Futures] = {}  # of batches that are only in the spool
        self.callbacks: list[Callable[[], object]] = []
        self._backoff = Backoff()
        self.retry_at_s = 0.0  # no attempt to connect or to send before this time
        self._now_s = self._advanced_at_s = now_s
        self._progress_at_s = now_s  # when a batch was settled, or added to an empty queue
        self._identity: TopicIdentity | None = None
        self._kept_up_to = 0  # every acknowledged message is before this offset
        self._is_loss_reported = False

    # -- the queue --------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Has every batch been stored or refused?"""
        return self._is_sent and not self.unspooled

    @property
    def _is_sent(self) -> bool:
        return not self._unacked and (self.spool is None or not self.spool.unread_bytes)

    @property
    def last(self) -> int:
        """The number of the newest batch."""
        return self._unacked.last if self.spool is None else self._spooled + len(self.unspooled)

    def is_settled(self, number: int) -> bool:
        """Has every batch up to this number been stored or refused?"""
        return self._done >= number or self.is_done

    @property
    def is_full(self) -> bool:
        """Is there no room for another batch? An empty queue always has room."""
        if self.is_done:
            return False
        if self.unspooled and (self.disk_error or self._unspooled_bytes >= self._memory_bytes):
            return True
        return self._size >= self._room_bytes

    @property
    def _size(self) -> int:
        """Bytes that are waiting in memory or, with a spool, on disk."""
        if self.spool is None:
            return self._unacked.size
        # A spool keeps its newest segment when all of it is acknowledged.
        return 0 if self.is_done else self.spool.size + self._unspooled_bytes

    @property
    def disk_retry_s(self) -> float | None:
        """After how many seconds to try again to append; None: the disk accepted the last batch."""
        return None if self.disk_error is None else DISK_RETRY_S

    def full_error(self) -> QueueFull:
        error = QueueFull(self.describe_queue())
        error.__cause__ = self.disk_error
        return error

    def describe_queue(self) -> str:
        text = f"{self._size} bytes are waiting to be stored in {self.topic}"
        return text if self.disk_error is None else f"{text}, and {self.disk_error}"

    def add(self, batch: UnackedBatch, now_s: float, note: str = "-") -> None:
        """Accept a batch. OSError: the spool cannot store it, and it was not accepted.

        The batch is accepted exactly when it has a number, whatever a signal interrupts.
        """
        if self.spool is None:
            if self._is_sent:
                self._progress_at_s = now_s
            self._unacked.add(batch)
        elif self._memory_bytes:
            self.unspooled.append((batch, note))
            self._unspooled_bytes += batch.size
        else:
            was_sent = self._is_sent
            try:
                batch.number = self._spooled = self.spool.append(batch.push, batch.messages, note)
            except OSError as error:
                self.disk_error = error
                raise
            self._appended(batch, was_sent, now_s)

    def spooled(self, number: int, now_s: float) -> None:
        """The sender has appended the oldest of `unspooled` to the spool."""
        batch, _ = self.unspooled.popleft()
        self._unspooled_bytes -= batch.size
        was_sent = not self._unacked and self._done == self._spooled
        batch.number = self._spooled = number
        self._appended(batch, was_sent, now_s)

    def _appended(self, batch: UnackedBatch, was_sent: bool, now_s: float) -> None:
        if was_sent:
            self._progress_at_s = now_s
        self.disk_error = None
        if batch.futures:
            self._futures[batch.number] = batch.futures

    def take_back(self, batch: UnackedBatch) -> None:
        """Remove a batch that could not be appended to the spool."""
        self.unspooled = deque(entry for entry in self.unspooled if entry[0] is not batch)
        self._unspooled_bytes -= batch.size

    def forget_settled(self) -> None:
        """Let the spool remove what is settled. OSError."""
        if self.spool is not None and self.has_unforgotten:
            self.spool.forget(self._done)

    @property
    def has_unforgotten(self) -> bool:
        return self.spool is not None and self._done > self.spool.acknowledged

    def _refill(self) -> None:
        while self.spool is not None and self._unacked.size < WINDOW_BYTES:
            found = self.spool.read(self.topic)
            if found is None:
                return
            number, push, messages = found
            self._unacked.add(UnackedBatch(push, messages, self._futures.pop(number, []), number))

    # -- the connection ---------------------------------------------------------------------------

    def wants_connection(self, now_s: float) -> bool:
        return self.failure is None and not self._is_sent and now_s >= self.retry_at_s

    def connected(self, identity: TopicIdentity | None) -> None:
        """There is a connection, and this is what STATS says about the topic: None if no topic."""
        self.trouble = None
        kept_up_to = kept(self._identity, identity, self._kept_up_to)
        is_lost = kept_up_to < self._kept_up_to
        self._identity, self._kept_up_to = identity, kept_up_to
        if is_lost:
            self._is_loss_reported = True
            self._report_loss(f"offsets from {kept_up_to} on were lost in a crash of the server")

    def next_push(self) -> Push | None:
        """The batch to send now, if any. It counts as sent."""
        self._refill()
        return self._unacked.next()

    @property
    def wants_replies(self) -> bool:
        """Are so many batches in flight that it is time to look for replies?"""
        return self._unacked.wants_answers

    def answered(self, reply: Pushed | LogdError, now_s: float) -> None:
        """The reply to the oldest batch in flight."""
        self._now_s = now_s
        self._apply(self._unacked.answered(reply))

    def disconnected(self, error: Failure, now_s: float) -> None:
        """The connection was lost or could not be made. What had no reply is sent again."""
        self._now_s = now_s
        self._postpone(error)
        self._apply(self._unacked.lost())

    def _apply(self, outcome: Outcome | None) -> None:
        match outcome:
            case PushRefused(batch, error):
                if self._on_refused is None:
                    self.fail(error)
                else:
                    self.callbacks.append(partial(self._on_refused, batch.messages, error))
            case RetryLater(error):
                self._postpone(error)
            case BatchesLost(first, last):
                if not self._is_loss_reported:
                    self._report_loss(f"batches {first} to {last} were lost in a crash")
            case NumberReused(error):
                self._report_loss(f"this writer's machine lost part of its spool ({error.text})")
            case WriterRefused(error):
                self.fail(error)

    def _settled(self, batch: UnackedBatch, result: int | LogdError) -> None:
        """A batch was stored at this offset, or refused. A signal may cause a second call."""
        self.resolve(batch.futures, result)
        self._done, self._progress_at_s = batch.number, self._now_s
        if isinstance(result, int):
            self.trouble = None
            self._backoff.reset()
            self._is_loss_reported = False
            if self.first_offset is None:
                self.first_offset = result
            self.next_offset = self._kept_up_to = result + batch.messages
            self.acknowledged += batch.messages  # last, so that a second call does not count again

    def _postpone(self, error: Failure) -> None:
        self.trouble = error
        self.retry_at_s = self._now_s + self._backoff.next_s()

    def _report_loss(self, reason: str) -> None:
        self.callbacks.append(partial(self._on_loss, Loss(self.topic, reason)))

    # -- time -------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> None:
        """Continue after a pause, or fail when the patience has ended."""
        self._now_s = self._advanced_at_s = now_s
        if self._is_sent or self.failure is not None:
            return
        if self._patience_s is not None and now_s - self._progress_at_s > self._patience_s:
            self.fail(self.trouble or lost(self.address, "it did not answer in time"))
        elif now_s >= self.retry_at_s:
            self._unacked.go_on()

    def wake_at_s(self) -> float | None:
        """When to call `advance` again; None: when something happens.

        This depends on the last `advance` and not on the clock: a pause that has ended since then
        still needs one.
        """
        if self._is_sent:
            return None
        ends_s = [self.retry_at_s] if self.retry_at_s > self._advanced_at_s else []
        if self._patience_s is not None:
            ends_s.append(self._progress_at_s + self._patience_s)
        return min(ends_s, default=None)

    # -- the end ----------------------------------------------------------------------------------

    def fail(self, error: Failure) -> None:
        """Nothing that is waiting will be stored by this writer."""
        self.failure = self.failure or error
        self.give_up(self.failure)

    def give_up(self, error: Exception) -> None:
        """Resolve the futures of everything that is waiting. A spool keeps the batches."""
        waiting = [batch.futures for batch in self._unacked.give_up()]
        waiting += [batch.futures for batch, _ in self.unspooled]
        for futures in (*waiting, *self._futures.values()):
            self.resolve(futures, error)
        self._futures.clear()

    def resolve(self, futures: Futures, result: int | Exception) -> None:
        """Schedule the resolution of these futures: with an error, or from this offset on."""
        if futures:
            self.callbacks.append(partial(_resolve, futures, result))

    def take_callbacks(self) -> list[Callable[[], object]]:
        """Futures and the program's own functions, to be called without any lock."""
        callbacks, self.callbacks = self.callbacks, []
        return callbacks


def _resolve(futures: list[tuple[int, Any]], result: int | Exception) -> None:
    for index, future in futures:
        if future.done():
            continue
        if isinstance(result, int):
            future.set_result(result + index)
        else:
            future.set_exception(result)
