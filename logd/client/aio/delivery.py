"""Getting an asyncio writer's batches to the daemon, through lost connections and restarts.

One task does it all, so that nothing here needs a lock: it keeps, connects, sends and takes answers
in turn, and in between it waits for its bell. What to do is decided by `shipping`. Where a spool
syncs to disk its calls go to a thread; the task waits for them and nobody else touches the spool.
Until a batch is on disk it waits in memory, in `_unkept`. A disk that is full is tried again.

What ends a writer is kept in `failure`; only `add` and `kept` raise into the program, where a spool
cannot take a batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from logd.client.aio.client import AsyncClient
from logd.client.delivery import Loss
from logd.client.delivery_policy import DeliveryPolicy, Event, Failure, GivenUp, Gone, closed
from logd.client.send_queue import WINDOW_BYTES
from logd.client.spool import Spool
from logd.client.unacked import PushRefused, UnackedBatch, UnackedBatches
from logd.errors import Internal, LogdError, NotFound
from logd.wire import commands
from logd.wire.addresses import ConnectionLost, Target, addresses, lost
from logd.wire.commands import Pushed
from logd.wire.topic_identity import TopicIdentity

DISK_RETRY_S = 1.0  # where the spool's disk took nothing more


class AsyncDeliveryOwner(Protocol):
    """The writer. `refused` and `lost` are the program's, and called by the loop."""

    @property
    def hears_refusals(self) -> bool: ...
    def tend(self) -> None:
        """There may be room now for what was due before."""

    def stored(self, batch: UnackedBatch, offset: int) -> None: ...
    def failed(self, error: Failure) -> None: ...
    def refused(self, batch: UnackedBatch, error: LogdError) -> None: ...
    def lost(self, loss: Loss) -> None: ...


