"""Ranges of offsets, from `first` to before `next`. Pure.

Invariant: results are sorted, and their ranges neither touch nor overlap.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class OffsetRange(NamedTuple):
    first: int
    next: int

    def __str__(self) -> str:
        return f"{self.first} to {self.next - 1}"


def merge(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The same offsets in as few ranges as possible."""
    result: list[OffsetRange] = []
    for first, next_ in sorted(ranges):
        if first >= next_:
            continue
        if result and first <= result[-1].next:
            result[-1] = OffsetRange(result[-1].first, max(result[-1].next, next_))
        else:
            result.append(OffsetRange(first, next_))
    return result


def subtract(ranges: Iterable[OffsetRange], taken: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The offsets of `ranges` that are not in `taken`."""
    left = []
    cuts = merge(taken)
    for first, next_ in merge(ranges):
        for cut in cuts:
            if cut.next <= first or cut.first >= next_:
                continue
            if first < cut.first:
                left.append(OffsetRange(first, cut.first))
            first = cut.next
        if first < next_:
            left.append(OffsetRange(first, next_))
    return left


def intersect(ranges: Iterable[OffsetRange], others: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The offsets in both."""
    ours = merge(ranges)
    return subtract(ours, subtract(ours, others))


def count_offsets(ranges: Iterable[OffsetRange]) -> int:
    return sum(next_ - first for first, next_ in merge(ranges))
