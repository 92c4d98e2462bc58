"""Ranges of offsets: from a first one up to, and without, a next one. Pure.

Always: what these functions return is sorted, and no two ranges of it touch or overlap.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class OffsetRange(NamedTuple):
    first: int
    next: int

    def __str__(self) -> str:
        return f"{self.first} to {self.next - 1}"


def joined(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
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


def without(ranges: Iterable[OffsetRange], taken: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The offsets of `ranges` that are not in `taken`."""
    left = []
    cuts = joined(taken)
    for first, next_ in joined(ranges):
        for cut in cuts:
            if cut.next <= first or cut.first >= next_:
                continue
            if first < cut.first:
                left.append(OffsetRange(first, cut.first))
            first = cut.next
        if first < next_:
            left.append(OffsetRange(first, next_))
    return left


def common(ranges: Iterable[OffsetRange], others: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The offsets that are in both."""
    ours = joined(ranges)
    return without(ours, without(ours, others))


def count(ranges: Iterable[OffsetRange]) -> int:
    return sum(next_ - first for first, next_ in joined(ranges))
