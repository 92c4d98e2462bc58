"""The service for coroutines: the HTTP routes await its replies."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from logd.access.access_file import Grant
from logd.batch import LINES, reading
from logd.batch import Read as ReadAt
from logd.errors import LogdError, ShuttingDown
from logd.net.long_poll import LongPoll
from logd.partition import Slice
from logd.service import BatchesReply, ErrorReply, Reply, Service, StatsReply
from logd.storage.write_group import CheckedBatch
from logd.topic import Topic
from logd.wire.commands import Pushed
from logd.wire.requests import Follow, Push, Pushes, Read, Request, Stats, Tail

T = TypeVar("T")
R = TypeVar("R")
_UNCHECKED = CheckedBatch(b"", LINES, 0, "")


class _AwaitedReply:
    """One command whose reply is awaited. A READ that waits ends when its caller is cancelled."""

    def __init__(self, service: Service) -> None:
        self.answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._service = service

    def reply(self, reply: Reply) -> None:
        if not self.answer.done():
            self.answer.set_result(reply)

    def wait_for_messages(self, topic: Topic, offset: int, read: Read) -> None:
        long_poll = LongPoll(self._service, self)
        long_poll.begin(topic, offset, read)
        self.answer.add_done_callback(lambda _: long_poll.end())

    def follow(self, topic: Topic, offset: int, request: Follow) -> None:
        raise NotImplementedError  # routes read piece by piece


class _Pushing:
    clients = 1

    def __init__(self, service: Service) -> None:
        self._service = service
        self.content: Pushes | CheckedBatch = _UNCHECKED
        self.offset = self.messages = 0
        self.answer: asyncio.Future[Pushed] = asyncio.get_running_loop().create_future()

    def stored(self) -> None:
        if not self.answer.done():
            self.answer.set_result(Pushed(self.offset, self.messages))

    def refused(self, error: LogdError) -> None:
        self._service.counters["refused"] += 1
        if not self.answer.done():
            self.answer.set_exception(error)


class Planned(NamedTuple):
    """The batches of a READ, which are not in memory yet: `read` reads at a position of them."""

    offset: int
    messages: int
    size: int
    read: ReadAt
    slices: tuple[Slice, ...] = ()  # of files; none if the batches are small


class AsyncService:
    """The service for one client, limited to the rights of its grant; None: without limits."""

    def __init__(
        self, service: Service, grant: Grant | None, is_stopping: Callable[[], bool]
    ) -> None:
        self._service, self._grant, self._is_stopping = service, grant, is_stopping
        self._access = service.access  # the access file that `grant` comes from

    def check(self, request: Request) -> Request:
        """The request, limited to what the grant may see; raises if it is not allowed now."""
        if self._is_stopping():
            raise ShuttingDown("the daemon is stopping; try again in a moment")
        access = self._service.access
        if access is not self._access:  # it was reloaded
            self._grant = access.renewed(self._grant) if access is not None else None
            self._access = access
        return request if self._grant is None else self._grant.admit(request)

    async def reply(self, request: Request, kind: type[R]) -> R:
        """The reply to a command other than PUSH, which is of this kind; raises its rejection."""
        pending = _AwaitedReply(self._service)
        self._service.handle(self.check(request), pending)
        reply = await pending.answer
        if isinstance(reply, ErrorReply):
            raise reply.error
        assert isinstance(reply, kind)
        return reply

    async def stats(self, topic: str | None = None) -> dict[str, Any]:
        return (await self.reply(Stats(topic), StatsReply)).values

    async def push(self, push: Push) -> Pushed:
        self.check(push)
        pushing = _Pushing(self._service)
        self._service.push_batch(push, pushing)
        return await pushing.answer

    async def planned(self, read: Read | Tail) -> Planned:
        """Whole batches, and how to read them. A large reply is never in memory as a whole."""
        reply = await self.reply(read, BatchesReply)
        read_at = _reading(reply.slices) if reply.slices else reading(b"".join(reply.buffers))
        return Planned(reply.offset, reply.messages, reply.size, read_at, reply.slices)

    async def compute(self, work: Callable[[], T]) -> T:
        """Run CPU-bound work on a thread and await its result."""
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._service.scheduler.offload_cpu(work, partial(_settle, result))
        try:
            return await result
        finally:
            del result  # an error, its traceback and the request's body would form a cycle


def _settle(result: asyncio.Future[T], value: Any, error: BaseException | None) -> None:
    if result.done():
        return
    if error is not None:
        result.set_exception(error)
    else:
        result.set_result(value)


def _reading(slices: tuple[Slice, ...]) -> ReadAt:
    """A read may wait for the disk, and ends with the slice it starts in: no batch spans two."""
    ends = list(accumulate(part.size for part in slices))

    def read(position: int, size: int) -> bytes:
        at = bisect_right(ends, position)
        if at == len(slices):
            return b""
        left = ends[at] - position
        start = slices[at].position + slices[at].size - left
        return slices[at].file.read_waiting(start, min(size, left))

    return read
