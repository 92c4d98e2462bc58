"""The asyncio writer's connection: moves batches and replies between a `Delivery` and a client.

One task does everything, so that nothing needs a lock: it appends to the spool, connects, sends and
takes replies in turn, and then waits until it is woken. A spool that syncs to disk is called in a
thread; the task waits for that call, and nothing else uses the spool meanwhile. Until a batch is in
such a spool it waits in `Delivery.unspooled`. A full disk is tried again.

The error that ends a writer is `Delivery.failure`; only `add` and `spooled` raise to the program.
Decides nothing about retries or replies, see `delivery`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from logd.client.aio.client import AsyncClient
from logd.client.aio.client_commands import find_identity
from logd.client.delivery import Delivery, Failure, closed
from logd.client.unacked import UnackedBatch
from logd.errors import Internal, LogdError
from logd.wire import commands
from logd.wire.addresses import ConnectionLost, lost
from logd.wire.commands import Pushed
from logd.wire.topic_identity import TopicIdentity


class AsyncSender:
    """`add_due()` adds the batch that is due, if there is room for it; `failed(error)` follows the
    writer's failure, and its end."""

    def __init__(
        self, delivery: Delivery, timeout_s: float,
        add_due: Callable[[], None], failed: Callable[[Failure], None],
    ) -> None:  # fmt: skip
        self._delivery, self._timeout_s = delivery, timeout_s
        self._add_due, self._failed, self._spool = add_due, failed, delivery.spool
        self._loop = asyncio.get_running_loop()
        self._client: AsyncClient | None = None
        self._connecting: asyncio.Task[tuple[AsyncClient, TopicIdentity | None]] | None = None
        self._replies: deque[asyncio.Future[Pushed]] = deque()
        self._append_at_s = 0.0  # no attempt to append to the spool before this time
        self._disk_call: asyncio.Future[Any] | None = None
        self._woken = asyncio.Event()
        self._woken.set()  # an earlier process may have left batches in the spool
        self._waiters: list[asyncio.Future[None]] = []
        self._is_ending = False
        self._task: asyncio.Task[None] | None = None

    # -- for the writer -------------------------------------------------------------------------

    def start(self) -> None:
        self._task = self._loop.create_task(self._run(), name="logd-writer")
        self._task.add_done_callback(self._ended)

    async def connect_now(self) -> None:
        """The first connection, for a program that wants an error if there is none."""
        self._connected(*await self._open_connection())

    def add(self, batch: UnackedBatch, note: str = "-") -> None:
        """OSError: a spool cannot store the batch, and it was not accepted."""
        self._delivery.add(batch, self._loop.time(), note)
        self._woken.set()

    async def spooled(self, batch: UnackedBatch) -> None:
        """Until a batch is in the spool. OSError: it cannot be stored, and was taken back."""
        while any(batch is waiting for waiting, _ in self._delivery.unspooled):
            if self._task is None or self._task.done():
                raise self._delivery.failure or closed()
            if self._delivery.disk_error is not None and self._disk_call is None:
                self._delivery.take_back(batch)
                raise self._delivery.disk_error.with_traceback(None)
            await self.changed()

    async def changed(self) -> None:
        """Until something may have changed, or a full disk is to be tried again."""
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await asyncio.wait([waiter], timeout=self._delivery.disk_retry_s)
        finally:
            if not waiter.done():
                self._waiters.remove(waiter)

    async def end(self) -> None:
        """Stop, and give up what is waiting."""
        self._is_ending = True
        self._woken.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    # -- the task -------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while not self._is_ending and self._delivery.failure is None:
                await self._sleep()
                await self._append()
                self._exchange(self._loop.time())
                if self._delivery.has_unforgotten:
                    await self._on_disk(self._delivery.forget_settled)
                self._add_due()
                self._publish()
            if self._delivery.failure is None:
                self._append_at_s = 0.0
                await self._append()  # batches that were added during the last call
        except Exception as error:  # noqa: BLE001  (it becomes the writer's failure)
            self._delivery.fail(_failure(error))
            self._publish()
        finally:
            await self._clean_up()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The end of the task is the end of the writer, whatever the reason."""
        if not self._is_ending or task.cancelled() or task.exception() is not None:
            self._delivery.fail(closed())
        self._delivery.give_up(closed())
        self._failed(self._delivery.failure or closed())
        self._publish()

    async def _clean_up(self) -> None:
        if self._disk_call is not None:
            await asyncio.wait([self._disk_call])
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
            if not self._connecting.cancelled() and self._connecting.exception() is None:
                self._client = self._connecting.result()[0]
        if self._client is not None:
            for reply in self._replies:
                reply.cancel()
            await self._client.close()
        if self._spool is not None:
            self._spool.close()

    async def _sleep(self) -> None:
        ends_s = [self._delivery.wake_at_s()]
        if self._delivery.unspooled and self._delivery.disk_error:
            ends_s.append(self._append_at_s)
        at_s = min((end_s for end_s in ends_s if end_s is not None), default=None)
        timer = None if at_s is None else self._loop.call_at(at_s, self._woken.set)
        await self._woken.wait()
        self._woken.clear()
        if timer is not None:
            timer.cancel()

    def _publish(self) -> None:
        """Tell the program what has happened."""
        if self._delivery.failure is not None:
            self._failed(self._delivery.failure)
        for callback in self._delivery.take_callbacks():
            self._loop.call_soon(callback)  # what it raises must not end the task
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _wake(self, future: asyncio.Future[Any]) -> None:
        if not future.cancelled():
            future.exception()  # handled later; asyncio need not report it
        self._woken.set()

    # -- the spool ------------------------------------------------------------------------------

    async def _append(self) -> None:
        """Append the batches that are waiting now. Those that are added meanwhile wait for the
        next turn, so that each turn also sends."""
        if self._spool is None or self._loop.time() < self._append_at_s:
            return
        for _ in range(len(self._delivery.unspooled)):
            batch, note = self._delivery.unspooled[0]
            try:
                number = await self._on_disk(self._spool.append, batch.push, batch.messages, note)
            except OSError as error:
                self._delivery.disk_error = error
                self._append_at_s = self._loop.time() + (self._delivery.disk_retry_s or 0.0)
                return
            self._append_at_s = 0.0
            self._delivery.spooled(number, self._loop.time())

    async def _on_disk(self, call: Callable[..., Any], *arguments: Any) -> Any:
        if self._spool is None or not self._spool.fsync:
            return call(*arguments)
        disk_call = self._disk_call = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
        try:
            return await asyncio.shield(disk_call)
        finally:
            if disk_call.done():
                self._disk_call = None

    # -- the connection ---------------------------------------------------------------------------

    def _exchange(self, now_s: float) -> None:
        """Take the replies that are there, send what may be sent, or connect."""
        self._take_replies(now_s)
        self._delivery.advance(now_s)
        if self._delivery.failure is not None:
            return
        if self._connecting is not None and self._connecting.done():
            self._finish_connecting(self._connecting, now_s)
        if self._client is not None:
            self._send(self._client, now_s)
        elif self._connecting is None and self._delivery.wants_connection(now_s):
            self._connecting = self._loop.create_task(
                self._open_connection(), name="logd-writer-connect"
            )
            self._connecting.add_done_callback(self._wake)

    async def _open_connection(self) -> tuple[AsyncClient, TopicIdentity | None]:
        client = await AsyncClient(self._delivery.target, timeout_s=self._timeout_s).open()
        try:
            return client, await find_identity(client, self._delivery.topic)
        except BaseException:
            client.abort()
            raise

    def _finish_connecting(
        self, task: asyncio.Task[tuple[AsyncClient, TopicIdentity | None]], now_s: float
    ) -> None:
        self._connecting = None
        error = task.exception()
        if error is None:
            self._connected(*task.result())
        elif isinstance(error, ConnectionLost | LogdError):
            self._delivery.disconnected(error, now_s)
        else:
            raise error

    def _connected(self, client: AsyncClient, identity: TopicIdentity | None) -> None:
        self._client = client
        client.closed.add_done_callback(self._wake)
        self._delivery.connected(identity)

    def _send(self, client: AsyncClient, now_s: float) -> None:
        while (push := self._delivery.next_push()) is not None:
            try:
                reply = client.send(commands.push(push))
            except ConnectionLost as error:
                self._disconnect(error, now_s)
                return
            reply.add_done_callback(self._wake)
            self._replies.append(reply)

    def _take_replies(self, now_s: float) -> None:
        while self._replies and self._replies[0].done() and self._delivery.failure is None:
            reply = self._replies.popleft()
            error = reply.exception()
            if isinstance(error, ConnectionLost):
                self._disconnect(error, now_s)
            elif error is None or isinstance(error, LogdError):
                self._delivery.answered(error or reply.result(), now_s)
        if self._client is not None and not self._client.is_open:
            self._disconnect(lost(self._client.address, "it closed the connection"), now_s)

    def _disconnect(self, error: ConnectionLost, now_s: float) -> None:
        if self._client is not None:
            self._client.abort()
        self._client = None
        for reply in self._replies:
            reply.cancel()
        self._replies.clear()
        self._delivery.disconnected(error, now_s)


def _failure(error: Exception) -> Failure:
    if isinstance(error, LogdError | OSError):
        return error
    failure = Internal(f"a bug in the writer: {error!r}")
    failure.__cause__ = error
    return failure
