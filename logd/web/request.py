"""One HTTP request as route handlers see it: on whose behalf, for which topic, with which body.

A handler takes a `HttpRequest` and returns a response, or raises a `LogdError`, which `logd.http`
turns into one. This module imports no route.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple, TypeVar

from starlette.requests import Request

from logd.batch import NO_ID
from logd.errors import BadRequest
from logd.protocol import Budget
from logd.service import Service
from logd.web.async_service import AsyncService
from logd.web.batch_builder import PushBody
from logd.web.message_stream import MessageStream
from logd.web.read_threads import ReadThreads
from logd.web.request_body import open_body
from logd.wire.commands import Pushed
from logd.wire.requests import Push, topic_name

T = TypeVar("T")
_INLINE_BYTES = 8 * 1024  # parsed in 2 ms at most, so a thread would take longer


class HttpContext(NamedTuple):
    """The parts of the daemon that all requests share."""

    service: Service
    is_stopping: Callable[[], bool]
    budget: Budget
    threads: ReadThreads
    streams: set[MessageStream]  # being sent


class HttpRequest(Request):
    def __init__(self, request: Request, context: HttpContext) -> None:
        super().__init__(request.scope, request.receive)
        self.context = context
        grant = request.scope.get("grant")
        self.service = AsyncService(context.service, grant, context.is_stopping)

    @property
    def topic(self) -> str:
        """The topic in the path."""
        return topic_name(self.path_params["topic"].encode("utf-8", "replace"))

    @property
    def max_batch_bytes(self) -> int:
        return self.context.service.config.max_batch_bytes

    @asynccontextmanager
    async def parse_body(self, parse: Callable[[bytes], T]) -> AsyncIterator[T]:
        """The parsed body; the memory of the body is returned to the budget at the end."""
        budget, compute = self.context.budget, self.service.compute
        async with open_body(self, self.max_batch_bytes, budget, compute) as body:
            yield await self.parse(body, partial(parse, body))

    async def parse(self, body: bytes, work: Callable[[], T]) -> T:
        """Run `work`, which parses the body: on a thread unless the body is small."""
        return work() if len(body) <= _INLINE_BYTES else await self.service.compute(work)

    async def push(self, topic: str, body: PushBody, id_: str = NO_ID) -> Pushed:
        if not body.messages:
            raise BadRequest("the body contains no message")
        return await self.service.push(
            Push(topic, body.data, body.enc, body.messages, body.sum, id_)
        )
