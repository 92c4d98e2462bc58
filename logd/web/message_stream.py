"""Responses that consist of a topic's messages, produced one bounded step at a time.

Before each step `ClientRead` checks that the client is connected and still has the right to read.
A response that has begun cannot be refused: its connection is aborted, so that no client takes a
part of the messages for all of them. Imports no route.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from starlette.responses import StreamingResponse

from logd.errors import LogdError, OutOfRange
from logd.partition import Slice
from logd.web.async_service import AsyncService
from logd.web.batch_rendering import BatchRenderer, ReadPosition, RenderedPiece
from logd.web.read_parameters import ReadParameters
from logd.web.read_threads import ReadThreads
from logd.wire.commands import Batches
from logd.wire.read_state import Gap, ReadState, Rewind
from logd.wire.requests import Read

READ_BYTES = 1 << 20  # of a topic that one READ plans
_ABORT_S = 1.0  # the end of the connection cancels the response long before this


class Disconnected(LogdError):
    """Ends the work for a client that has disconnected."""


class ClientRead:
    """One client's read of a topic."""

    _reading: ReadState  # set by `open`

    def __init__(
        self, service: AsyncService, threads: ReadThreads, client: str,
        is_disconnected: Callable[[], bool], parameters: ReadParameters,
    ) -> None:  # fmt: skip
        self.service, self.threads, self._is_disconnected = service, threads, is_disconnected
        self._client, self._parameters = client, parameters
        self._position: ReadPosition | None = None  # in the middle of a reply
        self._verified = 0
        self._gaps: list[Gap | Rewind] = []

    @contextmanager
    def open(self, *, wait_ms: int = 0, or_first: bool = False) -> Iterator[None]:
        """Lasts as long as the read; Busy if there are too many searches. With `wait_ms` it waits
        for more at the end of the topic."""
        parameters = self._parameters
        self._reading = ReadState(
            parameters.topic, start=parameters.start, until=parameters.until,
            until_ms=parameters.until_ms, follow=wait_ms > 0, wait_ms=wait_ms,
            or_first=or_first, read_bytes=READ_BYTES, on_gap=self._gaps.append,
        )  # fmt: skip
        with nullcontext() if parameters.pattern is None else self.threads.search(self._client):
            try:
                yield
            finally:
                self.threads.renderers.drop(self)

    @property
    def has_more(self) -> bool:
        return self._position is not None or not self._reading.is_done

    def check(self) -> None:
        """Raise if the client has disconnected or has lost the right to read."""
        if self._is_disconnected():
            raise Disconnected("the client has disconnected")
        self.service.check(Read(self._parameters.topic, "first", 1))

    async def render(self, left: int) -> RenderedPiece:
        """The next piece of output, which may be empty; at most `left` messages."""
        renderer = None
        if self._position is None:
            try:
                renderer = await self._begin(left)  # may wait for messages
            except OutOfRange as error:
                self._reading.refused(error)
                return RenderedPiece(b"", 0, ReadPosition(0))
        threads = self.threads
        if self._parameters.pattern is None:
            reserved = threads.reserve_read()
        else:
            reserved = threads.reserve_search(self._client)
        async with reserved as thread:
            self.check()
            renderer = renderer or threads.renderers.take(self)
            renderer = renderer or await self._begin(left)
            try:
                piece = await thread.run(renderer.step)
            except BaseException:
                renderer.is_cancelled = True
                thread.call_when_done(renderer.close)
                raise
        self._verified = renderer.verified
        self._position = None if renderer.is_done else renderer.position
        if not renderer.is_done:
            threads.renderers.put(self, renderer)
        return piece

    async def _begin(self, left: int) -> BatchRenderer:
        position, reading, parameters = self._position, self._reading, self._parameters
        if position is not None:
            reading.where = position.offset
        read = reading.question()
        assert isinstance(read, Read)  # never TAIL
        if position is not None:  # in the middle of a reply there is nothing to wait for
            read = read._replace(wait_ms=0)
        if parameters.pattern is None:
            read = read._replace(messages=min(read.messages, left))
        planned = await self.service.planned(read)
        reading.arrived(Batches(planned.offset, planned.messages, b""))
        start = position or ReadPosition(planned.offset)
        return BatchRenderer(planned, reading, parameters, start, left, self._verified, self._gaps)


class MessageStream(StreamingResponse):
    """A response that is in the set `streams` while it is being sent. If the whole of it is also in
    files, as `slices`, and the connection can send from files, it does."""

    def __init__(
        self, streams: set[MessageStream], service: AsyncService, topic: str, first: bytes,
        rest: AsyncGenerator[bytes, None], slices: tuple[Slice, ...] = (), **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(self._pieces(), **options)
        self._slices = slices
        self._streams, self._service, self._topic = streams, service, topic
        self._first, self._rest = [first], rest

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._abort, self._send_slices = scope["abort"], scope.get("send_slices")
        self._streams.add(self)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.discard(self)
            await self._rest.aclose()

    async def _pieces(self) -> AsyncIterator[bytes]:
        yield self._first.pop()  # not kept for as long as the response lasts
        try:
            async for piece in self._rest:
                yield piece
        except LogdError:
            self._abort()
            await asyncio.sleep(_ABORT_S)

    async def stream_response(self, send: Any) -> None:
        if self._slices and self._send_slices is not None:
            start = {"type": "http.response.start", "status": self.status_code}
            await send({**start, "headers": self.raw_headers})
            await self._send_slices(self._slices)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await super().stream_response(send)

    def check_rights(self) -> None:
        """After a reload: abort if the client may no longer read the topic."""
        try:
            self._service.check(Read(self._topic, 0, 1))
        except LogdError:
            self._abort()
