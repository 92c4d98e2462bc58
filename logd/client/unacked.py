"""The batches of a writer that are not acknowledged yet, and what each reply means for them.

No I/O: a sender sends what `next()` returns and reports `answered()` and `lost()`; the outcome says
what follows. Shared by the writers and the Spark sink.

Invariants: batches are sent in order, and their numbers grow by one. A number is used for one body
only. What had no reply when a connection ended is sent again with the same number, so the server
stores it once. When a batch is refused, the server also refuses those in flight after it, because a
number is missing; their replies are awaited before anything else is sent.

The first batch on each connection is sent alone. A server that does not know the producer accepts
any number from it, so a second batch in flight could be stored although the first was refused. The
first batch of a new process is sent alone too: an earlier process may have used its number, see
`NumberReused`.

A signal may interrupt the program anywhere in this module. Then the owner of the connection closes
it and reports `lost()`. To lose and duplicate nothing, `add` and the removal of a batch contain no
call, so Python does not interrupt them, and `settled` is called before the removal.
"""

from __future__ import annotations

import re
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from logd.errors import (
    TRY_AGAIN,
    BadRequest,
    ChecksumMismatch,
    Conflict,
    Faulted,
    Internal,
    IoError,
    LogdError,
    OutOfOrder,
    TooLarge,
)
from logd.wire.commands import Pushed, checked_producer
from logd.wire.requests import Push
from logd.wire.text import counted

MAX_IN_FLIGHT = 512  # well below the number of batches that the server remembers per producer
TRY_LATER = (*TRY_AGAIN, IoError, Internal, ChecksumMismatch, Faulted)
NEVER_ACCEPTED = (BadRequest, TooLarge)  # this batch only; others may be accepted
_LAST = re.compile(r"last=([0-9]{1,19})\b")

Futures = list[tuple[int, Any]]  # the index of a message in its batch, and its future


@dataclass(slots=True)
class UnackedBatch:
    """A push without its id, its number, and the futures that get the offsets of its messages."""

    push: Push
    messages: int
    futures: Futures = field(default_factory=list)
    number: int = 0  # until it is accepted
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = len(self.push.body)


# -- outcomes -----------------------------------------------------------------------------------


class PushRefused(NamedTuple):
    """This batch was dropped, as the server will never store it. Those after it are sent again."""

    batch: UnackedBatch
    error: LogdError


class RetryLater(NamedTuple):
    """Nothing is lost, but the next attempt should follow a pause. Then call `go_on()`."""

    error: LogdError


class BatchesLost(NamedTuple):
    """The server has lost batches that it had acknowledged. Sending continues."""

    first: int
    last: int


class NumberReused(NamedTuple):
    """An earlier process used the number and its spool lost that. Sending continues."""

    error: LogdError


class WriterRefused(NamedTuple):
    """The server will accept no batch of this writer."""

    error: LogdError


Outcome = PushRefused | RetryLater | BatchesLost | NumberReused | WriterRefused


def new_producer() -> str:
    return f"w-{secrets.token_hex(8)}"


