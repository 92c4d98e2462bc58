"""Which epoch each offset of a topic was written in, and how far two logs agree.

Only the leader of an epoch writes batches of that epoch, and it never takes one back. So two logs
that have the same epoch at an offset have the same message there, and comparing the histories is
enough to find the first offset at which they may differ. Pure: no files, no sockets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple


class EpochStart(NamedTuple):
    """The first offset that was written in an epoch."""

    epoch: int
    first: int


class EpochHistory:
    """The epochs of one log in order. Never changed: each method returns another history."""

    __slots__ = ("starts",)

    def __init__(self, starts: tuple[EpochStart, ...] = ()) -> None:
        self.starts = starts

    @property
    def last_epoch(self) -> int:
        return self.starts[-1].epoch if self.starts else 0

    def began(self, epoch: int, first: int) -> EpochHistory:
        """With `epoch` from the offset `first` on; the same history if it is in that epoch."""
        if epoch == self.last_epoch:
            return self
        return EpochHistory((*self.truncated(first).starts, EpochStart(epoch, first)))

    def truncated(self, next_: int) -> EpochHistory:
        """Without everything from `next_` on."""
        return EpochHistory(tuple(start for start in self.starts if start.first < next_))

    def epoch_of(self, offset: int) -> int:
        """The epoch in which `offset` was written; 0 if it is older than the history."""
        at = bisect_right(self.starts, offset, key=lambda start: start.first)
        return self.starts[at - 1].epoch if at else 0

    def agrees_to(self, next_: int, other: EpochHistory, other_next: int) -> int:
        """The first offset at which this log, which ends at `next_`, may differ from another."""
        end = min(next_, other_next)
        for offset in self._changes(other, end):
            if self.epoch_of(offset) != other.epoch_of(offset):
                return offset
        return end

    def _changes(self, other: EpochHistory, end: int) -> Iterator[int]:
        """Offsets below `end` at which either log enters an epoch, in order."""
        starts = {0, *(start.first for start in (*self.starts, *other.starts))}
        return iter(sorted(offset for offset in starts if offset < end))
