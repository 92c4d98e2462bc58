"""Exact messages over HTTP: from here to there, those that match, once or as they come.

The daemon's own read gives whole batches. `http_walk` turns them into text or JSON on a thread, in
bounded steps; here the steps are asked for, one after the other, while the client takes what they
give. Before each of them it is checked that the client is still there and may still read.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import re2

from logd.batch import MAX_NUMBER
from logd.errors import BadRequest, IoError, LogdError, OutOfRange
from logd.web.async_service import AsyncService, Planned
from logd.web.batch_rendering import (
    NDJSON,
    PIECE_BYTES,
    TEXT,
    ReadPosition,
    RenderedPiece,
    Shape,
    Walk,
)
from logd.web.read_threads import ReadThreads
from logd.wire.commands import Batches
from logd.wire.read_state import Gap, ReadState, Rewind
from logd.wire.requests import At, Read, Where, number, where

RAW = "application/vnd.logd.batches"
LIMIT = 1000  # messages, where nothing else is said
READ_BYTES = 1 << 20  # of a topic that are planned at a time
RAW_BYTES = 8 << 20
KEEP_ALIVE_MS = 15_000
PROGRESS_S = 0.5
MAX_PATTERN_BYTES = 1000
MAX_PROGRAM_SIZE = 1500  # instructions: one byte takes up to 10 ns for each, measured
_PATTERN_MEMORY_BYTES = 1 << 20  # a search keeps as much as this


@dataclass(slots=True)
class ReadParameters:
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
    def shape(self) -> Shape:
        return Shape(self.topic, self.form, self.pattern)


def wanted(topic: str, parameters: dict[str, str], accept: str) -> ReadParameters:
    """Of a query; BadRequest names the parameter that makes no sense."""
    known = {"from", "since", "until", "limit", "grep", "case", "progress", "format"}
    if unknown := parameters.keys() - known:
        names = ", ".join(sorted(known))
        raise BadRequest(f"unknown parameter {sorted(unknown)[0]!r}; known are {names}")
    asked = ReadParameters(topic, form=_form(parameters.get("format"), accept))
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
    options.case_sensitive, options.never_capture = case_sensitive, True
    try:
        program: Any = re2.compile(data, options)
    except re2.error as error:
        raise BadRequest(f"grep is no regular expression: {_said(error)}") from None
    finally:
        re2.purge()  # it would keep the last 128, each with what it has learnt
    if program.programsize > MAX_PROGRAM_SIZE:
        raise BadRequest(
            f"grep takes {program.programsize} instructions, and may take {MAX_PROGRAM_SIZE};"
            " use smaller repetitions and fewer character classes"
        )
    return program


class Disconnected(LogdError):
    """Of no use to the client; it ends the work for it."""


class TopicReads:
    """A topic as one client reads it: a step at a time, for as long as it may and is there."""

    def __init__(
        self, asking: AsyncService, steps: ReadThreads, client: str, is_gone: Callable[[], bool]
    ) -> None:
        self.asking, self.steps, self._is_gone = asking, steps, is_gone
        self._client = client
        self._place: ReadPosition | None = None  # where a reply is to be continued
        self._verified = 0
        self.gaps: list[Gap | Rewind] = []

    @contextmanager
    def opened(self, asked: ReadParameters) -> Iterator[None]:
        """For as long as it is read; Busy where there are too many searches."""
        with nullcontext() if asked.pattern is None else self.steps.search(self._client):
            try:
                yield
            finally:
                self.steps.kept.drop(self)

    def has_more(self, reading: ReadState) -> bool:
        return self._place is not None or not reading.is_done

    def check(self, topic: str) -> None:
        """Before each step: may the client still read, and is it there? If not, its response is
        cut off: it must not end as if it were whole."""
        if self._is_gone():
            raise Disconnected("the client has disconnected")
        self.asking.check(Read(topic, "first", 1))

    async def piece(self, reading: ReadState, shape: Shape, left: int) -> RenderedPiece:
        """What comes next, which may be nothing."""
        walk = None
        if self._place is None:
            try:
                walk = await self._begin(reading, shape, left)  # may wait for messages
            except OutOfRange as error:
                reading.refused(error)
                return RenderedPiece(b"", 0, ReadPosition(0))
        steps = self.steps
        turn = steps.turn_to_search(self._client) if shape.pattern else steps.turn_to_read()
        async with turn as running:
            self.check(shape.topic)
            walk = walk or steps.kept.take(self) or await self._begin(reading, shape, left)
            try:
                piece = await running.do(walk.step)
            except BaseException:
                walk.is_cancelled = True
                running.then(walk.close)
                raise
        self._verified = walk.verified
        if walk.is_done:
            self._place = None
        else:
            self._place = walk.place
            steps.kept.keep(self, walk)
        return piece

    async def _begin(self, reading: ReadState, shape: Shape, left: int) -> Walk:
        place = self._place
        if place is not None:
            reading.where = place.offset
        question = reading.question()
        assert isinstance(question, Read)  # TAIL is not asked for here
        if place is not None:  # in the middle of a reply, so there is nothing to wait for
            question = question._replace(wait_ms=0)
        if shape.pattern is None:
            question = question._replace(messages=min(question.messages, left))
        planned = await self.asking.planned(question)
        reading.arrived(Batches(planned.offset, planned.messages, b""))
        start = place or ReadPosition(planned.offset)
        return Walk(planned, reading, shape, start, left, self._verified, self.gaps)


async def messages(source: TopicReads, asked: ReadParameters) -> AsyncGenerator[bytes, None]:
    """The response's body, piece by piece; a refusal comes before the first."""
    reading = ReadState(
        asked.topic, start=asked.start, until=asked.until, until_ms=asked.until_ms,
        read_bytes=READ_BYTES, on_gap=source.gaps.append,
    )  # fmt: skip
    left, told_at_s = asked.limit, time.monotonic()
    with source.opened(asked):
        end = (await source.asking.stats(asked.topic))["next"]
        while left > 0 and source.has_more(reading):
            piece = await source.piece(reading, asked.shape, left)
            left -= piece.found
            out, now_s = piece.out, time.monotonic()
            if asked.tells_progress and now_s - told_at_s >= PROGRESS_S and not piece.place.skip:
                told_at_s = now_s
                out += b'{"progress": {"offset": %d, "next": %d}}\n' % (piece.place.offset, end)
            del piece  # a client that takes nothing shall not keep it
            if out:
                yield out


