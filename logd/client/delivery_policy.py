"""What becomes of a writer's batches: when to try, when to give up, what the program is told.

The blocking and the asyncio writer share it. It has no clock, connection or disk: the caller says
what happened and when, and acts on the events that are returned. The outbox knows what to send;
this module knows the state of the relation to the daemon.

Invariants: `failure` is set once and never cleared. A loss is reported once: after a report by
offsets, a gap in the producer's numbers is the same loss until a batch has been stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from logd.client.backoff import Backoff
from logd.client.unacked import (
    Clash,
    Forgotten,
    Hopeless,
    Later,
    Outcome,
    PushRefused,
    PushStored,
    UnackedBatch,
    UnackedBatches,
)
from logd.errors import LogdError
from logd.wire.addresses import ConnectionLost
from logd.wire.commands import Pushed
from logd.wire.topic_identity import TopicIdentity, kept

Failure = LogdError | OSError  # of the latter mostly ConnectionLost


@dataclass(frozen=True, slots=True)
class Gone:
    """Messages that the daemon had acknowledged and no longer has."""

    reason: str


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Nothing that waits will be stored by this writer."""

    error: Failure


Event = PushRefused | Gone | GivenUp


def closed() -> ConnectionLost:
    """For each message that was not stored when its writer was closed."""
    return ConnectionLost("the writer was closed before this was stored")


class DeliveryPolicy:
    """`silence` is the reason for giving up where nothing was ever heard."""

    def __init__(
        self,
        outbox: UnackedBatches,
        *,
        patience_s: float | None,
        forgives_refusals: bool,
        silence: ConnectionLost,
    ) -> None:
        self.failure: Failure | None = None
        self.trouble: Failure | None = None  # the newest; None while all is well
        self._outbox, self._patience_s, self._silence = outbox, patience_s, silence
        self._forgives_refusals = forgives_refusals
        self._pauses = Backoff()
        self.retry_at_s = 0.0
        self._moved_at_s = 0.0  # when something was settled, or added where nothing waited
        self._seen: TopicIdentity | None = None
        self._next_offset = 0  # after all that was acknowledged
        self._is_loss_told = False

    def begin(self, now_s: float) -> None:
        """Something was added where nothing waited."""
        self._moved_at_s = now_s

    def may_try(self, now_s: float) -> bool:
        """Is it time for the next try?"""
        return self.failure is None and now_s >= self.retry_at_s

    def next_look_s(self, looked_at_s: float) -> float | None:
        """When to `look` again while something waits; None: when something happens.

        By the time of the last look, not by the clock: a pause that has ended since then must not
        be forgotten.
        """
        ends = [self.retry_at_s] if self.retry_at_s > looked_at_s else []
        if self._patience_s is not None:
            ends.append(self._moved_at_s + self._patience_s)
        return min(ends, default=None)

    def look(self, now_s: float) -> list[Event]:
        """While something waits: is a pause over, or the patience?"""
        if self._patience_s is not None and now_s - self._moved_at_s > self._patience_s:
            return self.fail(self.trouble or self._silence)
        if now_s >= self.retry_at_s:
            self._outbox.go_on()
        return []

    def connected(self, seen: TopicIdentity | None) -> list[Event]:
        """A new connection, with what STATS says of the topic: is what was acknowledged there?"""
        self.trouble = None
        first_lost = kept(self._seen, seen, self._next_offset)
        is_lost = first_lost < self._next_offset
        self._seen, self._next_offset = seen, first_lost
        if not is_lost:
            return []
        self._is_loss_told = True
        return [Gone(f"offsets from {first_lost} on, lost with the daemon's machine")]

    def settled(self, batch: UnackedBatch, result: int | LogdError, now_s: float) -> None:
        """A batch was stored at this offset, or refused. May be called twice for the same batch."""
        self._moved_at_s = now_s
        if isinstance(result, int):
            self._next_offset = result + batch.messages
            self._is_loss_told = False

    def answered(self, answer: Pushed | LogdError, now_s: float) -> list[Event]:
        """The answer to the oldest batch that was sent."""
        return self._judge(self._outbox.answered(answer), now_s)

    def lost(self, error: ConnectionLost, now_s: float) -> list[Event]:
        self.put_off(error, now_s)
        return self._judge(self._outbox.lost(), now_s)

    def put_off(self, error: Failure, now_s: float) -> None:
        """It is no use before a pause."""
        self.trouble = error
        self.retry_at_s = now_s + self._pauses.next_s()

    def fail(self, error: Failure) -> list[Event]:
        self.failure = self.failure or error
        return [GivenUp(self.failure)]

    def _judge(self, outcome: Outcome | None, now_s: float) -> list[Event]:
        match outcome:
            case PushStored():
                self.trouble = None
                self._pauses.reset()
            case PushRefused(_, error):
                return [outcome] if self._forgives_refusals else self.fail(error)
            case Later(error):
                self.put_off(error, now_s)
            case Forgotten(first, last):
                if self._is_loss_told:
                    return []
                return [Gone(f"batches {first} to {last}, lost with the daemon's machine")]
            case Clash(error):
                return [Gone(f"this writer's machine forgot what it had sent ({error.text})")]
            case Hopeless(error):
                return self.fail(error)
        return []
