"""Batch reads: what is to be read is decided once, then read in parallel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from logd.epochs import Seen
from pyspark_logd.columns import arrow_schema
from pyspark_logd.errors import hidden_traceback, one_line
from pyspark_logd.fetching import record_batches
from pyspark_logd.loss import on_loss
from pyspark_logd.options import ReadOptions, Site
from pyspark_logd.places import Place, homes, open_place
from pyspark_logd.ranges import Range, resolve, within
from pyspark_logd.splits import Sizes, Split, cuts, shares


class Wanted(NamedTuple):
    """What is to be read of a topic."""

    topic: str
    site: Site
    seen: Seen
    range: Range
    sizes: Sizes

    @property
    def bytes(self) -> float:
        return self.sizes.before(self.range.stop) - self.sizes.before(self.range.start)


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
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

    def narrow(self, topic: str, place: Place, there: Range) -> Range:
        """The part of it that filters leave."""
        return there

    def _wanted(self, topic: str, place: Place) -> Wanted:
        options = self._options
        extent = place.extent(topic)
        start = resolve(options.start, topic, place, extent)
        stop = resolve(options.stop, topic, place, extent)
        there = within(topic, extent, start, stop, on_loss(options.fails_on_data_loss))
        there = self.narrow(topic, place, there)
        return Wanted(topic, place.site, extent.seen, there, Sizes(place.partitions(topic)))


def plan(options: ReadOptions, wanted: list[Wanted]) -> Iterator[Split]:
    """The splits of a batch read, in the order of topics and offsets."""
    splits = shares([one.bytes for one in wanted], options.min_splits)
    for one, share in zip(wanted, splits, strict=True):
        offsets = cuts(one.sizes, *one.range, share, options.max_split_messages)
        for start, stop in pairwise(offsets):
            yield Split(one.site, one.topic, start, stop, one.seen)
