"""Latency percentiles in little memory: values are rounded to three digits and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

PERCENTILES = (50.0, 90.0, 99.0, 99.9, 100.0)


class Latencies:
    def __init__(self) -> None:
        self._counts: Counter[float] = Counter()  # at most 900 keys per power of ten

    def add(self, seconds: float) -> None:
        self._counts[float(f"{seconds:.3g}")] += 1

    @classmethod
    def joined(cls, parts: Iterable[Latencies]) -> Latencies:
        whole = cls()
        for part in parts:
            whole._counts.update(part._counts)
        return whole

    def percentiles_ms(self) -> dict[str, float]:
        """The latency that this percentage of the requests did not exceed; p100 is the maximum."""
        return {f"p{percent:g}": round(self._within(percent) * 1000, 4) for percent in PERCENTILES}

    def _within(self, percent: float) -> float:
        wanted, reached = self._counts.total() * percent / 100, 0
        for seconds in sorted(self._counts):
            reached += self._counts[seconds]
            if reached >= wanted:
                return seconds
        return 0.0
