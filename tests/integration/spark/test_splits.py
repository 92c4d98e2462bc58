"""Splits cover what is wanted, once, and hold about as many bytes each."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)

from logd.wire.commands import PartitionInfo
from pyspark_logd.arrow_batches import SCHEMA
from pyspark_logd.filters import COMPARISONS, EPOCH, FilteringReader
from pyspark_logd.options import read_options
from pyspark_logd.splits import SPLIT_BYTES, TopicSizes, split_counts, split_offsets
from pyspark_logd.stream_offsets import limit_messages

parts = st.lists(st.tuples(st.integers(1, 10_000), st.integers(1, 1 << 40)), max_size=6)


def partitions(first: int, sizes: list[tuple[int, int]]) -> list[PartitionInfo]:
    found = []
    for messages, bytes_ in sizes:
        found.append(PartitionInfo(first, first + messages, bytes_, 0, 0))
        first += messages
    return found


@given(
    first=st.integers(0, 1 << 60), sizes=parts, splits=st.integers(1, 50),
    most=st.integers(1, 100_000), data=st.data(),
)  # fmt: skip
def test_cuts(
    first: int, sizes: list[tuple[int, int]], splits: int, most: int, data: st.DataObject
) -> None:
    there = partitions(first, sizes)
    next_ = there[-1].next if there else first
    start = data.draw(st.integers(first, next_))
    stop = data.draw(st.integers(start, next_ + 100))  # more may have come since the look
    found = split_offsets(TopicSizes(there), start, stop, splits, most)
    if start == stop:
        assert found == []
        return
    assert (found[0], found[-1]) == (start, stop)
    assert all(0 < b - a <= most for a, b in pairwise(found))


@given(splits=st.integers(1, 100), rolls=st.integers(1, 9))
def test_even_messages_give_even_splits(splits: int, rolls: int) -> None:
    there = partitions(1000, [(100_000, 10_000_000)] * rolls)
    found = split_offsets(TopicSizes(there), 1000, 1000 + 100_000 * rolls, splits, 1 << 62)
    lengths = [b - a for a, b in pairwise(found)]
    assert len(lengths) == splits
    assert max(lengths) - min(lengths) <= 2


def test_as_many_splits_as_bytes_want() -> None:
    assert split_counts([SPLIT_BYTES * 3.5], 1) == [4]
    assert split_counts([SPLIT_BYTES * 3, SPLIT_BYTES * 1], 8) == [6, 2]
    assert split_counts([0, 0], 5) == [1, 1]
    assert sum(split_counts([1.0, 1e12], 10)) >= 10


@given(
    waiting=st.dictionaries(st.text("abc", max_size=3), st.integers(0, 1000), max_size=9),
    limit=st.integers(0, 3000),
)
def test_fair_shares(waiting: dict[str, int], limit: int) -> None:
    found = limit_messages(waiting, limit)
    assert found.keys() == waiting.keys()
    assert all(found[topic] <= waiting[topic] for topic in waiting)
    assert sum(found.values()) == min(limit, sum(waiting.values()))
    cut = [found[topic] for topic in waiting if found[topic] < waiting[topic]]
    assert not cut or max(found.values()) - min(cut) <= 1  # nobody got much more than those


@given(us=st.integers(0, 1 << 51), kind=st.sampled_from(COMPARISONS), ms=st.integers(-2, 2))
def test_a_filter_on_times_leaves_what_it_lets_by(us: int, kind: type[Filter], ms: int) -> None:
    """Times in logd are whole milliseconds; those of a filter have microseconds."""
    reader = FilteringReader(read_options({"subscribe": "app"}, is_stream=False), SCHEMA)
    one = kind(("timestamp",), EPOCH + timedelta(microseconds=us))
    assert list(reader.pushFilters([one])) == [one]
    time_ms = max(0, us // 1000 + ms)
    holds = {
        EqualTo: time_ms * 1000 == us, GreaterThan: time_ms * 1000 > us,
        GreaterThanOrEqual: time_ms * 1000 >= us, LessThan: time_ms * 1000 < us,
        LessThanOrEqual: time_ms * 1000 <= us,
    }[kind]  # fmt: skip
    start, stop = reader.times_ms
    assert not holds or start <= time_ms < stop
