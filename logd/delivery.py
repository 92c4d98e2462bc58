"""Getting a writer's batches to the daemon, through lost connections and restarts of either side.

Everything happens with the writer's lock held, but for what waits (connecting, and sleeping until
there is something to do) and what belongs to the program (futures and callbacks). Whoever adds a
batch also moves what the socket takes at once, so that a program that writes a lot does not depend
on when the thread gets its turn; the thread does the rest, and all the waiting.

Nothing here raises into the program: what ends a writer is kept in `failure`.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, Protocol

from logd import commands
from logd.addresses import ConnectionLost, Target, lost
from logd.client import Client
from logd.epochs import Seen, kept
from logd.errors import LogdError, NotFound
from logd.link import Link
from logd.outbox import Batch, Clash, Forgotten, Hopeless, Later, Outbox, Outcome, Refused, Stored
from logd.pauses import Pauses
from logd.spool import Spool

WINDOW_BYTES = 8 << 20  # of a spool's batches in memory at a time
_LONGEST_SLEEP_S = 60.0
_BUSY_S = 0.01

Failure = LogdError | ConnectionLost


class Loss(NamedTuple):
    """Messages that the daemon had acknowledged and no longer has."""

    topic: str
    reason: str

    def __str__(self) -> str:
        return f"{self.topic}: acknowledged messages are gone: {self.reason}"


class Owner(Protocol):
    """The writer. `tend` and `stored` are called with the lock held, the others without."""

    @property
    def hears_refusals(self) -> bool:
        """Else a batch that the daemon will never take is the end."""

    def tend(self, now_s: float) -> float | None:
        """Add what is due; in how many seconds to ask again, None for when something is added."""

    def stored(self, batch: Batch, offset: int) -> None: ...
    def refused(self, batch: Batch, error: LogdError) -> None: ...
    def lost(self, loss: Loss) -> None: ...


class Delivery:
    def __init__(
        self,
        target: Target,
        topic: str,
        owner: Owner,
        lock: threading.Lock,
        *,
        outbox: Outbox,
        spool: Spool | None,
        patience_s: float | None,
        timeout_s: float,
    ) -> None:
        self._target, self._topic, self._timeout_s = target, topic, timeout_s
        self._outbox, self._spool, self._lock, self._owner = outbox, spool, lock, owner
        self._patience_s = patience_s
        self.failure: Failure | None = None
        self.trouble: Failure | None = None  # the newest; None while all is well
        self._progress = threading.Condition(lock)
        self._waiting = 0  # threads that wait for it
        self._link: Link | None = None
        self._pauses = Pauses()
        self._retry_at_s = 0.0
        self._moved_at_s = 0.0  # when something was acknowledged, or added where nothing waited
        self._heard_at_s = 0.0
        self._busy_until_s = 0.0  # till then the program's own thread does the work
        self._seen: Seen | None = None
        self._next_offset = 0  # behind all that was acknowledged
        self._offers: dict[int, list[tuple[int, Any]]] = {}  # of batches that are in the spool
        self._later: list[Callable[[], object]] = []  # to be called without the lock
        self._ended = False
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._wakes_at_s = 0.0  # while the thread sleeps
        self._watches_out = False
        self._thread: threading.Thread | None = None

    # -- for the writer, with the lock held -------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Is everything that was added acknowledged?"""
        spool = self._spool
        return not self._outbox and (spool is None or spool.acknowledged == spool.last)

    @property
    def size(self) -> int:
        """Bytes that wait: in memory, or with a spool on disk."""
        return self._outbox.size if self._spool is None else self._spool.size

    def add(self, batch: Batch, note: str = "-") -> None:
        if self.is_done:
            self._moved_at_s = monotonic()
        if self._spool is None:
            self._outbox.add(batch)
        else:
            number = self._spool.append(batch.push, batch.messages, note)
            if batch.offers:
                self._offers[number] = batch.offers
        if self._link is not None:
            self._exchange()
            self._busy_until_s = monotonic() + _BUSY_S
        stuck = self._link is None or (self._link.wants_out and not self._watches_out)
        self.attend(0.0 if stuck else _BUSY_S)

    def attend(self, within_s: float) -> None:
        """Make sure that the thread is there, and has a look before this time is over."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="logd-writer", daemon=True)
            self._thread.start()
        elif self._wakes_at_s > monotonic() + within_s:
            self._wakes_at_s = 0.0
            os.eventfd_write(self._bell, 1)

    def wait(self, timeout_s: float | None) -> None:
        """Until something moves, or goes wrong for good."""
        self._waiting += 1
        self._busy_until_s = 0.0
        self.attend(0.0)
        try:
            self._progress.wait(timeout_s)
        finally:
            self._waiting -= 1

    def connect_now(self) -> None:
        """The first connection, for a program that wants to know at once that there is none."""
        self._linked(*self._dial())

    def end(self) -> None:
        """Stop, whatever is still waiting. The lock is released while the thread ends."""
        self._ended = True
        if self._thread is not None:
            os.eventfd_write(self._bell, 1)
            with self._unlocked():
                self._thread.join()
        self._hang_up()
        for batch in self._outbox.give_up():
            self._settle(batch, None, ConnectionLost("the writer was closed before it was stored"))
        self._call_later()
        if self._spool is not None:
            self._spool.close()
        os.close(self._bell)

    # -- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        with self._lock:
            while not self._ended:
                due_s = None if self.failure else self._owner.tend(monotonic())
                self._work()
                if self._waiting:
                    self._progress.notify_all()
                if not self._call_later() and not self._ended:
                    self._sleep(due_s)

    def _call_later(self) -> bool:
        """Call back, without the lock; True if there was anything to call."""
        later, self._later = self._later, []
        if later:
            with self._unlocked():
                for call in later:
                    call()
        return bool(later)

    def _work(self) -> None:
        now_s = monotonic()
        if self.failure is not None:
            return
        if not self.is_done:
            self._check_patience(now_s)
        if self._link is None:
            if not self.is_done and now_s >= self._retry_at_s:
                self._connect()
        else:
            if now_s >= self._retry_at_s:
                self._outbox.go_on()
            if self._outbox.in_flight and now_s - self._heard_at_s > self._timeout_s:
                self._lose(lost(self._address, "it did not answer in time"))
            else:
                self._exchange()

    def _check_patience(self, now_s: float) -> None:
        if self._patience_s is not None and now_s - self._moved_at_s > self._patience_s:
            self._fail(self.trouble or lost(self._address, "it did not answer in time"))

    def _sleep(self, due_s: float | None) -> None:
        now_s, link = monotonic(), self._link
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        self._watches_out = link is not None and link.wants_out
        busy = self._busy_until_s > now_s and not self._watches_out
        if link is not None and not busy:
            poll.register(link, select.POLLIN | (select.POLLOUT if self._watches_out else 0))
        pause_s = max(0.0, min(self._deadlines_s(now_s, due_s, busy)))
        self._wakes_at_s = now_s + pause_s
        with self._unlocked():
            poll.poll(pause_s * 1000 + 1)
        self._wakes_at_s, self._watches_out = 0.0, False
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            pass

    def _deadlines_s(self, now_s: float, due_s: float | None, busy: bool) -> Iterator[float]:
        """In how many seconds to look again, whatever happens."""
        yield _LONGEST_SLEEP_S if due_s is None else due_s
        if busy:
            yield self._busy_until_s - now_s
        if not self.is_done and self.failure is None:
            yield self._timeout_s
            if self._retry_at_s > now_s:
                yield self._retry_at_s - now_s
            if self._patience_s is not None:
                yield self._moved_at_s + self._patience_s - now_s

    @contextmanager
    def _unlocked(self) -> Iterator[None]:
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()

    # -- the connection ---------------------------------------------------------------------------

    @property
    def _address(self) -> str:
        return str(self._target)

    def _connect(self) -> None:
        try:
            with self._unlocked():
                link, seen = self._dial()
        except (ConnectionLost, LogdError) as error:
            self._put_off(error)
        else:
            self._linked(link, seen)

    def _dial(self) -> tuple[Link, Seen | None]:
        client = Client(self._target, timeout_s=self._timeout_s)
        try:
            seen = _seen(client, self._topic)
        except BaseException:
            client.close()
            raise
        connection = client.detach()
        assert connection is not None
        return Link(connection, client.address), seen

    def _linked(self, link: Link, seen: Seen | None) -> None:
        self._link, self.trouble = link, None
        self._heard_at_s = monotonic()
        first_lost = kept(self._seen, seen, self._next_offset)
        if first_lost < self._next_offset:
            self._report(f"offsets from {first_lost} on, lost with the daemon's machine")
            self._next_offset = 0
        self._seen = seen or self._seen
        self._exchange()

    def _exchange(self) -> None:
        """Send what may be sent, take what has come; all without waiting."""
        assert self._link is not None
        try:
            self._send(self._link)
            for answer in self._link.take_in():
                self._heard_at_s = monotonic()
                self._act(self._outbox.answered(answer))
            if self._link is not None:
                self._send(self._link)
        except ConnectionLost as error:
            self._lose(error)

    def _send(self, link: Link) -> None:
        self._refill()
        if not self._outbox.in_flight:
            self._heard_at_s = monotonic()
        while (push := self._outbox.next()) is not None:
            link.send(commands.push(push))
        link.push_out()

    def _refill(self) -> None:
        """From the spool, as much as is good to have in memory."""
        while self._spool is not None and self._outbox.size < WINDOW_BYTES:
            found = self._spool.read(self._topic)
            if found is None:
                return
            number, push, messages = found
            self._outbox.add(Batch(push, messages, self._offers.pop(number, []), number))

    def _lose(self, error: ConnectionLost) -> None:
        self._hang_up()
        self._put_off(error)
        self._act(self._outbox.lost())

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _put_off(self, error: Failure) -> None:
        self.trouble = error
        self._retry_at_s = monotonic() + self._pauses.next_s()

    # -- outcomes -------------------------------------------------------------------------------

    def _act(self, outcome: Outcome | None) -> None:
        match outcome:
            case Stored(batch, offset):
                self._moved_at_s, self.trouble = monotonic(), None
                self._next_offset = offset + batch.messages
                self._pauses.reset()
                self._forget(batch)
                self._settle(batch, offset, None)
                self._owner.stored(batch, offset)
            case Refused(batch, error):
                self._forget(batch)
                self._settle(batch, None, error)
                if self._owner.hears_refusals:
                    self._later.append(partial(self._owner.refused, batch, error))
                else:
                    self._fail(error)
            case Later(error):
                self._put_off(error)
            case Forgotten(first, last):
                self._report(f"batches {first} to {last}, lost with the daemon's machine")
            case Clash(error):
                self._report(f"this writer's machine forgot what it had sent ({error.text})")
            case Hopeless(error):
                self._fail(error)

    def _forget(self, batch: Batch) -> None:
        if self._spool is not None:
            self._spool.forget(batch.number)

    def _settle(self, batch: Batch, offset: int | None, error: Exception | None) -> None:
        for i, future in batch.offers:
            if error is not None:
                self._later.append(partial(future.set_exception, error))
            elif offset is not None:
                self._later.append(partial(future.set_result, offset + i))

    def _report(self, reason: str) -> None:
        self._later.append(partial(self._owner.lost, Loss(self._topic, reason)))

    def _fail(self, error: Failure) -> None:
        self.failure = error
        self._hang_up()
        for batch in self._outbox.give_up():
            self._settle(batch, None, error)
        self._progress.notify_all()


def _seen(client: Client, topic: str) -> Seen | None:
    try:
        return Seen.of(client.stats(topic))
    except NotFound:
        return None
    except ValueError as error:
        raise lost(client.address, str(error)) from None
