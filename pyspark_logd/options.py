"""The options of a query: names, defaults and validation.

Options that Spark's Kafka source also has are named as there. Names are case-insensitive, as in
Spark. Pure: whether a host or a topic exists is not checked here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from logd.batch import MAX_NUMBER
from logd.wire.addresses import DEFAULT_ADDRESS, Endpoint, addresses
from logd.wire.commands import checked_topic
from logd.wire.requests import At, Where
from pyspark_logd.errors import BadOption

FILE_PREFIX = "file:"  # of a location that is a data directory

OffsetBound = Where | Mapping[str, Where]  # start or end of a query: for all topics, or by topic

_CREDENTIALS = {
    "token": "token",
    "tokenFile": "token_file",
    "ca": "ca",
    "cert": "cert",
    "key": "key",
}
_READ = (
    "host", "servers", *_CREDENTIALS, "dataDir", "subscribe", "subscribePattern", "startingOffsets",
    "startingTimestamp", "minPartitions", "maxRecordsPerPartition", "failOnDataLoss",
)  # fmt: skip
BATCH_READ = (*_READ, "endingOffsets", "endingTimestamp", "pushFilters")
STREAM_READ = (*_READ, "maxOffsetsPerTrigger")
ANY_READ = (*BATCH_READ, "maxOffsetsPerTrigger")
WRITE = ("host", *_CREDENTIALS, "topic", "compress")
_CANONICAL = {name.lower(): name for name in (*ANY_READ, *WRITE)}
_SPARK_OPTIONS = {"checkpointlocation", "queryname"}  # Spark passes its own options to sinks too
_NAMED = {"earliest": "first", "latest": "next", -2: "first", -1: "next"}  # as in Kafka's JSON


@dataclass(frozen=True, slots=True)
class Location:
    """The address of a daemon, or `file:` and a data directory. It is serialized with each task, so
    it contains everything that a connection needs."""

    name: str
    endpoint: Endpoint | None = None  # if there are credentials


@dataclass(frozen=True, slots=True)
class SourceReadOptions:
    locations: tuple[Location, ...]
    topics: tuple[str, ...]  # empty if there is a pattern
    pattern: str | None
    start: OffsetBound
    stop: OffsetBound
    min_splits: int
    max_split_messages: int
    max_trigger_messages: int | None
    fails_on_data_loss: bool
    pushes_filters: bool


@dataclass(frozen=True, slots=True)
class SourceWriteOptions:
    location: Location
    topic: str | None  # None if the rows have a column topic
    compresses: bool


def read_options(options: Mapping[str, str], *, is_stream: bool) -> SourceReadOptions:
    return _read_options(_known(options, STREAM_READ if is_stream else BATCH_READ), is_stream)


def any_read_options(options: Mapping[str, str]) -> SourceReadOptions:
    """Options of a query that may be a batch or a streaming query."""
    return _read_options(_known(options, ANY_READ), is_stream=False)


def _read_options(given: Mapping[str, str], is_stream: bool) -> SourceReadOptions:
    topics, pattern = _topics(given)
    return SourceReadOptions(
        _locations(given),
        topics,
        pattern,
        _bound(given, "starting", topics, "next" if is_stream else "first"),
        _bound(given, "ending", topics, "next"),
        _number(given, "minPartitions", 1, at_most=100_000),
        _number(given, "maxRecordsPerPartition", MAX_NUMBER, at_least=1),
        _number(given, "maxOffsetsPerTrigger", 0, at_least=1) or None,
        _flag(given, "failOnDataLoss", True),
        _flag(given, "pushFilters", False),
    )


def write_options(options: Mapping[str, str]) -> SourceWriteOptions:
    given = _known(options, WRITE)
    topic = given.get("topic")
    return SourceWriteOptions(
        _locations(given)[0],
        checked_topic(topic) if topic else None,
        _flag(given, "compress", False),
    )


# -- values --------------------------------------------------------------------------------------


def _known(options: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """The options by their documented names."""
    found = {}
    for given, value in options.items():
        name = _CANONICAL.get(given.lower(), given)
        if name in names:
            found[name] = value
        elif given.lower() not in _SPARK_OPTIONS:
            problem = "not valid here" if name in _CANONICAL.values() else "unknown"
            raise BadOption(f"the option {name} is {problem}; options are {', '.join(names)}")
    return found


def _locations(given: Mapping[str, str]) -> tuple[Location, ...]:
    named = [name for name in ("host", "servers", "dataDir") if name in given]
    if len(named) > 1:
        raise BadOption(f"{' and '.join(named)} exclude each other; set one of them")
    if "dataDir" in given:
        for name in _CREDENTIALS:
            if name in given:
                raise BadOption(f"{name} cannot be used with dataDir, which needs no connection")
        return (Location(f"{FILE_PREFIX}{given['dataDir']}"),)
    host = given.get("host") or os.environ.get("LOGD_HOST") or DEFAULT_ADDRESS
    words = _words(given["servers"], "servers") if "servers" in given else [host]
    try:
        found = dict.fromkeys(addresses(words))
        credentials = {field: given[name] for name, field in _CREDENTIALS.items() if name in given}
        return tuple(
            Location(at, Endpoint(at, **credentials) if credentials else None) for at in found
        )
    except ValueError as error:
        raise BadOption(str(error)) from None


def _topics(given: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    pattern = given.get("subscribePattern")
    if ("subscribe" in given) == (pattern is not None):
        raise BadOption("set subscribe=<topic>,<topic> or subscribePattern=<regular expression>")
    if pattern is None:
        names = _words(given["subscribe"], "subscribe")
        return tuple(dict.fromkeys(map(checked_topic, names))), None
    try:
        re.compile(pattern)
    except re.error as error:
        raise BadOption(
            f"subscribePattern {pattern!r} is not a regular expression: {error}"
        ) from None
    return (), pattern


def _bound(
    given: Mapping[str, str], which: str, topics: tuple[str, ...], default: Where
) -> OffsetBound:
    offsets, time = f"{which}Offsets", f"{which}Timestamp"
    if offsets in given and time in given:
        raise BadOption(f"{offsets} and {time} exclude each other; set one of them")
    if time in given:
        return At(_number(given, time, 0))
    if offsets not in given:
        return default
    text = given[offsets].strip()
    if text in _NAMED:
        return _NAMED[text]
    if not text.startswith("{"):
        if len(topics) != 1:
            raise BadOption(
                f"{offsets} for several topics must be earliest, latest or JSON by topic"
            )
        return _number(given, offsets, 0)
    return _bounds_by_topic(offsets, text, topics)


def _bounds_by_topic(offsets: str, text: str, topics: tuple[str, ...]) -> Mapping[str, Where]:
    try:
        found = {topic: _json_bound(offset) for topic, offset in json.loads(text).items()}
    except ValueError:
        raise BadOption(
            f'{offsets} must be earliest, latest, an offset, or JSON such as {{"app": 5}},'
            f" not {text[:100]}"
        ) from None
    if topics and found.keys() != {*topics}:
        raise BadOption(
            f"{offsets} must have an offset for each of {', '.join(topics)} and no others"
        )
    return found


def _json_bound(offset: Any) -> Where:
    if isinstance(offset, str | int) and offset in _NAMED:
        return _NAMED[offset]
    if type(offset) is int and 0 <= offset <= MAX_NUMBER:
        return offset
    raise ValueError


def _words(text: str, name: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise BadOption(f"{name} is empty; separate several values by commas")
    return words


def _number(
    given: Mapping[str, str],
    name: str,
    default: int,
    *,
    at_least: int = 0,
    at_most: int = MAX_NUMBER,
) -> int:
    if name not in given:
        return default
    text = given[name].strip()
    if not re.fullmatch(r"[0-9]{1,19}", text) or not at_least <= int(text) <= at_most:
        raise BadOption(f"{name} must be a number from {at_least} to {at_most}, not {text[:40]!r}")
    return int(text)


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise BadOption(f"{name} must be true or false, not {text[:40]!r}")
    return text == "true"
