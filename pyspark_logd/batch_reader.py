"""Batch queries: the driver decides once which offsets to read, and tasks read them in parallel."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from logd.wire.offset_ranges import OffsetRange
from logd.wire.topic_identity import TopicIdentity
from pyspark_logd.arrow_columns import arrow_schema
from pyspark_logd.data_loss import on_loss
from pyspark_logd.errors import hidden_traceback, one_line_errors
from pyspark_logd.options import Location, SourceReadOptions
from pyspark_logd.query_ranges import resolve, within
from pyspark_logd.split_reader import record_batches
from pyspark_logd.splits import Split, TopicSizes, split_counts, split_offsets
from pyspark_logd.topic_sources import TopicSource, located_topics


class TopicQuery(NamedTuple):
    """The offsets of a topic that a query reads."""

    topic: str
    location: Location
    identity: TopicIdentity
    offsets: OffsetRange
    sizes: TopicSizes

    @property
    def bytes(self) -> float:
        return self.sizes.before(self.offsets.next) - self.sizes.before(self.offsets.first)


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, arrow_schema(schema)

    @one_line_errors
    def partitions(self) -> list[InputPartition]:
        with located_topics(self._options) as by_topic:
            return [*plan_splits(self._options, [self._query(*one) for one in by_topic.items()])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with hidden_traceback():
            if isinstance(partition, Split):  # Spark passes None if there are no splits
                loss = on_loss(self._options.fails_on_data_loss)
                yield from record_batches(partition, self._schema, loss)

    def narrow(self, topic: str, source: TopicSource, available: OffsetRange) -> OffsetRange:
        """The offsets that may match the filters."""
        return available

    def _query(self, topic: str, source: TopicSource) -> TopicQuery:
        options = self._options
        extent = source.extent(topic)
        start = resolve(options.start, topic, source, extent)
        stop = resolve(options.stop, topic, source, extent)
        available = within(topic, extent, start, stop, on_loss(options.fails_on_data_loss))
        offsets = self.narrow(topic, source, available)
        return TopicQuery(
            topic, source.location, extent.identity, offsets, TopicSizes(source.partitions(topic))
        )


def plan_splits(options: SourceReadOptions, queries: list[TopicQuery]) -> Iterator[Split]:
    """The splits of a batch query, ordered by topic and offset."""
    counts = split_counts([query.bytes for query in queries], options.min_splits)
    for query, count in zip(queries, counts, strict=True):
        offsets = split_offsets(query.sizes, *query.offsets, count, options.max_split_messages)
        for start, stop in pairwise(offsets):
            yield Split(query.location, query.topic, start, stop, query.identity)
