"""Up to which offset a program has read, and when to save that.

No I/O and no clock. What the program was given counts as read when it asks for the next, so that a
program that fails in between gets it again; `commit` overrides this. With `consumed` only the
offset that this function returns is saved.
"""

from __future__ import annotations

from collections.abc import Callable

SAVE_S = 1.0  # at most so much is read again after a crash


class ReadProgress:
    def __init__(self, now_s: float, consumed: Callable[[], int | None] | None = None) -> None:
        self._consumed = consumed
        self.handed_out: int | None = None  # the offset after what was returned last
        self.done: int | None = None  # the offset after what counts as read
        self._saved: int | None = None
        self._saved_at_s = now_s

    def found(self, offset: int) -> None:
        """The offset that an earlier reader had saved."""
        self._saved = offset

    def asked_again(self) -> None:
        self.done = self.handed_out

    def commit(self, offset: int | None) -> None:
        """Everything before `offset` is read; None: all that was returned."""
        self.done = self.handed_out if offset is None else offset

    def unsaved(self) -> int | None:
        """The offset to save; None if nothing has changed."""
        if self._consumed is not None:
            self.done = self._consumed()
        return self.done if self.done != self._saved else None

    def is_due(self, now_s: float) -> bool:
        return now_s - self._saved_at_s >= SAVE_S and self.unsaved() is not None

    def saved(self, offset: int, now_s: float) -> None:
        self._saved, self._saved_at_s = offset, now_s

    def postpone(self, now_s: float) -> None:
        """It could not be saved; it is due again a second later."""
        self._saved_at_s = now_s
