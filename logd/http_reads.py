"""Exact messages over HTTP: from here to there, those that match, once or as they come.

The daemon's own read gives whole batches; here they are checked, split, searched and written as
text or JSON, a piece at a time on a thread: a long scan holds up nobody and needs little memory.
A scan ends when its client goes.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import re2

from logd.asking import Asking
from logd.batch import MAX_NUMBER, Found
from logd.commands import Batches
from logd.errors import BadRequest, LogdError
from logd.reading import Batch, Gap, Reading, Rewind, lines
from logd.requests import At, Read, Stats, Where, number, where
from logd.shown import encode, json_objects

TEXT, NDJSON, EVENTS = "text/plain; charset=utf-8", "application/x-ndjson", "text/event-stream"
RAW = "application/vnd.logd.batches"
LIMIT = 1000  # messages, where nothing else is said
PIECE_BYTES = 256 * 1024  # of a topic that are worked on at a time
TEXT_BYTES = 1 << 20  # the same where there is hardly any work
RAW_BYTES = 8 << 20
KEEP_ALIVE_MS = 15_000
PROGRESS_S = 0.5
MAX_PATTERN_BYTES = 1000
_PATTERN_MEMORY_BYTES = 8 << 20


@dataclass(slots=True)
class Wanted:
    """What a client asked for."""

    topic: str
    start: Where = "first"
    limit: int = LIMIT
    until: int | None = None
    until_ms: int | None = None
    pattern: Any = None
    form: str = TEXT
    tells_progress: bool = False

    @property
    def is_plain(self) -> bool:
        """Is nothing wanted of single messages?"""
        return self.form == TEXT and self.pattern is None


@dataclass(slots=True)
class Piece:
    """What came of a piece of the topic."""

    out: bytes = b""
    found: int = 0
    next: int = 0


def wanted(topic: str, parameters: dict[str, str], accept: str) -> Wanted:
    """Of a query; BadRequest names the parameter that makes no sense."""
    known = {"from", "since", "until", "limit", "grep", "case", "progress", "format"}
    if unknown := parameters.keys() - known:
        names = ", ".join(sorted(known))
        raise BadRequest(f"unknown parameter {sorted(unknown)[0]!r}; known are {names}")
    asked = Wanted(topic, form=_form(parameters.get("format"), accept))
    if "from" in parameters and "since" in parameters:
        raise BadRequest("give from or since, not both")
    if "from" in parameters:
        asked.start = where(_ascii(parameters["from"]))
    if "since" in parameters:
        asked.start = At(_time_ms(parameters["since"], "since"))
    if "until" in parameters:
        _set_until(asked, parameters["until"])
    if "limit" in parameters:
        asked.limit = number(_ascii(parameters["limit"]), "limit") or MAX_NUMBER
    if "grep" in parameters:
        asked.pattern = compiled(parameters["grep"], parameters.get("case", "1") != "0")
    asked.tells_progress = parameters.get("progress", "0") != "0"
    return asked


def compiled(pattern: str, case_sensitive: bool) -> Any:
    """A regular expression that takes linear time on any input."""
    data = pattern.encode("utf-8", "replace")
    if len(data) > MAX_PATTERN_BYTES:
        raise BadRequest(f"grep is a regular expression of at most {MAX_PATTERN_BYTES} bytes")
    options = re2.Options()
    options.max_mem, options.log_errors = _PATTERN_MEMORY_BYTES, False
    options.case_sensitive = case_sensitive
    try:
        return re2.compile(data, options)
    except re2.error as error:
        raise BadRequest(f"grep is no regular expression: {_said(error)}") from None
    finally:
        re2.purge()  # it would keep the last 128, each with megabytes of what it has learnt


async def messages(asking: Asking, asked: Wanted) -> AsyncIterator[bytes]:
    """The response's body, piece by piece; a refusal comes before the first."""
    gaps: list[Gap | Rewind] = []
    limit = None if asked.pattern else asked.limit
    reading = Reading(
        asked.topic, start=asked.start, limit=limit, until=asked.until, until_ms=asked.until_ms,
        read_bytes=TEXT_BYTES if asked.is_plain else PIECE_BYTES, on_gap=gaps.append,
    )  # fmt: skip
    end = int((await stats(asking, asked.topic))["next"])
    left, told_at_s = asked.limit, time.monotonic()
    while left > 0 and not reading.is_done:
        piece = await _piece(asking, reading, asked, left)
        left -= piece.found
        out = piece.out
        if asked.tells_progress and time.monotonic() - told_at_s >= PROGRESS_S:
            told_at_s = time.monotonic()
            out += b'{"progress": {"offset": %d, "next": %d}}\n' % (piece.next, end)
        if out:
            yield out


