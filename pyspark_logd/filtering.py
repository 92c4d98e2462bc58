"""Filters on `offset` and `timestamp` that narrow what is read, for those who ask for it.

A reader that takes filters fails in a session in which they are switched off, as they are by
default; hence a class of its own, used where the option pushFilters is set. All filters are handed
back, so Spark applies them too: what is narrowed here only has to contain what is wanted.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from math import ceil, floor

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)

from logd.batch import MAX_NUMBER
from logd.requests import At
from pyspark_logd.batch_reader import BatchReader
from pyspark_logd.errors import one_line
from pyspark_logd.places import Place
from pyspark_logd.ranges import Range

COMPARISONS = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


class FilteringReader(BatchReader):
    """`_offsets` and `_times_ms` are where to start and to stop; the stop is left out."""

    _offsets = (0, MAX_NUMBER)
    _times_ms = (0, MAX_NUMBER)

    @one_line
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for one in filters:
            if not isinstance(one, COMPARISONS):
                continue
            if one.attribute == ("offset",):
                self._offsets = narrowed(self._offsets, one, int(one.value))
            elif one.attribute == ("timestamp",):
                self._times_ms = narrowed(self._times_ms, one, _ms(one.value))
        return filters

    def narrow(self, topic: str, place: Place, there: Range) -> Range:
        start = max(there.start, self._offsets[0])
        stop = min(there.stop, self._offsets[1])
        first_ms, next_ms = self._times_ms
        if first_ms > 0:
            start = max(start, place.offset_at(topic, At(first_ms)))
        if next_ms < MAX_NUMBER:
            stop = min(stop, place.offset_at(topic, At(next_ms)))
        return Range(start, max(start, stop))


def narrowed(within: tuple[int, int], one: Filter, value: float) -> tuple[int, int]:
    """The part of the whole numbers from `within[0]` up to `within[1]` that a filter may let by."""
    start, stop = within
    if isinstance(one, EqualTo | GreaterThanOrEqual | GreaterThan):
        start = max(start, ceil(value))
    if isinstance(one, EqualTo | LessThanOrEqual | LessThan):
        stop = min(stop, floor(value) + 1)
    return start, max(start, stop)


def _ms(time: datetime) -> float:
    return time.astimezone(UTC).timestamp() * 1000
