# cython: language_level=3, annotation_typing=False
"""The one call of a writer that a program makes for each message.

This file is plain Python. Where there is a compiler it is also compiled, by Cython, with the types
that intake.pxd adds; then a call takes a third of the time and does the same. Why `write` needs no
lock is told in gathering.py.
"""

from __future__ import annotations

ATTEND = -1  # a limit that every write exceeds


class MessageAppend:
    """Messages that were written and are in no batch yet."""

    __slots__ = ("_buffer", "_limit", "_size")

    def __init__(self) -> None:
        self._buffer: list[bytes] = []
        self._size, self._limit = 0, ATTEND  # in bytes, with an LF for each message

    def write(self, message: bytes) -> None:
        """Add one message. It is safe in the log only when `flush` or `close` has returned."""
        if type(message) is not bytes:
            raise TypeError(f"a message is bytes, not {type(message).__name__}")
        self._buffer.append(message)
        self._size += len(message) + 1
        if self._size > self._limit:
            self._attend(message)

    def _attend(self, message: bytes) -> None:
        """What a write does that passed the limit."""
        raise NotImplementedError
