"""What a writer still has to get acknowledged, and what each answer means for it.

Pure: whoever has a connection asks `next()` for what to send, reports `answered()` and `lost()`,
and does what the outcome says. The blocking and the asyncio writer share it.

Always: batches go out in order, and their numbers grow by one. A number is used for one body only.
What had no answer when a connection ended is sent again with its old number, so the daemon stores
it once. When a batch is refused, those behind it on their way are refused too, because a number is
missing; their answers are waited for before anything else is sent.

The first batch on each connection travels alone. A daemon that does not know the producer takes any
number from it, so a second batch on its way could be stored although the first was refused. So does
the first batch of a new life: an earlier one may have used its number, see `Clash`.

A signal may interrupt the program anywhere in here. Then whoever has the connection drops it and
reports `lost()`. So that nothing is lost or doubled by that, `add` and the removal of a batch are
steps without a call in them, which Python does not interrupt, and `settled` comes first.
"""

from __future__ import annotations

import re
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from logd.errors import (
    BadRequest,
    Busy,
    ChecksumMismatch,
    Conflict,
    Faulted,
    Internal,
    IoError,
    LogdError,
    NoSpace,
    OutOfOrder,
    ShuttingDown,
    TooLarge,
)
from logd.wire.commands import Pushed, checked_producer
from logd.wire.requests import Push
from logd.wire.text import counted

MAX_IN_FLIGHT = 512  # well below the batches of a producer that the daemon remembers
TRY_LATER = (Busy, NoSpace, IoError, ShuttingDown, Internal, ChecksumMismatch, Faulted)
TOO_BAD = (BadRequest, TooLarge)  # of this one batch; others may be fine
_LAST = re.compile(r"last=([0-9]{1,19})\b")


@dataclass(slots=True)
class UnackedBatch:
    """A push without its id, its number, and whoever wants to know where its messages landed."""

    push: Push
    messages: int
    offers: list[tuple[int, Any]] = field(default_factory=list)  # (which message, its future)
    number: int = 0  # until somebody has taken it over
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = len(self.push.body)


# -- outcomes -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PushStored:
    batch: UnackedBatch
    offset: int


@dataclass(frozen=True, slots=True)
class PushRefused:
    """This batch cannot be stored and is given up. The ones behind it are sent again."""

    batch: UnackedBatch
    error: LogdError


@dataclass(frozen=True, slots=True)
class Later:
    """Nothing is lost, but it is no use to send more before a pause. Then `go_on()`."""

    error: LogdError


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The daemon no longer has batches that it had acknowledged. Sending goes on."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Clash:
    """An earlier life of this writer, which it forgot, used the number. Sending goes on."""

    error: LogdError


@dataclass(frozen=True, slots=True)
class Hopeless:
    """No batch of this writer will be taken."""

    error: LogdError


Outcome = PushStored | PushRefused | Later | Forgotten | Clash | Hopeless


def new_producer() -> str:
    return f"w-{secrets.token_hex(8)}"


class UnackedBatches:
    """Batches get numbers as they are added, unless they have one.

    `settled` hears of each batch before it leaves: its offset, or why it was refused. A signal may
    make it hear twice. `renamed` hears of new names. `first_own` is the first number of this life.
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
        self.size = 0  # bytes of all bodies in it
        self._is_shared = is_shared  # others may use the name too, by mistake
        self.last = 0  # the number that was given last
        self._max_in_flight = max_in_flight
        self._renamed = renamed
        self._batches: deque[UnackedBatch] = deque()
        self._first_own = first_own
        self._alone = True
        self._is_new_name = producer is None  # nothing was stored under it
        self._held = False
        self._verdict: Outcome | None = None  # given when all answers on their way are here

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, batch: UnackedBatch) -> None:
        batch.number = self.last = batch.number or self.last + 1
        self.size += batch.size
        self._batches += (batch,)

    def next(self) -> Push | None:
        """What to send now, if anything. It counts as sent."""
        if self._held or self._verdict or self.in_flight >= min(self._limit, len(self._batches)):
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
        """Is so much on its way that it is time to look for answers?"""
        return self.in_flight * 2 >= self._limit

    def answered(self, answer: Pushed | LogdError) -> Outcome | None:
        """The answer to the oldest that was sent."""
        self.in_flight -= 1
        if self._verdict is None:
            if isinstance(answer, Pushed):
                return self._stored(answer)
            self._verdict = self._judge(answer)
        elif isinstance(answer, Pushed):
            self._verdict = Hopeless(Internal("a batch was stored behind one that was refused"))
        return None if self.in_flight else self._settle()

    def lost(self) -> Outcome | None:
        """The connection is gone: what had no answer will be sent again."""
        self.in_flight, self._alone, self._held = 0, True, False
        return self._settle()

    def go_on(self) -> None:
        self._held = False

    def give_up(self) -> list[UnackedBatch]:
        batches = list(self._batches)
        self._batches.clear()
        self.in_flight = self.size = 0
        return batches

    def _stored(self, pushed: Pushed) -> Outcome:
        self._alone = self._is_new_name = False
        batch = self._batches[0]
        if pushed.messages != batch.messages:
            text = f"{pushed.messages} acknowledged of {counted(batch.messages, 'message')} sent"
            return Hopeless(Internal(text))
        self.settled(batch, pushed.offset)
        self.size -= batch.size
        del self._batches[0]
        return PushStored(batch, pushed.offset)

    def _judge(self, error: LogdError) -> Outcome:
        if isinstance(error, OutOfOrder | Conflict):
            return self._judge_number(error)
        if isinstance(error, TOO_BAD):
            return PushRefused(self._batches[0], error)
        return Later(error) if isinstance(error, TRY_LATER) else Hopeless(error)

    def _judge_number(self, error: LogdError) -> Outcome:
        if self._is_new_name:
            return Hopeless(error)  # it may start with any number; another name would not help
        found, due = _LAST.search(error.text), self._batches[0].number - 1
        if isinstance(error, OutOfOrder) and found and int(found[1]) <= due:
            last = int(found[1])
            return Later(error) if last == due else Forgotten(last + 1, due)
        return Hopeless(error) if self._is_shared else Clash(error)

    def _settle(self) -> Outcome | None:
        verdict, self._verdict = self._verdict, None
        if isinstance(verdict, Later):
            self._held = True
        elif isinstance(verdict, PushRefused | Forgotten | Clash):
            self._rename()
            if isinstance(verdict, PushRefused):
                self.settled(verdict.batch, verdict.error)
                self.size -= verdict.batch.size
                del self._batches[0]
        return verdict

    def _rename(self) -> None:
        """A new name may start with any number: the old one's next number is not ours any more."""
        self.producer = new_producer()
        self._alone = self._is_new_name = True
        self._renamed(self.producer)
