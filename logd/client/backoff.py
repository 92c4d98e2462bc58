"""How long to wait before the next try: growing, capped, and never the same for two clients."""

from __future__ import annotations

import random

FIRST_S = 0.05
LONGEST_S = 5.0


class Backoff:
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


class RetryDeadline:
    """Pauses that come to an end: when nobody has answered for `patience_s`, the error is final."""

    def __init__(self, patience_s: float | None, now_s: float) -> None:
        self._patience_s, self._answered_at_s = patience_s, now_s
        self._pauses = Backoff()

    def answered(self, now_s: float) -> None:
        self._answered_at_s = now_s
        self._pauses.reset()

    def end_within(self, patience_s: float) -> None:
        """Whoever would have tried for ever has only so much patience left."""
        if self._patience_s is None:
            self._patience_s = patience_s

    def pause_s(self, error: Exception, now_s: float) -> float:
        """How long to wait before the next try; raises the error where there will be none."""
        pause_s = self._pauses.next_s()
        if self._patience_s is None:
            return pause_s
        left_s = self._answered_at_s + self._patience_s - now_s
        if left_s <= 0:
            raise error
        return min(pause_s, left_s)
