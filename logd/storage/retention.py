"""Which partitions have expired: pure decisions from sizes and times.

The active partition, the last one, never expires. Without a limit nothing expires.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class RetainedPartition(NamedTuple):
    """The size of a partition and its newest time."""

    size: int
    newest_ms: int


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """0 means no limit."""

    max_partitions: int = 0
    max_bytes: int = 0
    max_age_s: float = 0.0

    def any(self) -> bool:
        return bool(self.max_partitions or self.max_bytes or self.max_age_s)

    def expired(self, partitions: Sequence[RetainedPartition], now_ms: int) -> int:
        """How many of the oldest partitions exceed a limit."""
        too_many = len(partitions) - self.max_partitions if self.max_partitions else 0
        oldest_ms = now_ms - self.max_age_s * 1000
        excess_bytes = sum(kept.size for kept in partitions) - self.max_bytes
        count = 0
        for kept in partitions[:-1]:
            too_old = self.max_age_s and kept.newest_ms < oldest_ms
            too_big = self.max_bytes and excess_bytes > 0
            if not (count < too_many or too_old or too_big):
                break
            excess_bytes -= kept.size
            count += 1
        return count
