"""Ranges of offsets, against sets of numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from logd.wire.offset_ranges import OffsetRange, count_offsets, intersect, merge, subtract

ranges = st.lists(st.builds(OffsetRange, st.integers(0, 30), st.integers(0, 30)), max_size=6)


def numbers(some: list[OffsetRange]) -> set[int]:
    return {n for first, next_ in some for n in range(first, next_)}


def is_tidy(some: list[OffsetRange]) -> bool:
    edges = [edge for each in some for edge in each]
    return edges == sorted(set(edges))


@given(ranges, ranges)
def test_ranges_are_sets_of_numbers(some: list[OffsetRange], others: list[OffsetRange]) -> None:
    for result, wanted in (
        (merge(some), numbers(some)),
        (subtract(some, others), numbers(some) - numbers(others)),
        (intersect(some, others), numbers(some) & numbers(others)),
    ):
        assert numbers(result) == wanted
        assert is_tidy(result)
    assert count_offsets(some) == len(numbers(some))
