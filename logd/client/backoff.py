"""When to retry: the errors after which a retry helps, and the pauses before each attempt.

Pauses grow up to a limit and are random, so that clients that failed together do not return
together. No clock: callers pass the time.
"""

from __future__ import annotations

import random

from logd.errors import TRY_AGAIN
from logd.wire.addresses import ConnectionLost

RETRYABLE = (ConnectionLost, *TRY_AGAIN)
FIRST_S = 0.05
LONGEST_S = 5.0


class Backoff:
    """Call `next_s()` after each failure, and `reset()` after a success."""

    def __init__(self, first_s: float = FIRST_S, longest_s: float = LONGEST_S) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self._failures = 0

    def next_s(self) -> float:
        """Between half of the current limit and the limit, which doubles each time."""
        pause_s = min(self._longest_s, self._first_s * (1 << self._failures))
        self._failures = min(self._failures + 1, 30)
        return pause_s * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._failures = 0


class RetryDeadline:
    """A backoff that ends: after `patience_s` without a reply (None: never) the error is final."""

    def __init__(self, patience_s: float | None, now_s: float) -> None:
        self._patience_s, self._answered_at_s = patience_s, now_s
        self._backoff = Backoff()

    def answered(self, now_s: float) -> None:
        self._answered_at_s = now_s
        self._backoff.reset()

    def end_within(self, patience_s: float) -> None:
        """Set a limit if there is none."""
        if self._patience_s is None:
            self._patience_s = patience_s

    def pause_s(self, error: Exception, now_s: float) -> float:
        """The pause before the next attempt; raises the error if there is none."""
        pause_s = self._backoff.next_s()
        if self._patience_s is None:
            return pause_s
        left_s = self._answered_at_s + self._patience_s - now_s
        if left_s <= 0:
            raise error
        return min(pause_s, left_s)
