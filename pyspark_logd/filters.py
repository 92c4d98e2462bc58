"""Filter pushdown: filters on `offset` and `timestamp` reduce the offsets that are read.

By default, Spark sessions disable filter pushdown for Python data sources and reject readers that
define `pushFilters`. Therefore this class is used only with the option pushFilters. It returns all
filters to Spark, which applies them again, so a range may contain more than the filters allow.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)

from logd.batch import MAX_NUMBER
from logd.wire.offset_ranges import OffsetRange
from logd.wire.requests import At
from pyspark_logd.batch_reader import BatchReader
from pyspark_logd.errors import one_line_errors
from pyspark_logd.topic_sources import TopicSource

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMPARISONS = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


class FilteringReader(BatchReader):
    """`offsets` and `times_ms` are half-open ranges."""

    offsets = (0, MAX_NUMBER)
    times_ms = (0, MAX_NUMBER)

    @one_line_errors()
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for one in filters:
            if not isinstance(one, COMPARISONS):
                continue
            if one.attribute == ("offset",):
                self.offsets = narrowed(self.offsets, one, one.value, one.value)
            elif one.attribute == ("timestamp",):
                time_us = (one.value - EPOCH) // timedelta(microseconds=1)
                low_ms, high_ms = -(-time_us // 1000), time_us // 1000
                self.times_ms = narrowed(self.times_ms, one, low_ms, high_ms)
        return filters

    def narrow(self, topic: str, source: TopicSource, available: OffsetRange) -> OffsetRange:
        start = max(available.first, self.offsets[0])
        stop = min(available.next, self.offsets[1])
        first_ms, next_ms = self.times_ms
        if first_ms > 0:
            start = max(start, source.offset_at(topic, At(first_ms)))
        if next_ms < MAX_NUMBER:
            stop = min(stop, source.offset_at(topic, At(next_ms)))
        return OffsetRange(start, max(start, stop))


def narrowed(within: tuple[int, int], one: Filter, low: int, high: int) -> tuple[int, int]:
    """The part of a half-open range that a filter may accept.

    `low` and `high` are the value of the filter, rounded up and down.
    """
    start, stop = within
    if isinstance(one, EqualTo | GreaterThanOrEqual | GreaterThan):
        start = max(start, low)
    if isinstance(one, EqualTo | LessThanOrEqual | LessThan):
        stop = min(stop, high + 1)
    return start, max(start, stop)
