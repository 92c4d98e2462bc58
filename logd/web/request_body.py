"""A request's body in memory: bounded, paid for from the daemon's budget, inflated in steps."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from starlette.requests import ClientDisconnect, Request

from logd.errors import BadRequest, Busy, TooLarge
from logd.protocol import Budget

# Inflated on the event loop, usually in 0.3 ms: most bodies are smaller. Input that holds nothing
# but Huffman tables takes 0.13 µs per byte, so the size of the input is limited, too.
_FIRST_INPUT_BYTES, _FIRST_BYTES = 16 * 1024, 64 * 1024
_STEP_INPUT_BYTES, _STEP_BYTES = 64 * 1024, 1 << 20  # of the rest, on a thread at a time
_GZIP = 31  # the format, as zlib's parameter

Inflate = Callable[[], bytes]
Compute = Callable[[Inflate], Awaitable[bytes]]


class _Holding:
    """What one body takes of the budget."""

    def __init__(self, budget: Budget, limit_bytes: int) -> None:
        self._budget, self._limit_bytes = budget, limit_bytes
        self._taken = 0

    def add(self, size: int, of_body: int) -> None:
        """Take so many bytes more, with which the body has `of_body`."""
        self.check(of_body)
        if not self._budget.take(size):
            raise Busy("too many requests are under way; retry")
        self._taken += size

    def check(self, of_body: int) -> None:
        if of_body > self._limit_bytes:
            raise TooLarge(f"a body is at most {self._limit_bytes} bytes; send less at a time")

    def release(self) -> None:
        self._budget.give(self._taken)


@asynccontextmanager
async def body(
    request: Request, limit_bytes: int, budget: Budget, compute: Compute
) -> AsyncIterator[bytes]:
    """The whole body, inflated where it is gzip; what it takes is given back at the end.

    `compute` runs a step on a thread."""
    is_gzip = _is_gzip(request.headers.get("content-encoding", "identity"))
    holding = _Holding(budget, limit_bytes)
    holding.check(int(request.headers.get("content-length", 0)))  # the parser knows it is one
    try:
        data = await _received(request, holding)
        if is_gzip:
            data = await _inflated(data, holding, compute)
        yield data
    finally:
        holding.release()


async def _received(request: Request, holding: _Holding) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in pieces(request):
        size += len(part)
        holding.add(len(part), size)
        parts.append(part)
    return b"".join(parts)


async def pieces(request: Request) -> AsyncIterator[bytes]:
    """The body as it arrives."""
    try:
        async for piece in request.stream():
            yield piece
    except ClientDisconnect:
        raise BadRequest("the body ended too early", closes=True) from None


def _is_gzip(encoding: str) -> bool:
    match encoding.strip().lower():
        case "identity" | "":
            return False
        case "gzip" | "x-gzip":
            return True
    raise BadRequest("Content-Encoding must be gzip, or left out")


async def _inflated(data: bytes, holding: _Holding, compute: Compute) -> bytes:
    """What a gzip body holds; never much more than is allowed, however small it was."""
    inflater = zlib.decompressobj(_GZIP)
    at = min(len(data), _FIRST_INPUT_BYTES)
    part = _step(inflater, data[:at], _FIRST_BYTES)
    parts, size = [part], len(part)
    holding.add(size, size)
    while not inflater.eof:
        rest = inflater.unconsumed_tail
        if not rest:
            rest = data[at : at + _STEP_INPUT_BYTES]
            at += len(rest)
        part = await compute(partial(_step, inflater, rest, _STEP_BYTES))
        if not part and not rest:
            raise BadRequest("the gzip body ends too early")
        size += len(part)
        holding.add(len(part), size)
        parts.append(part)
    if inflater.unused_data or at < len(data):
        raise BadRequest("the gzip body has more data after its end")
    return b"".join(parts)


def _step(inflater: zlib._Decompress, data: bytes, most_bytes: int) -> bytes:
    try:
        return inflater.decompress(data, most_bytes)
    except zlib.error:
        raise BadRequest("the body is not gzip, although Content-Encoding says so") from None
