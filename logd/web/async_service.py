"""The service for coroutines: ask, and await the answer. What HTTP's routes are made of."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from logd.access.access_file import Access, Grant
from logd.batch import LINES, reading
from logd.batch import Read as ReadAt
from logd.errors import LogdError, ShuttingDown
from logd.net.long_poll import LongPoll
from logd.partition import Slice
from logd.service import Service, ServiceReply
from logd.storage.write_group import CheckedBatch
from logd.topic import Topic
from logd.wire.commands import Pushed
from logd.wire.replies import parse_head
from logd.wire.requests import Push, Pushes, Read, Request, Tail

T = TypeVar("T")
_UNCHECKED = CheckedBatch(b"", LINES, 0, "")


class _Asked:
    """A door for one question. A question that waits ends with whoever waits for it."""

    def __init__(self, service: Service) -> None:
        self.answer: asyncio.Future[ServiceReply] = asyncio.get_running_loop().create_future()
        self._service = service

    def reply(self, reply: ServiceReply) -> None:
        if not self.answer.done():
            self.answer.set_result(reply)

    def waits(self, topic: Topic, offset: int, read: Read) -> None:
        waiting = LongPoll(self._service, self)
        waiting.begin(topic, offset, read)
        self.answer.add_done_callback(lambda _: waiting.end())


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
    """The answer to a READ, not read yet: `read` reads what is at a position of its batches."""

    offset: int
    messages: int
    size: int
    read: ReadAt


class AsyncService:
    """For everybody; `by` gives the same for somebody who may not do everything."""

    def __init__(
        self, service: Service, grant: Grant | None = None, whole: AsyncService | None = None
    ) -> None:
        self.service = service
        self.stopping = False
        self._grant, self._whole = grant, whole or self
        self._access: Access | None = None  # what `grant` was found in

    def by(self, grant: Grant | None) -> AsyncService:
        asking = AsyncService(self.service, grant, self._whole)
        asking._access = self.service.access
        return asking

    def check(self, request: Request) -> Request:
        """What may be asked of this request now; raises where it may not be asked any more."""
        if self._whole.stopping:
            raise ShuttingDown("the daemon is stopping; try again in a moment")
        if self.service.access is not self._access:
            self._judge_again()
        return request if self._grant is None else self._grant.admit(request)

    def _judge_again(self) -> None:
        """After a reload of the access file."""
        access = self.service.access
        if access is not None:
            self._grant = access.renewed(self._grant)
        else:
            self._grant = None
        self._access = access

    async def reply(self, request: Request) -> ServiceReply:
        """The answer to any command but a push; raises what it is refused with."""
        asked = _Asked(self.service)
        self.service.handle(self.check(request), asked)
        reply = await asked.answer
        if reply.error is not None:
            raise reply.error
        return reply

    async def text(self, request: Request) -> bytes:
        """What STATS, TOPICS and their kind answer; raises what they are refused with."""
        head, _, body = (await self.reply(request)).head.partition(b"\n")
        answer = parse_head(head)
        if isinstance(answer, LogdError):
            raise answer
        return body

    async def push(self, push: Push) -> Pushed:
        self.check(push)
        pushing = _Pushing(self.service)
        self.service.push_batch(push, pushing)
        return await pushing.answer

    async def planned(self, read: Read | Tail) -> Planned:
        """Whole batches, and how to read them; nothing of a large reply is in memory."""
        reply = await self.reply(read)
        head, _, body = reply.head.partition(b"\n")
        answer = parse_head(head)
        if isinstance(answer, LogdError):
            raise answer
        offset, messages, size = answer[1]
        read_at = _reading(reply.slices) if reply.slices else reading(body)
        return Planned(offset, messages, size, read_at)

    async def compute(self, work: Callable[[], T]) -> T:
        """Run it on a thread for work that takes the processor, and wait."""
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.service.scheduler.offload_cpu(work, partial(_settle, result))
        try:
            return await result
        finally:
            del result  # or an error, its traceback and the body that it is about keep each other


def _settle(result: asyncio.Future[T], value: Any, error: BaseException | None) -> None:
    if result.done():
        return
    if error is not None:
        result.set_exception(error)
    else:
        result.set_result(value)


def _reading(slices: tuple[Slice, ...]) -> ReadAt:
    """Reads may wait for the disk. One that starts in a slice ends with it: batches do not span
    slices."""
    ends = list(accumulate(part.size for part in slices))

    def read(position: int, size: int) -> bytes:
        at = bisect_right(ends, position)
        if at == len(slices):
            return b""
        left = ends[at] - position
        start = slices[at].position + slices[at].size - left
        return slices[at].file.read_waiting(start, min(size, left))

    return read
