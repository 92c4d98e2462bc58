"""How far the program that uses a reader has come, and when that is to be saved.

Pure. What was handed out counts as read when the next is asked for, so that a program which fails
in between gets it again; `commit` may say otherwise. A program that passes `consumed` decides
itself: only what that function returns is saved.
"""

from __future__ import annotations

from collections.abc import Callable

SAVE_S = 1.0  # so much of the work is done again after a crash


class ReadProgress:
    def __init__(self, now_s: float, consumed: Callable[[], int | None] | None = None) -> None:
        self._consumed = consumed
        self.handed_out: int | None = None  # behind what was handed out last
        self.done: int | None = None  # behind what is read
        self._saved: int | None = None
        self._saved_at_s = now_s

    def found(self, offset: int) -> None:
        """So far an earlier life had come."""
        self._saved = offset

    def asked_again(self) -> None:
        self.done = self.handed_out

    def commit(self, offset: int | None) -> None:
        """Everything before `offset` is read; None: all that was handed out."""
        self.done = self.handed_out if offset is None else offset

    def unsaved(self) -> int | None:
        """What to save, if anything has changed."""
        if self._consumed is not None:
            self.done = self._consumed()
        return self.done if self.done != self._saved else None

    def is_due(self, now_s: float) -> bool:
        return now_s - self._saved_at_s >= SAVE_S and self.unsaved() is not None

    def saved(self, offset: int, now_s: float) -> None:
        self._saved, self._saved_at_s = offset, now_s

    def put_off(self, now_s: float) -> None:
        """It could not be saved; a second later it is due again."""
        self._saved_at_s = now_s
