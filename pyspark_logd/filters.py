"""Filters on `offset` and `timestamp` that narrow what is read, for those who ask for it.

A reader that takes filters fails in a session in which they are switched off, as they are by
default; hence a class of its own, used where the option pushFilters is set. All filters are handed
back, so Spark applies them too: what is narrowed here only has to contain what is wanted.
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
from logd.wire.requests import At
from pyspark_logd.batch_reader import BatchReader
from pyspark_logd.errors import one_line
from pyspark_logd.query_ranges import QueryRange
from pyspark_logd.topic_sources import TopicSource

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMPARISONS = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


class FilteringReader(BatchReader):
    """`offsets` and `times_ms` are where to start and to stop; the stop is left out."""

    offsets = (0, MAX_NUMBER)
    times_ms = (0, MAX_NUMBER)

    @one_line
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

    def narrow(self, topic: str, place: TopicSource, there: QueryRange) -> QueryRange:
        start = max(there.start, self.offsets[0])
        stop = min(there.stop, self.offsets[1])
        first_ms, next_ms = self.times_ms
        if first_ms > 0:
            start = max(start, place.offset_at(topic, At(first_ms)))
        if next_ms < MAX_NUMBER:
            stop = min(stop, place.offset_at(topic, At(next_ms)))
        return QueryRange(start, max(start, stop))


def narrowed(within: tuple[int, int], one: Filter, low: int, high: int) -> tuple[int, int]:
    """The part of the numbers from `within[0]` up to `within[1]` that a filter may let by.

    `low` and `high` are the filter's value as a whole number, above it and below it.
    """
    start, stop = within
    if isinstance(one, EqualTo | GreaterThanOrEqual | GreaterThan):
        start = max(start, low)
    if isinstance(one, EqualTo | LessThanOrEqual | LessThan):
        stop = min(stop, high + 1)
    return start, max(start, stop)