class UnackedBatches:
    """Batches get numbers as they are added, unless they have one.

    `settled` is called with each batch before it is removed, and with its offset or the error that
    it was refused with. A signal may cause a second call. `renamed` is called with each new
    producer name. `first_own` is the first number that this process gives.
    """

    def __init__(
        self,
        producer: str | None = None,
        *,
        is_shared: bool = False,
        max_in_flight: int = 16,
        first_own: int = 1,
        renamed: Callable[[str], None] = lambda producer: None,
    ) -> None:
        if not 1 <= max_in_flight <= MAX_IN_FLIGHT:
            raise ValueError(f"max_in_flight must be 1 to {MAX_IN_FLIGHT}")
        self.producer = checked_producer(producer) if producer else new_producer()
        self.settled: Callable[[UnackedBatch, int | LogdError], None] = lambda batch, result: None
        self.in_flight = 0
        self.size = 0  # bytes of all bodies
        self._is_shared = is_shared  # other writers may use the same name by mistake
        self.last = 0  # the newest number
        self._max_in_flight = max_in_flight
        self._renamed = renamed
        self._batches: deque[UnackedBatch] = deque()
        self._first_own = first_own
        self._alone = True
        self._is_new_name = producer is None  # nothing was stored under it
        self._held = False
        self._outcome: Outcome | None = None  # returned when all replies in flight have arrived

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, batch: UnackedBatch) -> None:
        batch.number = self.last = batch.number or self.last + 1
        self.size += batch.size
        self._batches += (batch,)

    def next(self) -> Push | None:
        """The batch to send now, if any. It counts as sent."""
        if self._held or self._outcome or self.in_flight >= min(self._limit, len(self._batches)):
            return None
        batch = self._batches[self.in_flight]
        if batch.number == self._first_own:
            if self.in_flight:
                return None
            self._alone = True
        self.in_flight += 1
        topic, body, enc, messages, sum_, _ = batch.push
        return Push(topic, body, enc, messages, sum_, f"{self.producer}:{batch.number}")

    @property
    def _limit(self) -> int:
        return 1 if self._alone else self._max_in_flight

    @property
    def wants_answers(self) -> bool:
        """Are so many batches in flight that it is time to look for replies?"""
        return self.in_flight * 2 >= self._limit

    def answered(self, answer: Pushed | LogdError) -> Outcome | None:
        """The reply to the oldest batch in flight."""
        self.in_flight -= 1
        if self._outcome is None:
            if isinstance(answer, Pushed):
                return self._stored(answer)
            self._outcome = self._interpret(answer)
        elif isinstance(answer, Pushed):
            text = "the server stored a batch after one that it had refused"
            self._outcome = WriterRefused(Internal(text))
        return None if self.in_flight else self._settle()

    def lost(self) -> Outcome | None:
        """The connection was lost: what had no reply is sent again."""
        self.in_flight, self._alone, self._held = 0, True, False
        return self._settle()

    def go_on(self) -> None:
        self._held = False

    def give_up(self) -> list[UnackedBatch]:
        batches = list(self._batches)
        self._batches.clear()
        self.in_flight = self.size = 0
        return batches

    def _stored(self, pushed: Pushed) -> Outcome | None:
        self._alone = self._is_new_name = False
        batch = self._batches[0]
        if pushed.messages != batch.messages:
            text = f"{pushed.messages} acknowledged of {counted(batch.messages, 'message')} sent"
            return WriterRefused(Internal(text))
        self.settled(batch, pushed.offset)
        self.size -= batch.size
        del self._batches[0]
        return None

    def _interpret(self, error: LogdError) -> Outcome:
        if isinstance(error, OutOfOrder | Conflict):
            return self._interpret_number(error)
        if isinstance(error, NEVER_ACCEPTED):
            return PushRefused(self._batches[0], error)
        return RetryLater(error) if isinstance(error, TRY_LATER) else WriterRefused(error)

    def _interpret_number(self, error: LogdError) -> Outcome:
        if self._is_new_name:
            return WriterRefused(error)  # it may start with any number; another name does not help
        found, due = _LAST.search(error.text), self._batches[0].number - 1
        if isinstance(error, OutOfOrder) and found and int(found[1]) <= due:
            last = int(found[1])
            return RetryLater(error) if last == due else BatchesLost(last + 1, due)
        return WriterRefused(error) if self._is_shared else NumberReused(error)

    def _settle(self) -> Outcome | None:
        outcome, self._outcome = self._outcome, None
        if isinstance(outcome, RetryLater):
            self._held = True
        elif isinstance(outcome, PushRefused | BatchesLost | NumberReused):
            self._rename()
            if isinstance(outcome, PushRefused):
                self.settled(outcome.batch, outcome.error)
                self.size -= outcome.batch.size
                del self._batches[0]
        return outcome

    def _rename(self) -> None:
        """A new name may start with any number; the old one expects the number that is missing."""
        self.producer = new_producer()
        self._alone = self._is_new_name = True
        self._renamed(self.producer)
