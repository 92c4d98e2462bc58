"""The asyncio client: one connection, with each command of the protocol as a coroutine.

Any number of tasks may use it at the same time: their commands are sent at once, and answered in
that order. So a `read` that waits delays the calls after it; use another client for followers. A
cancelled call was sent all the same: the server executes it, and the reply is discarded. An ERR
reply raises its `LogdError`; a connection that cannot be made, is lost or times out raises
`ConnectionLost`.

The methods are in `client_commands`, from which those of the blocking client are generated.
"""

from __future__ import annotations

import asyncio
from typing import Any, Self, TypeVar

from logd.client.aio.client_commands import AsyncClientCommands
from logd.client.aio.connection import AsyncConnection, connect
from logd.wire.addresses import DEFAULT_ADDRESS, ConnectionLost, Target, addresses
from logd.wire.commands import Command

T = TypeVar("T")


class AsyncClient(AsyncClientCommands):
    """One connection to a server: to the first of the addresses that answers.

    Use `async with Client(address) as client`, or `open` and `close`. When replies are due and no
    byte has arrived for `timeout_s` (None: no limit), the connection counts as lost.
    """

    def __init__(self, target: Target = DEFAULT_ADDRESS, *, timeout_s: float | None = 10.0) -> None:
        self.timeout_s = timeout_s
        self._target, self._addresses = target, addresses(target)
        self._connection: AsyncConnection | None = None

    async def open(self) -> Self:
        """Connect; ConnectionLost if no server answers."""
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
            self.abort()
            await asyncio.wait([self._connection.closed])

    def abort(self) -> None:
        """Like `close`, without waiting for the end of the connection."""
        if self._connection is not None:
            self._connection.abort()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def address(self) -> str:
        """The address that answered."""
        return self._opened().address

    @property
    def is_open(self) -> bool:
        return self._connection is not None and self._connection.is_open

    @property
    def closed(self) -> asyncio.Future[None]:
        """Done when the connection has ended on either side."""
        return self._opened().closed

    @property
    def in_flight(self) -> int:
        """The number of replies that are due."""
        return self._opened().in_flight

    async def run(self, command: Command[T]) -> T:
        """Send one command and return its result."""
        return await self.send(command)

    def send(self, command: Command[T]) -> asyncio.Future[T]:
        """Send one command now; the future gets its result, or the error."""
        return self._opened().send(command)

    def receive(self) -> asyncio.Future[Any]:
        """The next reply of a stream whose last reply was received."""
        return self._opened().receive()

    def _opened(self) -> AsyncConnection:
        if self._connection is None:
            raise RuntimeError("write `async with Client(...)`, or await open() first")
        return self._connection
