"""Getting a writer's batches to the daemon, through lost connections and restarts of either side.

Everything happens with the writer's lock held, but for connecting and for what belongs to the
program (futures and callbacks). Whoever adds a batch also moves what the socket takes at once, so
that a program that writes a lot does not depend on when the thread gets its turn; the thread, an
`Attendant`, does the rest, and all the waiting.

Nothing of the network raises into the program: what ends a writer is kept in `failure`. Whatever a
signal interrupts here ends the connection: what had no answer is sent again, and stored once.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from time import monotonic
from typing import NamedTuple, Protocol

from logd.client.connect import dial
from logd.client.delivery_policy import DeliveryPolicy, Event, Failure, GivenUp, Gone, closed
from logd.client.nonblocking_socket import NonblockingSocket
from logd.client.send_queue import Offers, SendQueue
from logd.client.unacked import PushRefused, UnackedBatch
from logd.client.worker_thread import WorkerThread
from logd.errors import Internal, LogdError
from logd.wire import commands
from logd.wire.addresses import ConnectionLost, Target, addresses, lost
from logd.wire.topic_identity import TopicIdentity

_LONGEST_SLEEP_S = 60.0
_BUSY_S = 0.01
_WATCH_S = 0.1  # at a time, by a thread that waits


class Loss(NamedTuple):
    """Messages that the daemon had acknowledged and no longer has."""

    topic: str
    reason: str

    def __str__(self) -> str:
        return f"{self.topic}: acknowledged messages are gone: {self.reason}"


class DeliveryOwner(Protocol):
    """The writer. `refused` and `lost` are called without the lock, the others with it."""

    @property
    def hears_refusals(self) -> bool:
        """Else a batch that the daemon will never take is the end."""

    def tend(self, now_s: float) -> float | None:
        """Add what is due; in how many seconds to ask again, None for when something is added."""

    def failed(self) -> None: ...
    def stored(self, batch: UnackedBatch, offset: int) -> None: ...
    def refused(self, batch: UnackedBatch, error: LogdError) -> None: ...
    def lost(self, loss: Loss) -> None: ...


class Delivery:
    def __init__(
        self,
        target: Target,
        topic: str,
        owner: DeliveryOwner,
        lock: threading.Lock,
        *,
        backlog: SendQueue,
        patience_s: float | None,
        timeout_s: float,
    ) -> None:
        self._target, self._topic, self._timeout_s = target, topic, timeout_s
        self._address = ", ".join(addresses(target))
        self.backlog, self._outbox, self._owner = backlog, backlog.outbox, owner
        self._outbox.settled = self._settled
        self._attendant = WorkerThread(lock, self)
        self.attend = self._attendant.attend
        self._shipping = DeliveryPolicy(
            self._outbox,
            patience_s=patience_s,
            forgives_refusals=owner.hears_refusals,
            silence=self._lost_by_silence(),
        )
        self._shipping.begin(monotonic())  # with what an earlier life has left, if anything
        self._link: NonblockingSocket | None = None
        self._heard_at_s = 0.0  # when the daemon showed a sign of life
        self._busy_until_s = 0.0  # till then one of the program's own threads does the work
        self._is_watched = False  # by such a thread

    # -- for the writer, with the lock held -------------------------------------------------------

    @property
    def failure(self) -> Failure | None:
        return self._shipping.failure

    @property
    def trouble(self) -> Failure | None:
        return self._shipping.trouble

    def add(self, batch: UnackedBatch, note: str = "-") -> None:
        """Take over a batch: it has a number from then on. OSError where the spool cannot."""
        if self.backlog.is_done:
            self._shipping.begin(monotonic())
        self.backlog.add(batch, note)

    def move(self) -> None:
        """Send what the socket takes at once, and leave the rest to the thread."""
        now_s = monotonic()
        if self._link is None:
            self.attend(max(0.0, self._shipping.retry_at_s - now_s))
            return
        if self._attendant.is_current:
            self._exchange(self._link)
        else:
            self._exchange(self._link, is_patient=True)
            self._busy_until_s = now_s + _BUSY_S
            self.attend(_BUSY_S)

    def wait(self, timeout_s: float | None) -> None:
        """Until something has moved, or goes wrong for good; or for nothing."""
        if self._link is None or self._is_watched or self._attendant.is_current:
            self._attendant.wait(timeout_s)
            return
        # Whoever waits does the work: to wake another thread and be woken by it costs far more.
        self._is_watched = True
        try:
            self._watch(self._link, _WATCH_S if timeout_s is None else min(timeout_s, _WATCH_S))
        finally:
            self._is_watched = False
            self._busy_until_s = monotonic() + _BUSY_S
            self._attendant.wake_all()
            self.attend(0.0 if self._attendant.has_calls else _BUSY_S)

    def _watch(self, link: NonblockingSocket, timeout_s: float) -> None:
        self._busy_until_s = monotonic() + timeout_s
        poll = select.poll()
        poll.register(link, _events(link))
        self._attendant.unlocked(partial(poll.poll, timeout_s * 1000))
        if self._link is link:
            self._exchange(link)

    def connect_now(self) -> None:
        """The first connection, for a program that wants to know at once that there is none."""
        self._linked(*self._dial())

    def end(self) -> None:
        """Stop, whatever is still waiting. The lock is released while the thread ends."""
        self._attendant.end()
        self._hang_up()
        self._give_up(closed())
        self._attendant.call_later()
        self.backlog.close()

    def abandon(self) -> None:
        """In a forked child: close its copies of what is the parent's, without a word."""
        self._hang_up()
        self._attendant.abandon()
        self.backlog.abandon()

    def resolve(self, offers: Offers, result: int | Exception) -> None:
        """Tell futures, soon and without the lock."""
        for i, future in offers:
            self._attendant.later(
                partial(_resolve, future, result + i if isinstance(result, int) else result)
            )

    # -- the thread's turns ---------------------------------------------------------------------

    def turn(self) -> float:
        now_s = monotonic()
        if self.failure is not None:
            return _LONGEST_SLEEP_S
        due_s = self._owner.tend(now_s)
        if not self.backlog.is_done:
            self._meet(self._shipping.look(now_s))
        if self._link is not None:
            self._tend_link(self._link, now_s)
        elif not self.backlog.is_done and self._shipping.may_try(now_s):
            self._connect()
        return max(0.0, min(self._deadlines_s(now_s, due_s)))

    def watched(self) -> tuple[int, int] | None:
        if self._link is None or self._busy_until_s > monotonic():
            return None
        return self._link.fileno(), _events(self._link)

    def crashed(self, error: Exception) -> None:
        self._fail(Internal(f"a mistake in the writer: {error!r}"))

    def _tend_link(self, link: NonblockingSocket, now_s: float) -> None:
        if self._outbox.in_flight and now_s - self._heard_at_s > self._timeout_s:
            self._lose(self._lost_by_silence())
        else:
            self._exchange(link)

    def _lost_by_silence(self) -> ConnectionLost:
        return lost(self._address, "it did not answer in time")

    def _deadlines_s(self, looked_at_s: float, due_s: float | None) -> Iterator[float]:
        """In how many seconds to look again, whatever happens."""
        now_s = monotonic()
        yield _LONGEST_SLEEP_S if due_s is None else due_s
        if self._busy_until_s > now_s:
            yield self._busy_until_s - now_s
        if not self.backlog.is_done:
            yield self._timeout_s
            next_look_s = self._shipping.next_look_s(looked_at_s)
            if next_look_s is not None:
                yield next_look_s - now_s

    # -- the connection ---------------------------------------------------------------------------

    def _connect(self) -> None:
        try:
            link, seen = self._attendant.unlocked(self._dial)
        except (ConnectionLost, LogdError) as error:
            self._shipping.put_off(error, monotonic())
        else:
            self._linked(link, seen)

    def _dial(self) -> tuple[NonblockingSocket, TopicIdentity | None]:
        return dial(self._target, self._topic, self._timeout_s)

    def _linked(self, link: NonblockingSocket, seen: TopicIdentity | None) -> None:
        self._link, self._heard_at_s = link, monotonic()
        self._meet(self._shipping.connected(seen))
        self._exchange(link)

    def _exchange(self, link: NonblockingSocket, *, is_patient: bool = False) -> None:
        """Send what may be sent, take what has come; all without waiting."""
        try:
            self._send(link)
            if is_patient and not self._outbox.wants_answers:
                return
            answers = link.take_in()
            for answer in answers:
                self._heard_at_s = monotonic()
                self._meet(self._shipping.answered(answer, self._heard_at_s))
                if self.failure is not None:
                    return
            if link.has_ended:
                link.take_in()
            if answers:
                self._send(link)
        except ConnectionLost as error:
            self._lose(error)
        except (LogdError, OSError) as error:  # of the spool
            self._fail(error)
        except BaseException:
            self._lose(lost(self._address, "a signal interrupted it"))
            self.attend(0.0)
            raise

    def _send(self, link: NonblockingSocket) -> None:
        self.backlog.refill(self._topic)
        if not self._outbox.in_flight:
            self._heard_at_s = monotonic()
        while (push := self._outbox.next()) is not None:
            link.send(commands.push(push))
        if link.push_out():
            self._heard_at_s = monotonic()

    def _lose(self, error: ConnectionLost) -> None:
        self._hang_up()
        self._meet(self._shipping.lost(error, monotonic()))

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    # -- outcomes -------------------------------------------------------------------------------

    def _settled(self, batch: UnackedBatch, result: int | LogdError) -> None:
        self.backlog.settle(batch)
        if batch.offers:
            self.resolve(batch.offers, result)
        self._shipping.settled(batch, result, monotonic())
        if isinstance(result, int):
            self._owner.stored(batch, result)  # it counts: so this comes last, see Outbox

    def _meet(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case PushRefused(batch, error):
                    self._attendant.later(partial(self._owner.refused, batch, error))
                case Gone(reason):
                    self._attendant.later(partial(self._owner.lost, Loss(self._topic, reason)))
                case GivenUp(failure):
                    self._hang_up()
                    self._give_up(failure)
                    self._owner.failed()
                    self._attendant.wake_all()

    def _fail(self, error: Failure) -> None:
        self._meet(self._shipping.fail(error))

    def _give_up(self, error: Failure) -> None:
        """Tell all who wait for a batch. A spool keeps it all the same."""
        self.resolve(self.backlog.give_up(), error)


def _events(link: NonblockingSocket) -> int:
    return select.POLLIN | (select.POLLOUT if link.wants_out else 0)


def _resolve(future: Future[int], result: int | Exception) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
