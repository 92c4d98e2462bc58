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

Inflate = Callable[[], bytes]
Compute = Callable[[Inflate], Awaitable[bytes]]


class BodyMemory:
    """The share of the budget that one body uses."""

    def __init__(self, budget: Budget, limit_bytes: int) -> None:
        self._budget, self._limit_bytes = budget, limit_bytes
        self._used_bytes = 0

    def add(self, size: int, body_bytes: int) -> None:
        """Use `size` bytes more for a body that now has `body_bytes`."""
        self.check(body_bytes)
        if not self._budget.take(size):
            raise Busy("too many requests are in progress; retry")
        self._used_bytes += size

    def check(self, body_bytes: int) -> None:
        if body_bytes > self._limit_bytes:
            raise TooLarge(f"a body is at most {self._limit_bytes} bytes; send less at a time")

    def release(self) -> None:
        self._budget.give(self._used_bytes)


@asynccontextmanager
async def open_body(
    request: Request, limit_bytes: int, budget: Budget, compute: Compute
) -> AsyncIterator[bytes]:
    """The whole body, decompressed; its memory is released at the end.

    `compute` runs a step on a thread."""
    is_gzip = _is_gzip(request.headers.get("content-encoding", "identity"))
    memory = BodyMemory(budget, limit_bytes)
    memory.check(int(request.headers.get("content-length", 0)))  # the HTTP parser validates it
    try:
        data = await _receive(request, memory)
        if is_gzip:
            data = await inflate(data, memory, compute)
        yield data
    finally:
        memory.release()


async def _receive(request: Request, memory: BodyMemory) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in receive_parts(request):
        size += len(part)
        memory.add(len(part), size)
        parts.append(part)
    return b"".join(parts)


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


async def inflate(data: bytes, memory: BodyMemory, compute: Compute) -> bytes:
    """Decompress a gzip body; memory use does not exceed the limit by more than one step."""
    inflater = zlib.decompressobj(_GZIP)
    position = min(len(data), _FIRST_INPUT_BYTES)
    part = _inflate_step(inflater, data[:position], _FIRST_BYTES)
    parts, size = [part], len(part)
    memory.add(size, size)
    while not inflater.eof:
        rest = inflater.unconsumed_tail
        if not rest:
            rest = data[position : position + _STEP_INPUT_BYTES]
            position += len(rest)
        part = await compute(partial(_inflate_step, inflater, rest, _STEP_BYTES))
        if not part and not rest:
            raise BadRequest("the gzip body ends too early")
        size += len(part)
        memory.add(len(part), size)
        parts.append(part)
    if inflater.unused_data or position < len(data):
        raise BadRequest("the gzip body has more data after its end")
    return b"".join(parts)


def _inflate_step(inflater: zlib._Decompress, data: bytes, max_bytes: int) -> bytes:
    try:
        return inflater.decompress(data, max_bytes)
    except zlib.error:
        raise BadRequest("the body is not gzip, although Content-Encoding says so") from None
