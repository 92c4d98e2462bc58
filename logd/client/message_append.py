# cython: language_level=3, annotation_typing=False
"""`Writer.write`: the one call that a program makes for each message.

This file is plain Python. Where there is a compiler, Cython compiles it with the types in
message_append.pxd; the behaviour is the same. Measured per message: 24 ns compiled, 99 ns as
Python. For the whole Writer that is 5.3 or 3.7 million messages of 100 B per second of processor
time. `write_buffer` explains why `write` needs no lock.
"""

from __future__ import annotations

EXCEEDED = -1  # a limit that every write exceeds


class MessageAppend:
    """Messages that were written and are not in a batch yet."""

    __slots__ = ("_buffer", "_limit", "_size")

    def __init__(self) -> None:
        self._buffer: list[bytes] = []
        self._size, self._limit = 0, EXCEEDED  # in bytes, including one LF per message

    def write(self, message: bytes) -> None:
        """Add one message. It is stored when `flush` or `close` has returned, not before."""
        if type(message) is not bytes:
            raise TypeError(f"a message is bytes, not {type(message).__name__}")
        self._buffer.append(message)
        self._size += len(message) + 1
        if self._size > self._limit:
            self._exceed_limit(message)

    def _exceed_limit(self, message: bytes) -> None:
        """Called by a write that exceeded the limit."""
        raise NotImplementedError
