"""How long to wait before the next try: growing, capped, and never the same for two clients."""

from __future__ import annotations

import random

FIRST_S = 0.05
LONGEST_S = 5.0


class Pauses:
    """After each failure `next_s()`; after a success `reset()`."""

    def __init__(self, first_s: float = FIRST_S, longest_s: float = LONGEST_S) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self._failures = 0

    def next_s(self) -> float:
        """Twice the last one, less up to half of it at random: those who failed together part."""
        pause_s = min(self._longest_s, self._first_s * (1 << self._failures))
        self._failures = min(self._failures + 1, 30)
        return pause_s * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._failures = 0
