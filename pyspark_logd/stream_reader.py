"""Streaming reads: how far there is to read, and what each micro-batch has.

Spark keeps one of these alive in a Python process of the driver and asks it again and again. It
keeps a connection to each place, and waits out a daemon that is away for a while. What Spark may
never call, `commit` and `stop`, carries no weight here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from time import monotonic, sleep
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from logd.client.backoff import RETRYABLE, RetryDeadline
from logd.wire.topic_identity import kept
from pyspark_logd.arrow_columns import arrow_schema
from pyspark_logd.data_loss import on_loss
from pyspark_logd.errors import hidden_traceback, one_line
from pyspark_logd.options import SourceReadOptions, read_options
from pyspark_logd.query_ranges import resolve, within
from pyspark_logd.split_reader import PATIENCE_S, record_batches, still_there
from pyspark_logd.splits import Split, TopicSizes, cuts, shares
from pyspark_logd.stream_offsets import StreamProgress, fair_shares, from_json, to_json
from pyspark_logd.topic_sources import Extent, TopicSource, homes, open_place

T = TypeVar("T")
Homes = dict[str, TopicSource]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Options are read when the first question comes: what is raised here, Spark does not tell."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._given, self._columns = dict(given), schema
        self._places: list[TopicSource] = []
        self._homes: Homes = {}
        self._targets: Mapping[str, Extent] | None = None  # where availableNow ends
        self._latest: dict[str, int] = {}

    @cached_property
    def _options(self) -> SourceReadOptions:
        return read_options(self._given, is_stream=True)

    def _on_loss(self, topic: str, first: int, next_: int, why: str) -> None:
        on_loss(self._options.fails_on_data_loss)(topic, first, next_, why)

    # -- what Spark asks for ----------------------------------------------------------------------

    @one_line
    def initialOffset(self) -> dict[str, Any]:
        arrow_schema(self._columns)  # now, not in the first task
        return self._patiently(self._initial)

    @one_line
    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_trigger_messages
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    @one_line
    def prepareForTriggerAvailableNow(self) -> None:
        self._targets = self._patiently(
            lambda homes: {topic: place.extent(topic) for topic, place in homes.items()}
        )

    @one_line
    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        before = start if start is not None else self.initialOffset()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        topics = self._patiently(lambda homes: self._next(from_json(before), most, homes))
        return before if topics is None else to_json(topics)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return {"topics": self._latest} if self._latest else None

    @one_line
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """What is read is in `end` alone, see `stream_offsets`."""
        if start == end:
            return []
        return [*self._patiently(lambda homes: [*self._splits(from_json(end), homes)])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with hidden_traceback():
            yield from record_batches(partition, arrow_schema(self._columns), self._on_loss)

    def stop(self) -> None:
        self._hang_up()

    # -- the answers ------------------------------------------------------------------------------

    def _initial(self, homes: Homes) -> dict[str, Any]:
        found = {}
        for topic, place in homes.items():
            extent = place.extent(topic)
            start = resolve(self._options.start, topic, place, extent)
            start = within(topic, extent, start, max(start, extent.next), self._on_loss).start
            found[topic] = StreamProgress(extent.seen, [min(start, extent.next)])
        return to_json(found)

    def _next(
        self, before: dict[str, StreamProgress], most: int | None, homes: Homes
    ) -> dict[str, StreamProgress] | None:
        """How far each topic is after the next micro-batch; None where there is nothing new."""
        extents = {topic: place.extent(topic) for topic, place in homes.items()}
        self._latest = {topic: extent.next for topic, extent in extents.items()}
        starts = {topic: self._start(topic, before, extents[topic]) for topic in homes}
        waiting = {topic: self._stop(topic, extents[topic]) - starts[topic] for topic in homes}
        waiting = {topic: max(0, messages) for topic, messages in waiting.items()}
        counts = waiting if most is None else fair_shares(waiting, most)
        if not any(counts.values()):
            return None
        # Those that are not there now have nothing in this micro-batch.
        found = {topic: StreamProgress(was.seen, [was.next]) for topic, was in before.items()}
        sizes = {topic: TopicSizes(place.partitions(topic)) for topic, place in homes.items()}
        for topic, offsets in self._cut(starts, counts, sizes).items():
            found[topic] = StreamProgress(extents[topic].seen, offsets)
        return found

    def _start(self, topic: str, before: dict[str, StreamProgress], extent: Extent) -> int:
        """Where a topic goes on. One that is new to the query is read from its beginning."""
        if topic not in before:
            return extent.first
        progress = before[topic]
        if progress.seen.id != extent.seen.id:
            self._on_loss(topic, 0, progress.next, "the topic was made anew since they were read")
            return extent.first
        sound = kept(progress.seen, extent.seen, progress.next)
        if sound < progress.next:
            why = "they were read, and then lost in a crash of the daemon's machine"
            self._on_loss(topic, sound, progress.next, why)
        return within(topic, extent, sound, max(sound, extent.next), self._on_loss).start

    def _stop(self, topic: str, extent: Extent) -> int:
        if self._targets is None:
            return extent.next
        target = self._targets.get(topic)
        return min(extent.next, target.next) if target else 0

    def _cut(
        self, starts: dict[str, int], counts: dict[str, int], sizes: dict[str, TopicSizes]
    ) -> dict[str, list[int]]:
        stops = {topic: starts[topic] + counts[topic] for topic in starts}
        bytes_ = [sizes[t].before(stops[t]) - sizes[t].before(starts[t]) for t in starts]
        splits = shares(bytes_, self._options.min_splits)
        most = self._options.max_split_messages
        return {
            topic: cuts(sizes[topic], start, stops[topic], share, most) or [start]
            for (topic, start), share in zip(starts.items(), splits, strict=True)
        }

    def _splits(self, end: dict[str, StreamProgress], homes: Homes) -> Iterator[Split]:
        for topic, (seen, offsets) in end.items():
            if len(offsets) < 2:
                continue
            place = homes.get(topic)
            if place is None:
                self._on_loss(topic, offsets[0], offsets[-1], "there is no such topic any more")
                continue
            splits = [Split(place.site, topic, a, b, seen) for a, b in pairwise(offsets)]
            if self._options.fails_on_data_loss:  # said here, it reaches the user in one line
                for split in splits:
                    still_there(place, split, split.start, self._on_loss)
            yield from splits

    # -- places -----------------------------------------------------------------------------------

    def _patiently(self, ask: Callable[[Homes], T]) -> T:
        """Ask, with the place of each topic; again, where a daemon is away for a while."""
        patience = RetryDeadline(PATIENCE_S, monotonic())
        while True:
            try:
                return ask(self._find_homes())
            except RETRYABLE as error:
                self._hang_up()
                sleep(patience.pause_s(error, monotonic()))

    def _find_homes(self) -> Homes:
        """Topics that a pattern matches may be new; those with a name stay where they are."""
        if not self._places:
            for site in self._options.sites:
                self._places.append(open_place(site))
        if not self._homes or self._options.pattern is not None:
            self._homes = homes(self._options, self._places)
        return self._homes

    def _hang_up(self) -> None:
        self._homes = {}
        for place in self._places:
            place.close()
        self._places = []
