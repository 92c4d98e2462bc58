"""Streaming queries: decides the messages of each micro-batch.

Spark keeps a StreamReader in a Python process of the driver. It keeps a connection to each source
and retries while a daemon is unavailable. It does not depend on `commit` or `stop`, which Spark may
never call.
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
from logd.wire.offset_ranges import OffsetRange
from logd.wire.topic_identity import kept
from pyspark_logd.arrow_batches import arrow_schema
from pyspark_logd.errors import on_loss, one_line_errors
from pyspark_logd.options import SourceReadOptions, read_options
from pyspark_logd.split_reader import RETRY_TIMEOUT_S, readable_range, record_batches
from pyspark_logd.splits import Split, TopicSizes, split_topics
from pyspark_logd.stream_offsets import StreamProgress, from_json, limit_messages, to_json
from pyspark_logd.topic_sources import (
    Extent,
    TopicSource,
    locate_topics,
    open_source,
    resolve,
    within,
)

T = TypeVar("T")
SourceByTopic = dict[str, TopicSource]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Options are parsed at the first call: Spark does not report errors of the constructor."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._given, self._columns = dict(given), schema
        self._sources: list[TopicSource] = []
        self._by_topic: SourceByTopic = {}
        self._targets: Mapping[str, Extent] | None = None  # the end of availableNow
        self._latest: dict[str, int] = {}

    @cached_property
    def _options(self) -> SourceReadOptions:
        return read_options(self._given, is_stream=True)

    def _on_loss(self, topic: str, first: int, next_: int, reason: str) -> None:
        on_loss(self._options.fails_on_data_loss)(topic, first, next_, reason)

    # -- called by Spark --------------------------------------------------------------------------

    @one_line_errors()
    def initialOffset(self) -> dict[str, Any]:
        arrow_schema(self._columns)  # report errors now, not in the first task
        return self._retry(self._initial)

    @one_line_errors()
    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_trigger_messages
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    @one_line_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        self._targets = self._retry(
            lambda by_topic: {topic: source.extent(topic) for topic, source in by_topic.items()}
        )

    @one_line_errors()
    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        before = start if start is not None else self.initialOffset()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        topics = self._retry(lambda by_topic: self._next(from_json(before), most, by_topic))
        return before if topics is None else to_json(topics)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return {"topics": self._latest} if self._latest else None

    @one_line_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """`end` alone determines the splits, see `stream_offsets`."""
        if start == end:
            return []
        return [*self._retry(lambda by_topic: [*self._splits(from_json(end), by_topic)])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with one_line_errors():
            yield from record_batches(partition, arrow_schema(self._columns), self._on_loss)

    def stop(self) -> None:
        self._disconnect()

    # -- planning ---------------------------------------------------------------------------------

    def _initial(self, by_topic: SourceByTopic) -> dict[str, Any]:
        found = {}
        for topic, source in by_topic.items():
            extent = source.extent(topic)
            start = resolve(self._options.start, topic, source, extent)
            start = within(topic, extent, start, max(start, extent.next), self._on_loss).first
            found[topic] = StreamProgress(extent.identity, [min(start, extent.next)])
        return to_json(found)

    def _next(
        self, before: dict[str, StreamProgress], most: int | None, by_topic: SourceByTopic
    ) -> dict[str, StreamProgress] | None:
        """How far each topic is after the next micro-batch; None where there is nothing new."""
        extents = {topic: source.extent(topic) for topic, source in by_topic.items()}
        self._latest = {topic: extent.next for topic, extent in extents.items()}
        starts = {topic: self._start(topic, before, extents[topic]) for topic in by_topic}
        waiting = {topic: self._stop(topic, extents[topic]) - starts[topic] for topic in by_topic}
        waiting = {topic: max(0, messages) for topic, messages in waiting.items()}
        counts = waiting if most is None else limit_messages(waiting, most)
        if not any(counts.values()):
            return None
        # Topics that do not exist now have no messages in this micro-batch.
        found = {topic: StreamProgress(was.identity, [was.next]) for topic, was in before.items()}
        sizes = [TopicSizes(source.partitions(topic)) for topic, source in by_topic.items()]
        ranges = [OffsetRange(start, start + counts[topic]) for topic, start in starts.items()]
        topics, options = list(zip(sizes, ranges, strict=True)), self._options
        bounds = split_topics(topics, options.min_splits, options.max_split_messages)
        for topic, offsets in zip(by_topic, bounds, strict=True):
            found[topic] = StreamProgress(extents[topic].identity, offsets or [starts[topic]])
        return found

    def _start(self, topic: str, before: dict[str, StreamProgress], extent: Extent) -> int:
        """The offset to resume from. A topic that is new to the query is read from its start."""
        if topic not in before:
            return extent.first
        progress = before[topic]
        if progress.identity.id != extent.identity.id:
            reason = "the topic was deleted and created again after they were read"
            self._on_loss(topic, 0, progress.next, reason)
            return extent.first
        intact = kept(progress.identity, extent.identity, progress.next)
        if intact < progress.next:
            reason = "they were read, and the machine of the daemon then crashed and lost them"
            self._on_loss(topic, intact, progress.next, reason)
        return within(topic, extent, intact, max(intact, extent.next), self._on_loss).first

    def _stop(self, topic: str, extent: Extent) -> int:
        if self._targets is None:
            return extent.next
        target = self._targets.get(topic)
        return min(extent.next, target.next) if target else 0

    def _splits(self, end: dict[str, StreamProgress], by_topic: SourceByTopic) -> Iterator[Split]:
        for topic, (identity, offsets) in end.items():
            if len(offsets) < 2:
                continue
            source = by_topic.get(topic)
            if source is None:
                self._on_loss(topic, offsets[0], offsets[-1], "the topic no longer exists")
                continue
            splits = [Split(source.location, topic, a, b, identity) for a, b in pairwise(offsets)]
            if self._options.fails_on_data_loss:  # here the error reaches the user in one line
                for split in splits:
                    readable_range(source, split, split.start, self._on_loss)
            yield from splits

    # -- sources ----------------------------------------------------------------------------------

    def _retry(self, action: Callable[[SourceByTopic], T]) -> T:
        """Call `action` with the source of each topic; retry while a daemon is unavailable."""
        deadline = RetryDeadline(RETRY_TIMEOUT_S, monotonic())
        while True:
            try:
                return action(self._locate_topics())
            except RETRYABLE as error:
                self._disconnect()
                sleep(deadline.pause_s(error, monotonic()))

    def _locate_topics(self) -> SourceByTopic:
        """A pattern may match new topics, so it is evaluated every time."""
        if not self._sources:
            for location in self._options.locations:
                self._sources.append(open_source(location))
        if not self._by_topic or self._options.pattern is not None:
            self._by_topic = locate_topics(self._options, self._sources)
        return self._by_topic

    def _disconnect(self) -> None:
        self._by_topic = {}
        for source in self._sources:
            source.close()
        self._sources = []
