"""The options of a query, each read once: names, defaults, and what is wrong with a value.

Names are those that users of the Kafka source know. Spark does not care about their case, so
neither does this. Pure: nobody is asked whether a host or a topic exists.
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

FILES = "file:"  # before the directory, where files are read and no daemon is asked

Edge = Where | Mapping[str, Where]  # where a read starts or ends: for all topics, or for each

_SHOWN = {"token": "token", "tokenFile": "token_file", "ca": "ca", "cert": "cert", "key": "key"}
_READ = (
    "host", "servers", *_SHOWN, "dataDir", "subscribe", "subscribePattern", "startingOffsets",
    "startingTimestamp", "minPartitions", "maxRecordsPerPartition", "failOnDataLoss",
)  # fmt: skip
BATCH_READ = (*_READ, "endingOffsets", "endingTimestamp", "pushFilters")
STREAM_READ = (*_READ, "maxOffsetsPerTrigger")
ANY_READ = (*BATCH_READ, "maxOffsetsPerTrigger")
WRITE = ("host", *_SHOWN, "topic", "compress")
_SPELT = {name.lower(): name for name in (*ANY_READ, *WRITE)}
_SPARKS = {"checkpointlocation", "queryname"}  # which Spark hands to sinks along with theirs
_NAMED = {"earliest": "first", "latest": "next", -2: "first", -1: "next"}  # as in Kafka's JSON


@dataclass(frozen=True, slots=True)
class Site:
    """Where to connect to, or a data directory behind `file:`. It travels to the tasks, so whatever
    else a connection needs belongs here, and is used by `connecting`."""

    name: str
    endpoint: Endpoint | None = None  # where there is something to show


@dataclass(frozen=True, slots=True)
class SourceReadOptions:
    sites: tuple[Site, ...]
    topics: tuple[str, ...]  # empty where there is a pattern
    pattern: str | None
    start: Edge
    stop: Edge
    min_splits: int
    max_split_messages: int
    max_trigger_messages: int | None
    fails_on_data_loss: bool
    pushes_filters: bool


@dataclass(frozen=True, slots=True)
class SourceWriteOptions:
    site: Site
    topic: str | None  # None where each row names its own
    compresses: bool


def read_options(options: Mapping[str, str], *, is_stream: bool) -> SourceReadOptions:
    return _read_options(_known(options, STREAM_READ if is_stream else BATCH_READ), is_stream)


def any_read_options(options: Mapping[str, str]) -> SourceReadOptions:
    """Where it is not known yet whether it will be a stream."""
    return _read_options(_known(options, ANY_READ), is_stream=False)


def _read_options(given: Mapping[str, str], is_stream: bool) -> SourceReadOptions:
    topics, pattern = _topics(given)
    return SourceReadOptions(
        _sites(given),
        topics,
        pattern,
        _edge(given, "starting", topics, "next" if is_stream else "first"),
        _edge(given, "ending", topics, "next"),
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
        _sites(given)[0], checked_topic(topic) if topic else None, _flag(given, "compress", False)
    )


# -- one value each -----------------------------------------------------------------------------


def _known(options: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """The options by the names as they are written in the documents."""
    found = {}
    for given, value in options.items():
        name = _SPELT.get(given.lower(), given)
        if name in names:
            found[name] = value
        elif given.lower() not in _SPARKS:
            kind = "not for this" if name in _SPELT.values() else "unknown"
            raise BadOption(f"the option {name} is {kind}; there are {', '.join(names)}")
    return found


def _sites(given: Mapping[str, str]) -> tuple[Site, ...]:
    named = [name for name in ("host", "servers", "dataDir") if name in given]
    if len(named) > 1:
        raise BadOption(f"{' and '.join(named)} exclude each other; give one of them")
    if "dataDir" in given:
        for name in _SHOWN:
            if name in given:
                raise BadOption(f"{name} is for daemons; with dataDir nobody asks for it")
        return (Site(f"{FILES}{given['dataDir']}"),)
    host = given.get("host") or os.environ.get("LOGD_HOST") or DEFAULT_ADDRESS
    words = _words(given["servers"], "servers") if "servers" in given else [host]
    try:
        found = dict.fromkeys(addresses(words))
        shown = {field: given[name] for name, field in _SHOWN.items() if name in given}
        return tuple(Site(at, Endpoint(at, **shown) if shown else None) for at in found)
    except ValueError as error:
        raise BadOption(str(error)) from None


def _topics(given: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    pattern = given.get("subscribePattern")
    if ("subscribe" in given) == (pattern is not None):
        raise BadOption(
            "say what to read: subscribe=<topic>,<topic> or subscribePattern=<regular expression>"
        )
    if pattern is None:
        names = _words(given["subscribe"], "subscribe")
        return tuple(dict.fromkeys(map(checked_topic, names))), None
    try:
        re.compile(pattern)
    except re.error as error:
        raise BadOption(f"subscribePattern {pattern!r} is no regular expression: {error}") from None
    return (), pattern


def _edge(given: Mapping[str, str], which: str, topics: tuple[str, ...], default: Where) -> Edge:
    offsets, time = f"{which}Offsets", f"{which}Timestamp"
    if offsets in given and time in given:
        raise BadOption(f"{offsets} and {time} exclude each other; give one of them")
    if time in given:
        return At(_number(given, time, 0))
    if offsets not in given:
        return default
    text = given[offsets].strip()
    if text in _NAMED:
        return _NAMED[text]
    if not text.startswith("{"):
        if len(topics) != 1:
            raise BadOption(f"{offsets} for several topics is earliest, latest or JSON by topic")
        return _number(given, offsets, 0)
    return _edges(offsets, text, topics)


def _edges(offsets: str, text: str, topics: tuple[str, ...]) -> Mapping[str, Where]:
    try:
        found = {topic: _json_edge(offset) for topic, offset in json.loads(text).items()}
    except ValueError:
        raise BadOption(
            f'{offsets} must be earliest, latest, an offset, or JSON such as {{"app": 5}},'
            f" not {text[:100]}"
        ) from None
    if topics and found.keys() != {*topics}:
        raise BadOption(f"{offsets} must have an offset for each of {', '.join(topics)}, no others")
    return found


def _json_edge(offset: Any) -> Where:
    if isinstance(offset, str | int) and offset in _NAMED:
        return _NAMED[offset]
    if type(offset) is int and 0 <= offset <= MAX_NUMBER:
        return offset
    raise ValueError


def _words(text: str, name: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise BadOption(f"{name} is empty; separate several by commas")
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
