"""A request's body in memory: bounded, paid for from the daemon's budget, inflated with care."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

from logd.errors import BadRequest, Busy, TooLarge
from logd.protocol import Budget

_INFLATE_BYTES = 1 << 16  # at a time
_GZIP = 31  # zlib's word for it


@asynccontextmanager
async def body(request: Request, limit_bytes: int, budget: Budget) -> AsyncIterator[bytes]:
    """The whole body, inflated where it is gzip; what it takes is given back at the end."""
    taken = 0
    pieces: list[bytes] = []
    inflater = _inflater(request.headers.get("content-encoding", "identity"))
    too_large = TooLarge(f"a body is at most {limit_bytes} bytes; send less at a time")
    if int(request.headers.get("content-length", 0)) > limit_bytes:  # the parser knows it is one
        raise too_large
    try:
        async for piece in _pieces(request):
            for part in _inflated(piece, inflater, limit_bytes - taken):
                if taken + len(part) > limit_bytes:
                    raise too_large
                if not budget.take(len(part)):
                    raise Busy("too many requests are under way; retry")
                taken += len(part)
                pieces.append(part)
        if inflater is not None and not inflater.eof:
            raise BadRequest("the gzip body ends too early")
        yield b"".join(pieces)
    finally:
        budget.give(taken)


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    try:
        async for piece in request.stream():
            yield piece
    except ClientDisconnect:
        raise BadRequest("the body ended too early", closes=True) from None


def _inflater(encoding: str) -> zlib._Decompress | None:
    match encoding.strip().lower():
        case "identity" | "":
            return None
        case "gzip" | "x-gzip":
            return zlib.decompressobj(_GZIP)
    raise BadRequest("Content-Encoding must be gzip, or left out")


def _inflated(piece: bytes, inflater: zlib._Decompress | None, left: int) -> list[bytes]:
    """What a piece holds; never much more than is left, however small it was."""
    if inflater is None:
        return [piece] if piece else []
    parts, size = [], 0
    try:
        while piece and not inflater.eof and size <= left:
            part = inflater.decompress(piece, _INFLATE_BYTES)
            piece = inflater.unconsumed_tail
            size += len(part)
            parts.append(part)
    except zlib.error as error:
        raise BadRequest(f"the body is not gzip: {error}") from None
    if inflater.unused_data:
        raise BadRequest("there is more behind the gzip body")
    return parts