async def followed(asking: Asking, asked: Wanted, or_first: bool) -> AsyncIterator[bytes]:
    """Server-sent events, for as long as the client listens, or up to what it named as the end."""
    gaps: list[Gap | Rewind] = []
    reading = Reading(
        asked.topic, start=asked.start, until=asked.until, until_ms=asked.until_ms,
        follow=True, or_first=or_first,
        read_bytes=PIECE_BYTES, on_gap=gaps.append, wait_ms=KEEP_ALIVE_MS,
    )  # fmt: skip
    yield b"retry: 1000\n\n"
    while not reading.is_done:
        piece = await _piece(asking, reading, asked, MAX_NUMBER)
        told = b"".join(b"event: gap\ndata: %s\n\n" % encode(str(gap)).encode() for gap in gaps)
        gaps.clear()
        # A comment keeps proxies from closing what looks idle.
        yield (told + piece.out) or b": nothing new up to %d\n\n" % piece.next


async def raw(asking: Asking, asked: Wanted) -> Batches:
    """Whole batches as they are on disk, as many as one READ gives."""
    return await asking.batches(Read(asked.topic, asked.start, asked.limit, RAW_BYTES))


async def stats(asking: Asking, topic: str | None = None) -> dict[str, str]:
    lines = (await asking.text(Stats(topic))).decode().splitlines()
    return dict(line.split(": ", 1) for line in lines)


async def _piece(asking: Asking, reading: Reading, asked: Wanted, left: int) -> Piece:
    try:
        reply = await asking.batches(reading.question())
    except LogdError as error:
        reading.refused(error)
        return Piece()
    reading.arrived(reply)
    if asked.is_plain:
        piece: Piece = await asking.offload(lambda: _text(reading.parts(reply)))
    else:
        piece = await asking.offload(lambda: _made(reading.cut(reply), asked, left))
    piece.next = reply.offset + reply.messages
    return piece


def _text(parts: Iterator[tuple[Found, int, int]]) -> Piece:
    """No more than was asked for: `Reading` knows the limit."""
    wanted = list(parts)
    out = b"".join([lines(*part) for part in wanted])
    return Piece(out, sum(stop - start for _, start, stop in wanted))


def _made(batches: Iterator[Batch], asked: Wanted, left: int) -> Piece:
    piece, out = Piece(), list[bytes]()
    for batch in batches:
        chosen = list(enumerate(batch.messages, batch.offset))
        if asked.pattern is not None:
            search = asked.pattern.search
            chosen = [one for one in chosen if search(one[1])]
        chosen = chosen[: left - piece.found]
        piece.found += len(chosen)
        if chosen:
            out.append(_shown(asked, batch.time_ms, chosen))
    piece.out = b"".join(out)
    return piece


def _shown(asked: Wanted, time_ms: int, chosen: list[tuple[int, bytes]]) -> bytes:
    if asked.form == TEXT:
        return b"".join(message + b"\n" for _, message in chosen)
    objects = json_objects(asked.topic, time_ms, chosen)
    if asked.form == NDJSON:
        return "".join(f"{one}\n" for one in objects).encode()
    events = zip(chosen, objects, strict=True)
    return "".join(f"id: {offset}\ndata: {one}\n\n" for (offset, _), one in events).encode()


def _form(name: str | None, accept: str) -> str:
    """By `format=`, else by what the client accepts: the first of its kinds that is known."""
    names = {"text": TEXT, "ndjson": NDJSON, "raw": RAW}
    if name is not None:
        if name not in names:
            raise BadRequest(f"format is one of {', '.join(names)}")
        return names[name]
    kinds = {"application/x-ndjson": NDJSON, "application/json": NDJSON, RAW: RAW}
    for kind in accept.split(","):
        if found := kinds.get(kind.partition(";")[0].strip().lower()):
            return found
    return TEXT


def _set_until(asked: Wanted, text: str) -> None:
    if text.startswith("@") or not text.isascii() or not text.isdigit():
        asked.until_ms = _time_ms(text, "until")
    else:
        asked.until = number(_ascii(text), "until")


def _time_ms(text: str, name: str) -> int:
    """`@<unix ms>`, or ISO 8601."""
    if text.removeprefix("@").isdigit():
        return number(_ascii(text.removeprefix("@")), name)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadRequest(f"{name} must be a time: 2026-01-31T12:00:00Z, or unix ms") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1000))


def _ascii(text: str) -> bytes:
    return text.encode("ascii", "replace")


def _said(error: Exception) -> str:
    said = error.args[0] if error.args else "?"
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