class AsyncDelivery:
    def __init__(
        self,
        target: Target,
        topic: str,
        owner: AsyncDeliveryOwner,
        *,
        outbox: UnackedBatches,
        spool: Spool | None,
        room_bytes: int,
        memory_bytes: int,
        in_threads: bool,
        patience_s: float | None,
        timeout_s: float,
    ) -> None:
        self._target, self._topic, self._timeout_s = target, topic, timeout_s
        self._owner, self._outbox, self._spool = owner, outbox, spool
        self._room_bytes, self._memory_bytes = room_bytes, memory_bytes
        self._in_threads = in_threads and spool is not None
        self._shipping = DeliveryPolicy(
            outbox,
            patience_s=patience_s,
            forgives_refusals=owner.hears_refusals,
            silence=lost(", ".join(addresses(target)), "it did not answer in time"),
        )
        outbox.settled = self._settled
        self._loop = asyncio.get_running_loop()
        self._client: AsyncClient | None = None
        self._dialling: asyncio.Task[tuple[AsyncClient, TopicIdentity | None]] | None = None
        self._due: deque[asyncio.Future[Pushed]] = deque()
        self._unkept: deque[tuple[UnackedBatch, str]] = (
            deque()
        )  # on their way to a spool that syncs
        self._unkept_bytes = 0
        self.disk_error: OSError | None = None  # of the newest attempt to keep a batch
        self._disk_retry_at_s = 0.0
        # As of the last call to the spool: a thread may be busy with it now.
        self._spool_bytes = spool.size if spool else 0
        self._last_kept = spool.last if spool else 0
        self._done_up_to = spool.acknowledged if spool else 0  # stored or refused
        self._offers: dict[int, list[tuple[int, Any]]] = {}  # of batches that are in the spool
        self._disk_call: asyncio.Future[Any] | None = None
        self._bell = asyncio.Event()
        self._bell.set()  # something may be left of an earlier life
        self._waiters: list[asyncio.Future[None]] = []
        self._looked_at_s = 0.0
        self._ended = False
        self._task: asyncio.Task[None] | None = None

    # -- for the writer -------------------------------------------------------------------------

    @property
    def failure(self) -> Failure | None:
        return self._shipping.failure

    @property
    def is_done(self) -> bool:
        """Is everything that was added stored, or refused?"""
        return self._is_sent and self.is_kept

    @property
    def is_kept(self) -> bool:
        """Is everything that was added where it belongs: in memory, or in the spool?"""
        return not self._unkept

    @property
    def _is_sent(self) -> bool:
        """Is everything that was kept stored, or refused?"""
        return not self._outbox and (self._spool is None or self._done_up_to == self._last_kept)

    @property
    def last(self) -> int:
        """The number that the batch added last has, or will get from the spool."""
        return self._outbox.last if self._spool is None else self._last_kept + len(self._unkept)

    def is_settled(self, number: int) -> bool:
        """Has every batch up to this one been stored, or refused?"""
        return self._done_up_to >= number or self.is_done

    @property
    def size(self) -> int:
        """Bytes that wait: in memory, or with a spool on disk."""
        if self._spool is None:
            return self._outbox.size
        # A spool keeps its newest file though all in it is done.
        return 0 if self.is_done else self._spool_bytes + self._unkept_bytes

    @property
    def is_full(self) -> bool:
        """Is there no room for another batch? Where nothing waits there always is."""
        if self.is_done:
            return False
        if self._unkept and (self.disk_error or self._unkept_bytes >= self._memory_bytes):
            return True
        return self.size >= self._room_bytes

    def start(self) -> None:
        self._shipping.begin(self._loop.time())  # with what an earlier life has left, if anything
        self._task = self._loop.create_task(self._run(), name="logd-writer")
        self._task.add_done_callback(self._over)

    async def connect_now(self) -> None:
        """The first connection, for a program that wants to know at once that there is none."""
        self._linked(*await self._dial())

    def add(self, batch: UnackedBatch, note: str = "-") -> None:
        """OSError where a spool cannot take it; then nothing has happened."""
        if self._spool is None:
            if self._is_sent:
                self._shipping.begin(self._loop.time())
            self._outbox.add(batch)
        elif self._in_threads:
            self._unkept.append((batch, note))
            self._unkept_bytes += batch.size
        else:
            try:
                number = self._spool.append(batch.push, batch.messages, note)
            except OSError as error:
                self.disk_error = error
                raise
            self._kept(batch, number, self._spool)
        self._bell.set()

    async def kept(self, batch: UnackedBatch) -> None:
        """Until a batch that was added is where it belongs. OSError: it was taken back."""
        while (entry := next((e for e in self._unkept if e[0] is batch), None)) is not None:
            if self._task is None or self._task.done():
                raise self.failure or closed()
            if self.disk_error is not None and self._disk_call is None:
                self._unkept.remove(entry)
                self._unkept_bytes -= batch.size
                raise self.disk_error.with_traceback(None)
            await self.moved()

    async def moved(self) -> None:
        """Until something has happened, or it is time to try again a disk that was full."""
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await asyncio.wait([waiter], timeout=DISK_RETRY_S if self.disk_error else None)
        finally:
            if not waiter.done():
                self._waiters.remove(waiter)

    async def end(self) -> None:
        """Stop, whatever is still waiting."""
        self._ended = True
        self._bell.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    # -- the task -------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while not self._ended and self.failure is None:
                await self._sleep()
                await self._keep()
                self._work(self._loop.time())
                await self._forget()
                self._owner.tend()
                self._wake()
            if self.failure is None:
                self._disk_retry_at_s = 0.0
                await self._keep()  # what came while the disk was busy
        except Exception as error:  # noqa: BLE001  (it becomes the writer's failure)
            self._meet(self._shipping.fail(_failure(error)))  # at once: the spool is closed next
        finally:
            await self._clean_up()

    def _over(self, task: asyncio.Task[None]) -> None:
        """Whatever ended the task has ended the writer."""
        if not self._ended or task.cancelled() or task.exception() is not None:
            self._meet(self._shipping.fail(closed()))
        elif self.failure is None:
            self._give_up(closed())
        self._wake()

    async def _clean_up(self) -> None:
        if self._disk_call is not None:
            await asyncio.wait([self._disk_call])
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.wait([self._dialling])
            if not self._dialling.cancelled() and self._dialling.exception() is None:
                self._client = self._dialling.result()[0]
        if self._client is not None:
            for future in self._due:
                future.cancel()
            await self._client.close()
        if self._spool is not None:
            self._spool.close()

    def _work(self, now_s: float) -> None:
        self._looked_at_s = now_s
        self._take_answers(now_s)
        if self._is_sent:
            return
        self._meet(self._shipping.look(now_s))
        if self.failure is not None:
            return
        if self._client is not None:
            self._send(now_s)
        elif self._dialling is None and self._shipping.may_try(now_s):
            self._dialling = self._loop.create_task(self._dial(), name="logd-writer-connects")
            self._dialling.add_done_callback(self._ring)
        elif self._dialling is not None and self._dialling.done():
            self._dialled(self._dialling, now_s)

    async def _sleep(self) -> None:
        ends_s = [self._disk_retry_at_s] if self._unkept and self.disk_error else []
        if not self._is_sent:
            next_look_s = self._shipping.next_look_s(self._looked_at_s)
            ends_s += [] if next_look_s is None else [next_look_s]
        timer = self._loop.call_at(min(ends_s), self._bell.set) if ends_s else None
        await self._bell.wait()
        self._bell.clear()
        if timer is not None:
            timer.cancel()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _ring(self, future: asyncio.Future[Any]) -> None:
        if not future.cancelled():
            future.exception()  # it is looked at later; asyncio need not complain
        self._bell.set()

    # -- the spool ------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Append what waits for that now. What is added meanwhile waits for the next turn, so that
        sending gets one too."""
        if self._spool is None or self._loop.time() < self._disk_retry_at_s:
            return
        for _ in range(len(self._unkept)):
            batch, note = self._unkept[0]
            try:
                number = await self._on_disk(self._spool.append, batch.push, batch.messages, note)
            except OSError as error:
                self.disk_error = error
                self._disk_retry_at_s = self._loop.time() + DISK_RETRY_S
                return
            self._unkept.popleft()
            self._unkept_bytes -= batch.size
            self._kept(batch, number, self._spool)

    def _kept(self, batch: UnackedBatch, number: int, spool: Spool) -> None:
        if self._is_sent:
            self._shipping.begin(self._loop.time())
        self.disk_error, self._disk_retry_at_s = None, 0.0
        self._last_kept, self._spool_bytes = number, spool.size
        if batch.offers:
            self._offers[number] = batch.offers

    async def _forget(self) -> None:
        if self._spool is not None and self._done_up_to > self._spool.acknowledged:
            await self._on_disk(self._spool.forget, self._done_up_to)
            self._spool_bytes = self._spool.size

    def _refill(self) -> None:
        """From the spool, as much as is good to have in memory."""
        while self._spool is not None and self._outbox.size < WINDOW_BYTES:
            found = self._spool.read(self._topic)
            if found is None:
                return
            number, push, messages = found
            self._outbox.add(UnackedBatch(push, messages, self._offers.pop(number, []), number))

    async def _on_disk(self, call: Callable[..., Any], *words: Any) -> Any:
        if not self._in_threads:
            return call(*words)
        disk_call = self._disk_call = asyncio.ensure_future(asyncio.to_thread(call, *words))
        try:
            return await asyncio.shield(disk_call)
        finally:
            if disk_call.done():
                self._disk_call = None

    # -- the connection ---------------------------------------------------------------------------

    async def _dial(self) -> tuple[AsyncClient, TopicIdentity | None]:
        client = await AsyncClient(self._target, timeout_s=self._timeout_s).open()
        try:
            return client, await _seen(client, self._topic)
        except BaseException:
            client.hang_up()
            raise

    def _dialled(
        self, task: asyncio.Task[tuple[AsyncClient, TopicIdentity | None]], now_s: float
    ) -> None:
        self._dialling = None
        error = task.exception()
        if error is None:
            self._linked(*task.result())
            self._send(now_s)
        elif isinstance(error, ConnectionLost | LogdError):
            self._shipping.put_off(error, now_s)
        else:
            raise error

    def _linked(self, client: AsyncClient, seen: TopicIdentity | None) -> None:
        self._client = client
        client.closed.add_done_callback(self._ring)
        self._meet(self._shipping.connected(seen))

    def _send(self, now_s: float) -> None:
        self._refill()
        while self._client is not None and (push := self._outbox.next()) is not None:
            try:
                future = self._client.send(commands.push(push))
            except ConnectionLost as error:
                self._lose(error, now_s)
            else:
                future.add_done_callback(self._ring)
                self._due.append(future)

    def _take_answers(self, now_s: float) -> None:
        while self._due and self._due[0].done() and self.failure is None:
            future = self._due.popleft()
            error = future.exception()
            if isinstance(error, ConnectionLost):
                self._lose(error, now_s)
            elif error is None or isinstance(error, LogdError):
                self._meet(self._shipping.answered(error or future.result(), now_s))
        if self._client is not None and not self._client.is_open:
            self._lose(lost(self._client.address, "it closed the connection"), now_s)

    def _lose(self, error: ConnectionLost, now_s: float) -> None:
        if self._client is not None:
            self._client.hang_up()
        self._client = None
        for future in self._due:
            future.cancel()
        self._due.clear()
        self._meet(self._shipping.lost(error, now_s))

    # -- events ---------------------------------------------------------------------------------

    def _settled(self, batch: UnackedBatch, result: int | LogdError) -> None:
        self._done_up_to = batch.number
        self._shipping.settled(batch, result, self._loop.time())
        if isinstance(result, int):
            self._owner.stored(batch, result)
        _set_all(batch.offers, result)

    def _meet(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case PushRefused(batch, error):
                    # By the loop: a callback that raises must not end the delivery.
                    self._loop.call_soon(self._owner.refused, batch, error)
                case Gone(reason):
                    self._loop.call_soon(self._owner.lost, Loss(self._topic, reason))
                case GivenUp(failure):
                    self._give_up(failure)

    def _give_up(self, error: Failure) -> None:
        waiting = [*self._outbox.give_up(), *(batch for batch, _ in self._unkept)]
        for offers in (*(batch.offers for batch in waiting), *self._offers.values()):
            _set_all(offers, error)
        self._owner.failed(error)


def _failure(error: Exception) -> Failure:
    if isinstance(error, LogdError | OSError):
        return error
    failure = Internal(f"a mistake in the writer: {error!r}")
    failure.__cause__ = error
    return failure


def _set_all(offers: list[tuple[int, Any]], offset: int | Exception) -> None:
    for i, future in offers:
        if not future.done():
            if isinstance(offset, int):
                future.set_result(offset + i)
            else:
                future.set_exception(offset)


async def _seen(client: AsyncClient, topic: str) -> TopicIdentity | None:
    try:
        return TopicIdentity.of(await client.stats(topic))
    except NotFound:
        return None
    except ValueError as error:
        raise lost(client.address, str(error)) from None
