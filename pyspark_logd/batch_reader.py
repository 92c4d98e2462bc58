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
from pyspark_logd.arrow_batches import arrow_schema
from pyspark_logd.errors import on_loss, one_line_errors
from pyspark_logd.options import Location, SourceReadOptions
from pyspark_logd.split_reader import record_batches
from pyspark_logd.splits import Split, TopicSizes, split_topics
from pyspark_logd.topic_sources import TopicSource, located_topics, resolve, within


class TopicQuery(NamedTuple):
    """The offsets of a topic that a query reads."""

    topic: str
    location: Location
    identity: TopicIdentity
    offsets: OffsetRange
    sizes: TopicSizes


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, arrow_schema(schema)

    @one_line_errors()
    def partitions(self) -> list[InputPartition]:
        with located_topics(self._options) as by_topic:
            queries = [self._query(*one) for one in by_topic.items()]
        topics = [(query.sizes, query.offsets) for query in queries]
        bounds = split_topics(topics, self._options.min_splits, self._options.max_split_messages)
        return [
            Split(query.location, query.topic, start, stop, query.identity)
            for query, offsets in zip(queries, bounds, strict=True)
            for start, stop in pairwise(offsets)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with one_line_errors():
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
