"""Responses that may take long: they end when their client goes, or may not read any more.

A response that has begun cannot be refused: its connection is aborted, so that nobody takes what
came for all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from starlette.responses import StreamingResponse

from logd.errors import LogdError
from logd.web.async_service import AsyncService
from logd.wire.requests import Read

_ABORT_S = 1.0  # the end of the connection cancels the response, well before this


class Streams:
    """Those that are being sent."""

    def __init__(self) -> None:
        self.open: set[StreamResponse] = set()

    def judge_again(self) -> None:
        """After a reload: abort those whose clients have lost their right to read."""
        for stream in list(self.open):
            stream.judge_again()


class StreamResponse(StreamingResponse):
    def __init__(
        self, streams: Streams, asking: AsyncService, topic: str, first: bytes,
        rest: AsyncGenerator[bytes, None], **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(self._pieces(), **options)
        self._streams, self._asking, self._topic = streams, asking, topic
        self._first, self._rest = first, rest

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._abort = scope["abort"]
        self._streams.open.add(self)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.open.discard(self)
            await self._rest.aclose()

    async def _pieces(self) -> AsyncIterator[bytes]:
        yield self._taken_first()
        try:
            async for piece in self._rest:
                yield piece
        except LogdError:
            self._abort()
            await asyncio.sleep(_ABORT_S)

    def _taken_first(self) -> bytes:
        first, self._first = self._first, b""
        return first

    def judge_again(self) -> None:
        try:
            self._asking.check(Read(self._topic, 0, 1))
        except LogdError:
            self._abort()
