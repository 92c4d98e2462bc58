"""The query parameters of `/topics/<topic>/messages` and `/follow`: range, filter and format.

A regular expression is limited in length and in program size, since RE2 takes linear time but
cannot be interrupted. Parses text only: imports nothing that knows requests or the service.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import re2

from logd.batch import MAX_NUMBER
from logd.errors import BadRequest
from logd.wire.requests import At, Where, number, where

TEXT, NDJSON, EVENTS = "text/plain; charset=utf-8", "application/x-ndjson", "text/event-stream"
RAW = "application/vnd.logd.batches"
LIMIT = 1000  # messages, by default
MAX_PATTERN_BYTES = 1000
MAX_PROGRAM_SIZE = 1500  # instructions: a byte takes up to 10 ns for each, measured
_PATTERN_MEMORY_BYTES = 1 << 20  # that a search may keep
_KNOWN = {"from", "since", "until", "limit", "grep", "case", "progress", "format"}


@dataclass(slots=True)
class ReadParameters:
    topic: str
    start: Where = "first"
    limit: int = LIMIT
    until: int | None = None
    until_ms: int | None = None
    pattern: Any = None
    media_type: str = TEXT
    reports_progress: bool = False


def parse_parameters(topic: str, query: dict[str, str], accept: str) -> ReadParameters:
    """BadRequest names the parameter that is invalid."""
    if unknown := query.keys() - _KNOWN:
        names = ", ".join(sorted(_KNOWN))
        raise BadRequest(f"unknown parameter {sorted(unknown)[0]!r}; known are {names}")
    parameters = ReadParameters(topic, media_type=_media_type(query.get("format"), accept))
    if "from" in query and "since" in query:
        raise BadRequest("give from or since, not both")
    if "from" in query:
        parameters.start = where(_ascii(query["from"]))
    if "since" in query:
        parameters.start = At(_time_ms(query["since"], "since"))
    if "until" in query:
        _set_until(parameters, query["until"])
    if "limit" in query:
        parameters.limit = number(_ascii(query["limit"]), "limit") or MAX_NUMBER
    if "grep" in query:
        parameters.pattern = _compile(query["grep"], query.get("case", "1") != "0")
    parameters.reports_progress = query.get("progress", "0") != "0"
    return parameters


def _compile(pattern: str, case_sensitive: bool) -> Any:
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
        raise BadRequest(f"grep is not a regular expression: {_text_of(error)}") from None
    finally:
        re2.purge()  # the module would keep the last 128, each with its automaton
    if program.programsize > MAX_PROGRAM_SIZE:
        raise BadRequest(
            f"grep takes {program.programsize} instructions; the limit is {MAX_PROGRAM_SIZE};"
            " use smaller repetitions and fewer character classes"
        )
    return program


def _text_of(error: Exception) -> str:
    text = error.args[0] if error.args else "?"
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)


def _media_type(name: str | None, accept: str) -> str:
    """By `format=`, otherwise the first known media type of the Accept header."""
    names = {"text": TEXT, "ndjson": NDJSON, "raw": RAW}
    if name is not None:
        if name not in names:
            raise BadRequest(f"format is one of {', '.join(names)}")
        return names[name]
    known = {"application/x-ndjson": NDJSON, "application/json": NDJSON, RAW: RAW}
    for one in accept.split(","):
        if found := known.get(one.partition(";")[0].strip().lower()):
            return found
    return TEXT


def _set_until(parameters: ReadParameters, text: str) -> None:
    if text.startswith("@") or not text.isascii() or not text.isdigit():
        parameters.until_ms = _time_ms(text, "until")
    else:
        parameters.until = number(_ascii(text), "until")


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
