"""The sources of topics, a daemon or a data directory on this host; and the offsets they have.

A `Location` identifies a source and is serialized with each split. Nothing here retries; the
callers do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from logd.client.client import Client
from logd.errors import NotFound
from logd.offline import reader
from logd.wire import commands
from logd.wire.commands import Batches, PartitionInfo
from logd.wire.offset_ranges import OffsetRange
from logd.wire.requests import At, Read, Where
from logd.wire.topic_identity import TopicIdentity
from pyspark_logd.errors import BadOption, OnLoss
from pyspark_logd.options import FILE_PREFIX, Location, OffsetBound, SourceReadOptions

TIMEOUT_S = 30.0
READ_BYTES = 1 << 20  # per reply; with 4 MiB, a message took three times as long


class Extent(NamedTuple):
    """The offsets that a topic has, and its identity."""

    first: int
    next: int
    identity: TopicIdentity


def connect(location: Location) -> Client:
    return Client(location.endpoint or location.name, timeout_s=TIMEOUT_S)


class DaemonSource:
    def __init__(self, location: Location) -> None:
        self.location = location
        self._client = connect(location)

    def close(self) -> None:
        self._client.close()

    def topics(self) -> list[str]:
        return [info.topic for info in self._client.topics()]

    def extent(self, topic: str) -> Extent:
        return _extent(self._client.stats(topic))

    def offset_at(self, topic: str, at: At) -> int:
        return self._client.read(topic, at, 1, max_bytes=1).offset

    def partitions(self, topic: str) -> list[PartitionInfo]:
        return self._client.partitions(topic)

    def replies(self, topic: str, start: int, stop: int) -> Iterator[Batches]:
        """Whole batches that cover these offsets; it ends early if the topic does.

        Requests the next reply before the current one is processed.
        """
        self._ask(topic, start, stop)
        while start < stop:
            reply: Batches = self._client.receive()
            start = reply.offset + reply.messages
            if not reply.messages:
                return
            if start < stop:
                self._ask(topic, start, stop)
            yield reply

    def _ask(self, topic: str, start: int, stop: int) -> None:
        self._client.send(commands.read(Read(topic, start, stop - start, READ_BYTES)))


class DataDirSource:
    """A data directory. Every method reads the files again, as a starting daemon would."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self._data_dir = Path(location.name.removeprefix(FILE_PREFIX))
        if not self._data_dir.is_dir():
            raise BadOption(f"dataDir {self._data_dir} is not a directory on this machine")

    def close(self) -> None:
        """Files are closed when they are no longer referenced."""

    def topics(self) -> list[str]:
        return [info.topic for info in reader.topics(self._data_dir)]

    def extent(self, topic: str) -> Extent:
        return _extent(reader.stats(self._data_dir, topic))

    def offset_at(self, topic: str, at: At) -> int:
        return reader.snapshot_of(self._data_dir, topic).readable.resolve(at)

    def partitions(self, topic: str) -> list[PartitionInfo]:
        view = reader.snapshot_of(self._data_dir, topic).readable
        return [
            PartitionInfo(part.first, *view.visible(part), 0, 0)
            for part in view.partitions.values()
        ]

    def replies(self, topic: str, start: int, stop: int) -> Iterator[Batches]:
        view = reader.snapshot_of(self._data_dir, topic).readable
        start = view.resolve(start)
        while start < min(stop, view.next):
            plan = view.plan(start, stop - start, READ_BYTES)
            yield reader.read_plan(plan)
            start = plan.offset + plan.messages


def _extent(stats: dict[str, str]) -> Extent:
    return Extent(int(stats["first"]), int(stats["next"]), TopicIdentity.of(stats))


TopicSource = DaemonSource | DataDirSource


def open_source(location: Location) -> TopicSource:
    is_directory = location.name.startswith(FILE_PREFIX)
    return DataDirSource(location) if is_directory else DaemonSource(location)


def locate_topics(options: SourceReadOptions, sources: list[TopicSource]) -> dict[str, TopicSource]:
    """The source of each topic of a query, sorted by topic."""
    found: dict[str, TopicSource] = {}
    for source in sources:
        for topic in source.topics():
            if topic not in options.topics and not _matches(topic, options.pattern):
                continue
            if topic in found:
                raise BadOption(
                    f"topic {topic} exists at {found[topic].location.name} and at"
                    f" {source.location.name}; read two data frames and combine them with union"
                )
            found[topic] = source
    for topic in options.topics:
        if topic not in found:
            where = ", ".join(source.location.name for source in sources)
            raise NotFound(f"no topic {topic} at {where}; `log-cli topics` lists the topics")
    return dict(sorted(found.items()))


@contextmanager
def located_topics(options: SourceReadOptions) -> Iterator[dict[str, TopicSource]]:
    """The same, with sources that are open within the block."""
    with ExitStack() as stack:
        sources = [stack.enter_context(closing(open_source(each))) for each in options.locations]
        yield locate_topics(options, sources)


def _matches(topic: str, pattern: str | None) -> bool:
    return pattern is not None and re.fullmatch(pattern, topic) is not None


# -- offsets --------------------------------------------------------------------------------------


def resolve(bound: OffsetBound, topic: str, source: TopicSource, extent: Extent) -> int:
    """The offset of a bound. The topic may not have it."""
    where: Where = bound if not isinstance(bound, Mapping) else _of(bound, topic)
    if isinstance(where, At):
        return source.offset_at(topic, where)
    if isinstance(where, str):
        return {"first": extent.first, "next": extent.next}[where]
    return where


def _of(bounds: Mapping[str, Where], topic: str) -> Where:
    if topic not in bounds:
        raise BadOption(f"there is no offset for topic {topic}, which subscribePattern matches")
    return bounds[topic]


def within(topic: str, extent: Extent, start: int, stop: int, on_loss: OnLoss) -> OffsetRange:
    """The available offsets from `start` to before `stop`; missing ones are passed to `on_loss`."""
    start = min(start, stop)
    if start < (first := min(extent.first, stop)):
        on_loss(topic, start, first, "they have expired")
    if stop > (next_ := max(extent.next, start)):
        on_loss(topic, next_, stop, f"the topic ends at {extent.next}")
    return OffsetRange(max(start, extent.first), min(stop, extent.next))
