"""Where topics live, and how to ask there: a daemon, or its files on this host.

Its `Site` says where that is, and can travel to other machines in a split. Everything here answers
at once or raises; to be patient is the business of whoever asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from logd.errors import NotFound
from logd.offline import reader
from logd.wire import commands
from logd.wire.commands import Batches, PartitionInfo
from logd.wire.requests import At, Read
from logd.wire.topic_identity import TopicIdentity
from pyspark_logd.connections import dial
from pyspark_logd.errors import BadOption
from pyspark_logd.options import FILES, Site, SourceReadOptions

READ_BYTES = 1 << 20  # of a reply: what is built from 4 MiB takes three times as long per message


class Extent(NamedTuple):
    """What there is of a topic, and which topic it is."""

    first: int
    next: int
    seen: TopicIdentity


class TopicSource(Protocol):
    site: Site

    def close(self) -> None: ...
    def topics(self) -> list[str]: ...
    def extent(self, topic: str) -> Extent: ...
    def offset_at(self, topic: str, at: At) -> int: ...
    def partitions(self, topic: str) -> list[PartitionInfo]: ...
    def replies(self, topic: str, start: int, stop: int) -> Iterator[Batches]:
        """Whole batches that cover these offsets; it ends early where the topic does."""


def open_place(site: Site) -> TopicSource:
    return DataDirSource(site) if site.name.startswith(FILES) else DaemonSource(site)


class DaemonSource:
    def __init__(self, site: Site) -> None:
        self.site = site
        self._client = dial(site)

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
        """The next reply is asked for before the current one is worked on. Never for nothing."""
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
    """A data directory. Each question looks at the files anew, as a daemon's start would."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._data_dir = Path(site.name.removeprefix(FILES))
        if not self._data_dir.is_dir():
            raise BadOption(f"dataDir {self._data_dir} is no directory on this machine")

    def close(self) -> None:
        """Nothing to do: a file closes itself once nobody refers to it."""

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


# -- which topics, and where ----------------------------------------------------------------------


def homes(options: SourceReadOptions, places: list[TopicSource]) -> dict[str, TopicSource]:
    """The place of each topic that is to be read, by the topics' names."""
    found: dict[str, TopicSource] = {}
    for place in places:
        for topic in place.topics():
            if topic not in options.topics and not _matches(topic, options.pattern):
                continue
            if topic in found:
                raise BadOption(
                    f"topic {topic} is at {found[topic].site.name} and at {place.site.name};"
                    " read them as two data frames and join these with union"
                )
            found[topic] = place
    for topic in options.topics:
        if topic not in found:
            where = ", ".join(place.site.name for place in places)
            raise NotFound(f"no topic {topic} at {where}; `log-cli topics` lists what is there")
    return dict(sorted(found.items()))


def _matches(topic: str, pattern: str | None) -> bool:
    return pattern is not None and re.fullmatch(pattern, topic) is not None
