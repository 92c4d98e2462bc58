"""The methods of a client: one for each command of the protocol.

A subclass provides `run`, which sends a command and returns its result. Knows nothing about
connections.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from logd.errors import NotFound
from logd.wire import commands
from logd.wire.addresses import ConnectionLost
from logd.wire.commands import Batches, Command, CursorInfo, PartitionInfo, Pushed, TopicInfo
from logd.wire.requests import Push, Read, Where
from logd.wire.topic_identity import TopicIdentity

T = TypeVar("T")


class AsyncClientCommands:
    async def run(self, command: Command[T]) -> T:
        """Send one command and return its result; raises the LogdError of an ERR reply."""
        raise NotImplementedError

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
        """Whole batches from `where` on that have so many messages, or fewer; at least one."""
        return await self.run(commands.read(Read(topic, where, messages, max_bytes, wait_ms)))

    async def tail(self, topic: str, messages: int) -> Batches:
        """The newest messages, in whole batches."""
        return await self.run(commands.tail(topic, messages))

    async def stats(self, topic: str | None = None) -> dict[str, str]:
        """The counters of the server, or of one topic."""
        return await self.run(commands.stats(topic))

    async def topics(self, glob: str = "*") -> list[TopicInfo]:
        return await self.run(commands.topics(glob))

    async def partitions(self, topic: str) -> list[PartitionInfo]:
        return await self.run(commands.partitions(topic))

    async def cursor(self, topic: str, name: str) -> CursorInfo:
        """The position of a named cursor; NotFound if it was never committed."""
        return await self.run(commands.cursor(topic, name))

    async def commit(self, topic: str, name: str, offset: int) -> CursorInfo:
        """Move a named cursor: everything before `offset` is processed."""
        return await self.run(commands.commit(topic, name, offset))

    async def config(self) -> dict[str, str]:
        """The settings in force."""
        return await self.run(commands.CONFIG)

    async def help(self) -> str:
        return await self.run(commands.HELP)

    async def ping(self) -> None:
        await self.run(commands.PING)


async def find_identity(client: AsyncClientCommands, topic: str) -> TopicIdentity | None:
    """The identity of a topic; None if there is no such topic."""
    try:
        return TopicIdentity.of(await client.stats(topic))
    except NotFound:
        return None
    except ValueError as error:
        raise ConnectionLost(f"the server's {error}; check the address") from None
