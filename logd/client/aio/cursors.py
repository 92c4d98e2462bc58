"""Where an asyncio reader stopped: the blocking bookmarks, without holding up the loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

from logd.client.aio.client import AsyncClient
from logd.client.cursors import LocalCursor
from logd.errors import NotFound
from logd.wire.addresses import ConnectionLost, Target
from logd.wire.commands import checked_cursor
from logd.wire.topic_identity import TopicIdentity


class AsyncSavedCursor(Protocol):
    async def load(self) -> tuple[int, TopicIdentity | None] | None:
        """The next offset to read, and the topic as it was then; None in the first life."""

    async def save(self, offset: int, seen: TopicIdentity | None) -> None: ...
    async def close(self) -> None: ...


class AsyncServerCursor:
    """Kept by the daemon. Uses a connection of its own: the reader's may wait for messages."""

    def __init__(self, target: Target, topic: str, name: str) -> None:
        self._target, self._topic, self._name = target, topic, checked_cursor(name)
        self._client: AsyncClient | None = None

    async def load(self) -> tuple[int, TopicIdentity | None] | None:
        try:
            client = await self._connected()
            return (await client.cursor(self._topic, self._name)).offset, None
        except NotFound:
            return None

    async def save(self, offset: int, seen: TopicIdentity | None) -> None:
        try:
            await (await self._connected()).commit(self._topic, self._name, offset)
        except ConnectionLost:
            await self.close()
            await (await self._connected()).commit(self._topic, self._name, offset)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _connected(self) -> AsyncClient:
        if self._client is None:
            self._client = await AsyncClient(self._target).open()
        return self._client


class AsyncLocalCursor:
    """In a local file. Saving it syncs, and so is done by a thread."""

    def __init__(self, path: Path, topic: str) -> None:
        self._file = LocalCursor(path, topic)

    async def load(self) -> tuple[int, TopicIdentity | None] | None:
        return self._file.load()

    async def save(self, offset: int, seen: TopicIdentity | None) -> None:
        await asyncio.to_thread(self._file.save, offset, seen)

    async def close(self) -> None:
        pass
