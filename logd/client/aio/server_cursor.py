"""A cursor that the server stores under a name: the position of a reader, for the next one.

It uses a second connection, because the reader's own may be waiting for messages.
"""

from __future__ import annotations

from logd.client.aio.client import AsyncClient
from logd.errors import NotFound
from logd.wire.addresses import ConnectionLost, Target
from logd.wire.commands import checked_cursor


class AsyncServerCursor:
    def __init__(self, target: Target, topic: str, name: str) -> None:
        self._target, self._topic, self._name = target, topic, checked_cursor(name)
        self._client: AsyncClient | None = None

    async def load(self) -> int | None:
        """The next offset to read; None if nothing was saved."""
        try:
            client = await self._connected()
            found = await client.cursor(self._topic, self._name)
            return found.offset
        except NotFound:
            return None

    async def save(self, offset: int) -> None:
        try:
            await self._commit(offset)
        except ConnectionLost:
            await self.close()
            await self._commit(offset)

    async def _commit(self, offset: int) -> None:
        client = await self._connected()
        await client.commit(self._topic, self._name, offset)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _connected(self) -> AsyncClient:
        if self._client is None:
            self._client = await AsyncClient(self._target).open()
        return self._client
