"""The body of a request in memory: bounded, counted against the daemon's budget, decompressed.

A gzip body is decompressed in steps of bounded input and output, all but the first on a thread, and
is refused as soon as it exceeds the limit. Imports nothing that knows routes or topics.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from starlette.requests import ClientDisconnect, Request

from logd.errors import BadRequest, Busy, TooLarge
from logd.protocol import Budget

# The first step runs on the event loop, usually in 0.3 ms: most bodies are smaller. Input of
# Huffman tables alone takes 0.13 µs per byte, so the input is limited as well as the output.
_FIRST_INPUT_BYTES, _FIRST_BYTES = 16 * 1024, 64 * 1024
_STEP_INPUT_BYTES, _STEP_BYTES = 64 * 1024, 1 << 20  # of each step on a thread
_GZIP = 31  # the parameter of zlib for this format

Compute = Callable[[Callable[[], bytes]], Awaitable[bytes]]  # runs a step on a thread


class BodyMemory:
    """The share of the budget that one body holds."""

    def __init__(self, budget: Budget) -> None:
        self._budget, self._held_bytes = budget, 0

    def hold(self, size: int, closes: bool = False) -> None:
        if not self._budget.take(size - self._held_bytes):
            raise Busy("too many requests are in progress; retry", closes=closes)
        self._held_bytes = size

    def release(self) -> None:
        self._budget.give(self._held_bytes)


@asynccontextmanager
async def open_body(
    request: Request, limit_bytes: int, budget: Budget, compute: Compute
) -> AsyncIterator[bytes]:
    """The whole body, decompressed; its memory is released at the end."""
    is_gzip = _is_gzip(request.headers.get("content-encoding", "identity"))
    memory = BodyMemory(budget)
    _check_size(int(request.headers.get("content-length", 0)), limit_bytes)  # it is a number
    try:
        data = await collect(receive_parts(request), limit_bytes, memory)
        if is_gzip:
            data = await collect(inflate(data, compute), limit_bytes, memory, len(data))
        yield data
    finally:
        memory.release()


async def collect(
    parts: AsyncIterator[bytes], limit_bytes: int, memory: BodyMemory, held_bytes: int = 0
) -> bytes:
    """Join the parts; `memory` holds `held_bytes` already."""
    collected: list[bytes] = []
    size = 0
    async for part in parts:
        size += len(part)
        _check_size(size, limit_bytes)
        memory.hold(held_bytes + size)
        collected.append(part)
    return b"".join(collected)


def _check_size(size: int, limit_bytes: int) -> None:
    if size > limit_bytes:
        raise TooLarge(f"a body is at most {limit_bytes} bytes; send less at a time")


async def receive_parts(request: Request) -> AsyncIterator[bytes]:
    """The body as it arrives."""
    try:
        async for part in request.stream():
            yield part
    except ClientDisconnect:
        raise BadRequest("the body ended too early", closes=True) from None


def _is_gzip(encoding: str) -> bool:
    match encoding.strip().lower():
        case "identity" | "":
            return False
        case "gzip" | "x-gzip":
            return True
    raise BadRequest("Content-Encoding must be gzip, or absent")


async def inflate(data: bytes, compute: Compute) -> AsyncIterator[bytes]:
    """Decompress a gzip body in steps."""
    inflater = zlib.decompressobj(_GZIP)
    position = min(len(data), _FIRST_INPUT_BYTES)
    yield _inflate_step(inflater, data[:position], _FIRST_BYTES)
    while not inflater.eof:
        rest = inflater.unconsumed_tail
        if not rest:
            rest = data[position : position + _STEP_INPUT_BYTES]
            position += len(rest)
        part = await compute(partial(_inflate_step, inflater, rest, _STEP_BYTES))
        if not part and not rest:
            raise BadRequest("the gzip body ends too early")
        yield part
    if inflater.unused_data or position < len(data):
        raise BadRequest("the gzip body has more data after its end")


def _inflate_step(inflater: zlib._Decompress, data: bytes, max_bytes: int) -> bytes:
    try:
        return inflater.decompress(data, max_bytes)
    except zlib.error:
        raise BadRequest("the body is not gzip, although Content-Encoding says so") from None
