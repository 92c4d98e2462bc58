"""The service for coroutines: ask, and await the answer. What HTTP's routes are made of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from logd.access import Grant
from logd.batch import LINES
from logd.commands import Batches, Pushed
from logd.disk import refusal
from logd.errors import LogdError, ShuttingDown
from logd.group import Batch
from logd.replies import parse_head
from logd.requests import Push, Pushes, Read, Request, Tail
from logd.service import Reply, Service
from logd.topic import Topic
from logd.waiting import Waiting

T = TypeVar("T")
_UNCHECKED = Batch(b"", LINES, 0, "")


class _Asked:
    """A door for one question. A question that waits ends with whoever waits for it."""

    def __init__(self, service: Service) -> None:
        self.answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._service = service

    def reply(self, reply: Reply) -> None:
        if not self.answer.done():
            self.answer.set_result(reply)

    def waits(self, topic: Topic, offset: int, read: Read) -> None:
        waiting = Waiting(self._service, self)
        waiting.begin(topic, offset, read)
        self.answer.add_done_callback(lambda _: waiting.end())


class _Pushing:
    clients = 1

    def __init__(self, service: Service) -> None:
        self._service = service
        self.content: Pushes | Batch = _UNCHECKED
        self.offset = self.messages = 0
        self.answer: asyncio.Future[Pushed] = asyncio.get_running_loop().create_future()

    def stored(self) -> None:
        if not self.answer.done():
            self.answer.set_result(Pushed(self.offset, self.messages))

    def refused(self, error: LogdError) -> None:
        self._service.counters["refused"] += 1
        if not self.answer.done():
            self.answer.set_exception(error)


class Asking:
    """For everybody; `by` gives the same for somebody who may not do everything."""

    def __init__(
        self, service: Service, grant: Grant | None = None, whole: Asking | None = None
    ) -> None:
        self.service = service
        self.stopping = False
        self._grant, self._whole = grant, whole or self

    def by(self, grant: Grant | None) -> Asking:
        return self if grant is None else Asking(self.service, grant, self)

    def _check(self, request: Request) -> Request:
        if self._whole.stopping:
            raise ShuttingDown("the daemon is stopping; try again in a moment")
        return request if self._grant is None else self._grant.admit(request)

    async def reply(self, request: Request) -> Reply:
        """The answer to any command but a push; raises what it is refused with."""
        asked = _Asked(self.service)
        self.service.handle(self._check(request), asked)
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
        self._check(push)
        pushing = _Pushing(self.service)
        self.service.push_batch(push, pushing)
        return await pushing.answer

    async def batches(self, read: Read | Tail) -> Batches:
        """Whole batches, read into memory; `read` says how many bytes that may be."""
        reply = await self.reply(read)
        head, _, body = reply.head.partition(b"\n")
        answer = parse_head(head)
        if isinstance(answer, LogdError):
            raise answer
        offset, messages, _ = answer[1]
        if not reply.slices:
            return Batches(offset, messages, body)
        return Batches(offset, messages, await self.offload(lambda: _read(reply)))

    async def offload(self, work: Any) -> Any:
        """Run it on a thread for disk work, and wait."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Any] = loop.create_future()

        def done(value: Any, error: BaseException | None) -> None:
            if result.done():
                return
            if error is not None:
                result.set_exception(refusal(error) if isinstance(error, OSError) else error)
            else:
                result.set_result(value)

        self.service.scheduler.offload(work, done)
        return await result

    async def compute(self, work: Callable[[], T]) -> T:
        """Run it on a thread for work that takes the processor, and wait."""
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(value: Any, error: BaseException | None) -> None:
            if result.done():
                return
            if error is not None:
                result.set_exception(error)
            else:
                result.set_result(value)

        self.service.scheduler.offload_cpu(work, done)
        return await result


def _read(reply: Reply) -> bytes:
    """As few copies as can be: they are made while the loop stands still."""
    parts = [part.file.read_waiting(part.position, part.size) for part in reply.slices]
    return parts[0] if len(parts) == 1 else b"".join(parts)