async def followed(
    source: TopicReads, asked: ReadParameters, or_first: bool
) -> AsyncGenerator[bytes, None]:
    """Server-sent events, for as long as the client listens, or up to what it named as the end."""
    reading = ReadState(
        asked.topic, start=asked.start, until=asked.until, until_ms=asked.until_ms,
        follow=True, or_first=or_first,
        read_bytes=READ_BYTES, on_gap=source.gaps.append, wait_ms=KEEP_ALIVE_MS,
    )  # fmt: skip
    with source.opened(asked):
        yield b"retry: 1000\n\n"
        said_at_s = time.monotonic()
        while source.has_more(reading):
            piece = await source.piece(reading, asked.shape, MAX_NUMBER)
            out, now_s = piece.out, time.monotonic()
            if not out and now_s - said_at_s >= KEEP_ALIVE_MS / 1000:
                # A comment keeps proxies from closing what looks idle.
                out = b": nothing new up to %d\n\n" % piece.place.offset
            del piece
            if out:
                said_at_s = now_s
                yield out


async def raw(source: TopicReads, planned: Planned, topic: str) -> AsyncGenerator[bytes, None]:
    """Whole batches as they are on disk."""
    at = 0
    while at < planned.size:
        source.check(topic)
        async with source.steps.turn_to_read() as running:
            data = bytes(await running.do(planned.read, at, PIECE_BYTES))
        if not data:
            raise IoError("a file is shorter than it was; run log-cli check")
        at += len(data)
        yield data


async def planned_raw(asking: AsyncService, asked: ReadParameters) -> Planned:
    """As many batches as one READ gives."""
    return await asking.planned(Read(asked.topic, asked.start, asked.limit, RAW_BYTES))


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


def _set_until(asked: ReadParameters, text: str) -> None:
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
