"""The asyncio client: one connection, and each command of the protocol as a coroutine.

Any number of tasks may use it at the same time: their commands are sent at once, one behind the
other, and answered in that order. So a `read` that waits holds up whatever is called behind it;
give followers a client of their own. A call that is cancelled was sent all the same: the daemon
does it, and the answer is thrown away. A command that is refused raises its `LogdError`; a
connection that cannot be had, ends or stays silent raises `ConnectionLost`.

The blocking `Client` has the same methods; what they send and make of replies is in `commands`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Self, TypeVar

from logd.client.aio.connection import AsyncConnection, connect
from logd.wire import commands
from logd.wire.addresses import DEFAULT_ADDRESS, ConnectionLost, Target, addresses
from logd.wire.commands import Batches, Command, CursorInfo, PartitionInfo, Pushed, TopicInfo
from logd.wire.requests import Push, Read, Where

T = TypeVar("T")


class AsyncClient:
    """One connection to a daemon: the first of several addresses that answers.

    `async with Client(address) as client`, or `open` and `close`. When replies are due and nothing
    has come for `timeout_s` (None: for ever) the connection counts as lost.
    """

    def __init__(self, target: Target = DEFAULT_ADDRESS, *, timeout_s: float | None = 10.0) -> None:
        self.timeout_s = timeout_s
        self._target, self._addresses = target, addresses(target)
        self._connection: AsyncConnection | None = None

    async def open(self) -> Self:
        """Connect; ConnectionLost where nobody answers."""
        if self._connection is not None:
            raise RuntimeError("this Client was opened before; make a new one")
        for address in self._addresses:
            try:
                self._connection = await connect(address, self._target, self.timeout_s)
                return self
            except ConnectionLost as error:
                failure = error
        raise failure

    async def close(self) -> None:
        if self._connection is not None:
            self.hang_up()
            await asyncio.wait([self._connection.closed])

    def hang_up(self) -> None:
        """The same as `close`, without waiting until nothing is left of the connection."""
        if self._connection is not None:
            self._connection.hang_up()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def address(self) -> str:
        """Which of the addresses answered."""
        return self._opened().address

    @property
    def is_open(self) -> bool:
        return self._connection is not None and self._connection.is_open

    @property
    def closed(self) -> asyncio.Future[None]:
        """Done when the connection has ended, whoever ended it."""
        return self._opened().closed

    @property
    def in_flight(self) -> int:
        """How many replies are due."""
        return self._opened().in_flight

    # -- commands -------------------------------------------------------------------------------

    async def push(
        self, topic: str, messages: Iterable[bytes], *, compressed: bool = False
    ) -> Pushed:
        """Store these messages as one batch: all of them, or none."""
        return await self.push_batch(commands.batch_of(topic, messages, compressed=compressed))

    async def push_batch(self, push: Push) -> Pushed:
        return await self.run(commands.push(push))

    async def read(
        self,
        topic: str,
        where: Where = 0,
        messages: int = 1000,
        *,
        max_bytes: int | None = None,
        wait_ms: int = 0,
    ) -> Batches:
        """Whole batches from `where` on that cover so many messages, or fewer; at least one."""
        return await self.run(commands.read(Read(topic, where, messages, max_bytes, wait_ms)))

    async def tail(self, topic: str, messages: int) -> Batches:
        """The newest messages, in whole batches."""
        return await self.run(commands.tail(topic, messages))

    async def stats(self, topic: str | None = None) -> dict[str, str]:
        """What the daemon counts, overall or for one topic."""
        return await self.run(commands.stats(topic))

    async def topics(self, glob: str = "*") -> list[TopicInfo]:
        return await self.run(commands.topics(glob))

    async def partitions(self, topic: str) -> list[PartitionInfo]:
        return await self.run(commands.partitions(topic))

    async def cursor(self, topic: str, name: str) -> CursorInfo:
        """Where a named cursor stands; NotFound where nobody has committed it."""
        return await self.run(commands.cursor(topic, name))

    async def commit(self, topic: str, name: str, offset: int) -> CursorInfo:
        """Move a named cursor: everything before `offset` is done."""
        return await self.run(commands.commit(topic, name, offset))

    async def config(self) -> dict[str, str]:
        """The settings in force."""
        return await self.run(commands.CONFIG)

    async def help(self) -> str:
        return await self.run(commands.HELP)

    async def ping(self) -> None:
        await self.run(commands.PING)

    async def run(self, command: Command[T]) -> T:
        """Send one command and wait for its answer."""
        return await self.send(command)

    def send(self, command: Command[T]) -> asyncio.Future[T]:
        """Send one command now; the future gets its answer. Without a future nobody hears it."""
        return self._opened().send(command)

    def _opened(self) -> AsyncConnection:
        if self._connection is None:
            raise RuntimeError("write `async with Client(...)`, or await open() first")
        return self._connection
