# Generated from aio/client_commands.py by tools/async_to_sync.py. Do not edit.
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


class ClientCommands:
    def run(self, command: Command[T]) -> T:
        """Send one command and return its result; raises the LogdError of an ERR reply."""
        raise NotImplementedError

    def push(self, topic: str, messages: Iterable[bytes], *, compressed: bool = False) -> Pushed:
        """Store these messages as one batch: all of them, or none."""
        return self.push_batch(commands.batch_of(topic, messages, compressed=compressed))

    def push_batch(self, push: Push) -> Pushed:
        return self.run(commands.push(push))

    def read(
        self,
        topic: str,
        where: Where = 0,
        messages: int = 1000,
        *,
        max_bytes: int | None = None,
        wait_ms: int = 0,
    ) -> Batches:
        """Whole batches from `where` on that have so many messages, or fewer; at least one."""
        return self.run(commands.read(Read(topic, where, messages, max_bytes, wait_ms)))

    def tail(self, topic: str, messages: int) -> Batches:
        """The newest messages, in whole batches."""
        return self.run(commands.tail(topic, messages))

    def stats(self, topic: str | None = None) -> dict[str, str]:
        """The counters of the server, or of one topic."""
        return self.run(commands.stats(topic))

    def topics(self, glob: str = "*") -> list[TopicInfo]:
        return self.run(commands.topics(glob))

    def partitions(self, topic: str) -> list[PartitionInfo]:
        return self.run(commands.partitions(topic))

    def cursor(self, topic: str, name: str) -> CursorInfo:
        """The position of a named cursor; NotFound if it was never committed."""
        return self.run(commands.cursor(topic, name))

    def commit(self, topic: str, name: str, offset: int) -> CursorInfo:
        """Move a named cursor: everything before `offset` is processed."""
        return self.run(commands.commit(topic, name, offset))

    def config(self) -> dict[str, str]:
        """The settings in force."""
        return self.run(commands.CONFIG)

    def help(self) -> str:
        return self.run(commands.HELP)

    def ping(self) -> None:
        self.run(commands.PING)


def find_identity(client: ClientCommands, topic: str) -> TopicIdentity | None:
    """The identity of a topic; None if there is no such topic."""
    try:
        return TopicIdentity.of(client.stats(topic))
    except NotFound:
        return None
    except ValueError as error:
        raise ConnectionLost(f"the server's {error}; check the address") from None
