"""Feeds a Parser in every way bytes can arrive, and makes its requests comparable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from logd.protocol import Budget, Parser
from logd.wire.requests import Mixed, Push, Pushes, RefusedRequest, Request

MAX_BATCH_BYTES = 1000


class Plain(NamedTuple):
    """One of a run of plain pushes, so that runs can be compared however they were grouped."""

    topic: str
    body: bytes
    messages: int


class Err(NamedTuple):
    code: str
    closes: bool = False


Seen = Plain | Err | Request


def seen(requests: Iterable[Request]) -> list[Seen]:
    """Requests as values to compare: runs taken apart, errors by what the client notices."""
    out: list[Seen] = []
    for request in _apart(requests):
        if isinstance(request, Pushes):
            counts = request.counts or [1] * len(request.bodies)
            assert len(counts) == len(request.bodies) > 0
            out += [
                Plain(request.topic, bytes(body), count)
                for body, count in zip(request.bodies, counts, strict=True)
            ]
        elif isinstance(request, RefusedRequest):
            out.append(Err(request.error.code, request.error.closes))
        elif isinstance(request, Push):
            out.append(request._replace(body=bytes(request.body)))
        else:
            out.append(request)
    return out


def _apart(requests: Iterable[Request]) -> Iterator[Request]:
    for request in requests:
        if isinstance(request, Mixed):
            assert list(range(len(request.runs))) == list(dict.fromkeys(request.turns))
            assert all(request.runs.values())
            yield from request.one_by_one()
        else:
            yield request


def new_parser(budget: Budget | None = None) -> Parser:
    return Parser(MAX_BATCH_BYTES, budget or Budget(1 << 20))


def fed(pieces: Iterable[bytes], parser: Parser | None = None) -> list[Seen]:
    parser = parser or new_parser()
    return [item for piece in pieces for item in seen(parser.feed(piece))]


def fed_in_turns(pieces: Iterable[bytes], most: int, *, large: bool = False) -> list[Seen]:
    """With at most so many requests at a time: what is left of a piece is fed again."""
    parser, out = new_parser(), list[Seen]()
    for piece in pieces:
        while piece:
            feed = parser.feed_large if large else parser.feed
            requests = feed(memoryview(piece) if large else piece, most)  # type: ignore[arg-type]
            out += seen(requests)
            assert parser.unparsed_bytes == 0 or len(requests) >= most
            piece = piece[len(piece) - parser.unparsed_bytes :]
    return out


def received_in_place(data: bytes, piece_bytes: int, *, large: bool = False) -> list[Seen]:
    """As a bulk connection does it: what belongs to a body goes right where the body is kept."""
    parser, out, at = new_parser(), list[Seen](), 0
    while at < len(data):
        room = parser.room()
        if room is None and large:
            piece = data[at : at + piece_bytes]
            out += seen(parser.feed_large(memoryview(bytearray(piece))))
            at += len(piece)
        elif room is None:
            out += seen(parser.feed(data[at : at + piece_bytes]))
            at += piece_bytes
        else:
            piece = data[at : at + min(len(room), piece_bytes)]
            room[: len(piece)] = piece
            out += seen(parser.filled(len(piece)))
            at += len(piece)
    return out


def parsed(data: bytes) -> list[Seen]:
    """What these bytes mean. Fails if that depends on how they are cut."""
    whole = fed([data])
    for at in range(1, len(data)):
        assert fed([data[:at], data[at:]]) == whole, f"cut at {at}"
    assert fed(data[i : i + 1] for i in range(len(data))) == whole, "byte by byte"
    for piece_bytes in (1, 3, 7):
        assert received_in_place(data, piece_bytes) == whole, f"in place, {piece_bytes} at a time"
    for piece_bytes in range(1, len(data) + 1):
        assert received_in_place(data, piece_bytes, large=True) == whole, f"large, {piece_bytes}"
    return whole
