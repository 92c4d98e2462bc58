"""The blocking writer's connection: moves batches and replies between a `Delivery` and a socket.

Everything runs with the writer's lock held, except connecting and the program's callbacks. A thread
that adds a batch also sends what the socket accepts at once, so that a program that writes a lot
does not depend on the scheduling of the worker thread; the worker does the rest and all waiting.

No network error is raised to the program: the error that ends a writer is `Delivery.failure`. A
signal that interrupts this module closes the connection: batches without a reply are sent again,
and stored once. Decides nothing about retries or replies, see `delivery`.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic

from logd.client.client import Client
from logd.client.client_commands import find_identity
from logd.client.delivery import Delivery, closed
from logd.client.nonblocking_socket import NonblockingSocket
from logd.client.worker_thread import WorkerThread
from logd.errors import Internal, LogdError
from logd.wire import commands
from logd.wire.addresses import ConnectionLost, lost
from logd.wire.topic_identity import TopicIdentity

_LONGEST_SLEEP_S = 60.0
_BUSY_S = 0.01  # after a program's thread has moved bytes, the worker leaves the socket to it
_WATCH_S = 0.1  # that a waiting thread polls the socket at a time


class Sender:
    """`add_due(now_s)` adds the batch that is due, and returns in how many seconds to call it
    again (None: not yet); `failed()` follows the writer's failure. Both run with the lock held."""

    def __init__(
        self, delivery: Delivery, lock: threading.Lock, timeout_s: float,
        add_due: Callable[[float], float | None], failed: Callable[[], None],
    ) -> None:  # fmt: skip
        self._delivery, self._timeout_s = delivery, timeout_s
        self._add_due, self._failed = add_due, failed
        self._worker = WorkerThread(lock, self)
        self.request_turn = self._worker.request_turn
        self.take_callbacks = delivery.take_callbacks
        self._socket: NonblockingSocket | None = None
        self._busy_until_s = 0.0  # until then a thread of the program does the work
        self._is_watched = False  # a waiting thread polls the socket

    # -- for the writer, with the lock held -------------------------------------------------------

    def send_now(self) -> None:
        """Send what the socket accepts at once, and leave the rest to the worker thread."""
        if self._socket is None:
            self.request_turn(max(0.0, self._delivery.retry_at_s - monotonic()))
        elif self._worker.is_current:
            self._exchange(self._socket)
        else:
            now_s = monotonic()
            self._exchange(self._socket, only_if_many=True)
            self._busy_until_s = now_s + _BUSY_S
            self.request_turn(_BUSY_S)

    def wait(self, timeout_s: float | None) -> None:
        """Until something may have changed; the caller checks what."""
        if self._socket is None or self._is_watched or self._worker.is_current:
            self._worker.wait(timeout_s)
            return
        # The waiting thread does the work: waking another one and being woken costs far more.
        self._is_watched = True
        try:
            self._watch(self._socket, _WATCH_S if timeout_s is None else min(timeout_s, _WATCH_S))
        finally:
            self._is_watched = False
            self._busy_until_s = monotonic() + _BUSY_S
            self._worker.wake_waiters()
            self.request_turn(0.0 if self._delivery.callbacks else _BUSY_S)

    def _watch(self, connection: NonblockingSocket, timeout_s: float) -> None:
        self._busy_until_s = monotonic() + timeout_s
        poll = select.poll()
        poll.register(connection, connection.events)
        self._worker.unlocked(partial(poll.poll, timeout_s * 1000))
        if self._socket is connection:
            self._exchange(connection)

    def connect_now(self) -> None:
        """The first connection, for a program that wants an error if there is none."""
        self._connected(*self._open_connection())

    def end(self) -> None:
        """Stop, and give up what is waiting. The lock is released while the worker ends."""
        self._worker.end()
        self._close_socket()
        self._delivery.give_up(closed())
        self._worker.run_callbacks()
        if self._delivery.spool is not None:
            self._delivery.spool.close()

    def abandon(self) -> None:
        """In a forked child: close its copies of the parent's descriptors."""
        self._close_socket()
        self._worker.abandon()
        if self._delivery.spool is not None:
            self._delivery.spool.abandon()

    # -- turns of the worker thread ---------------------------------------------------------------

    def turn(self) -> float:
        now_s = monotonic()
        if self._delivery.failure is not None:
            return _LONGEST_SLEEP_S
        due_s = self._add_due(now_s)
        self._delivery.advance(now_s)
        if self._delivery.failure is not None:
            self._apply()
        elif self._socket is not None:
            self._exchange(self._socket)
        elif self._delivery.wants_connection(now_s):
            self._connect()
        return max(0.0, min(self._deadlines_s(due_s)))

    def watched(self) -> tuple[int, int] | None:
        if self._socket is None or self._busy_until_s > monotonic():
            return None
        return self._socket.fileno(), self._socket.events

    def crashed(self, error: Exception) -> None:
        self._delivery.fail(Internal(f"a bug in the writer: {error!r}"))
        self._apply()

    def _deadlines_s(self, due_s: float | None) -> Iterator[float]:
        """In how many seconds the next turn is due."""
        now_s = monotonic()
        yield _LONGEST_SLEEP_S if due_s is None else due_s
        if self._busy_until_s > now_s:
            yield self._busy_until_s - now_s
        if not self._delivery.is_done:
            yield self._timeout_s
            wake_at_s = self._delivery.wake_at_s()
            if wake_at_s is not None:
                yield wake_at_s - now_s

    # -- the connection ---------------------------------------------------------------------------

    def _connect(self) -> None:
        try:
            connection, identity = self._worker.unlocked(self._open_connection)
        except (ConnectionLost, LogdError) as error:
            self._delivery.disconnected(error, monotonic())
        else:
            self._connected(connection, identity)

    def _open_connection(self) -> tuple[NonblockingSocket, TopicIdentity | None]:
        client = Client(self._delivery.target, timeout_s=self._timeout_s)
        try:
            identity = find_identity(client, self._delivery.topic)
        except BaseException:
            client.close()
            raise
        connection = client.detach()
        assert connection is not None
        return NonblockingSocket(connection, client.address, self._timeout_s), identity

    def _connected(self, connection: NonblockingSocket, identity: TopicIdentity | None) -> None:
        self._socket = connection
        self._delivery.connected(identity)
        self._exchange(connection)

    def _exchange(self, connection: NonblockingSocket, *, only_if_many: bool = False) -> None:
        """Send what may be sent, and take the replies that are there, without waiting."""
        try:
            self._send(connection)
            if only_if_many and not self._delivery.wants_replies:
                return
            replies = connection.take_in()
            for reply in replies:
                self._delivery.answered(reply, monotonic())
                if self._delivery.failure is not None:
                    break
            else:
                if connection.has_ended:
                    connection.take_in()
                if replies:
                    self._send(connection)
        except ConnectionLost as error:
            self._disconnect(error)
        except (LogdError, OSError) as error:  # of the spool
            self._delivery.fail(error)
        except BaseException:
            self._disconnect(lost(self._delivery.address, "a signal interrupted it"))
            self._apply()
            self.request_turn(0.0)
            raise
        self._apply()

    def _send(self, connection: NonblockingSocket) -> None:
        while (push := self._delivery.next_push()) is not None:
            connection.send(commands.push(push))
        connection.push_out()

    def _disconnect(self, error: ConnectionLost) -> None:
        self._close_socket()
        self._delivery.disconnected(error, monotonic())

    def _apply(self) -> None:
        """Carry out what the delivery has decided."""
        try:
            self._delivery.forget_settled()
        except OSError as error:
            self._delivery.fail(error)
        if self._delivery.failure is not None:
            self._close_socket()
            self._failed()
            self._worker.wake_waiters()

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
