"""Batch reads: what is to be read is decided once, then read in parallel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from logd.wire.topic_identity import TopicIdentity
from pyspark_logd.arrow_columns import arrow_schema
from pyspark_logd.data_loss import on_loss
from pyspark_logd.errors import hidden_traceback, one_line
from pyspark_logd.options import Site, SourceReadOptions
from pyspark_logd.query_ranges import QueryRange, resolve, within
from pyspark_logd.split_reader import record_batches
from pyspark_logd.splits import Split, TopicSizes, cuts, shares
from pyspark_logd.topic_sources import TopicSource, homes, open_place


class TopicQuery(NamedTuple):
    """What is to be read of a topic."""

    topic: str
    site: Site
    seen: TopicIdentity
    range: QueryRange
    sizes: TopicSizes

    @property
    def bytes(self) -> float:
        return self.sizes.before(self.range.stop) - self.sizes.before(self.range.start)


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, arrow_schema(schema)

    @one_line
    def partitions(self) -> list[InputPartition]:
        with ExitStack() as stack:
            places = [stack.enter_context(closing(open_place(s))) for s in self._options.sites]
            found = homes(self._options, places).items()
            return [*plan(self._options, [self._wanted(*home) for home in found])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with hidden_traceback():
            if isinstance(partition, Split):  # else there is nothing to read
                loss = on_loss(self._options.fails_on_data_loss)
                yield from record_batches(partition, self._schema, loss)

    def narrow(self, topic: str, place: TopicSource, there: QueryRange) -> QueryRange:
        """The part of it that filters leave."""
        return there

    def _wanted(self, topic: str, place: TopicSource) -> TopicQuery:
        options = self._options
        extent = place.extent(topic)
        start = resolve(options.start, topic, place, extent)
        stop = resolve(options.stop, topic, place, extent)
        there = within(topic, extent, start, stop, on_loss(options.fails_on_data_loss))
        there = self.narrow(topic, place, there)
        return TopicQuery(
            topic, place.site, extent.seen, there, TopicSizes(place.partitions(topic))
        )


def plan(options: SourceReadOptions, wanted: list[TopicQuery]) -> Iterator[Split]:
    """The splits of a batch read, in the order of topics and offsets."""
    splits = shares([one.bytes for one in wanted], options.min_splits)
    for one, share in zip(wanted, splits, strict=True):
        offsets = cuts(one.sizes, *one.range, share, options.max_split_messages)
        for start, stop in pairwise(offsets):
            yield Split(one.site, one.topic, start, stop, one.seen)
