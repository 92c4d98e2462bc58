"""The asyncio reader: the messages of a topic in order, from any position, once or continuously.

The loop is in `read_loop`, from which the blocking one is generated. This class waits for replies
in a way that survives cancellation: when a task that waits for the next message is cancelled, the
reply stays due, and the next call gets it. One task at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Self

from logd.client.aio.read_loop import AsyncReadLoop
from logd.wire.commands import Batches, Command
from logd.wire.read_state import Batch, Message


class AsyncReader(AsyncReadLoop):
    """Reads one topic: iterate it for Messages, or `batches()` for batches. Not both.

    Use `async with Reader(...) as reader`, or `open` and `close`. The options and guarantees are
    those of the blocking Reader.
    """

    _reply: asyncio.Future[Batches] | None = None  # the one that is due
    _is_stream = False  # there are more after it

    async def __aenter__(self) -> Self:
        return await self.open()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if self._cursor is None:  # the common case, without a second coroutine for each message
            for message in self._messages:
                return message
        found = await self.next_message()
        if found is None:
            raise StopAsyncIteration
        return found

    def batches(self) -> AsyncIterator[Batch]:
        return _BatchIterator(self)

    def _send(self, command: Command[Batches]) -> None:
        if self._client is None:
            raise RuntimeError("write `async with Reader(...)`, or await open() first")
        self._reply, self._is_stream = self._client.send(command), command.is_stream

    @property
    def _is_reply_due(self) -> bool:
        return self._reply is not None

    async def _receive(self) -> Batches:
        reply = self._reply
        assert reply is not None
        assert self._client is not None
        await asyncio.wait([reply])  # does not cancel the reply when it is cancelled
        self._reply = None
        received = reply.result()
        if self._is_stream:
            self._reply = self._client.receive()
        return received

    def _drop_reply(self) -> None:
        if self._reply is not None:
            self._reply.cancel()
            self._reply = None

    async def _pause(self, pause_s: float, error: Exception) -> None:
        await asyncio.sleep(pause_s)


class _BatchIterator:
    """Not a generator: a cancellation would end that."""

    def __init__(self, reader: AsyncReader) -> None:
        self._reader = reader

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        batch = await self._reader.next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch
