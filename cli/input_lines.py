"""The messages that `log-cli write` reads: lines of files, and which line each message was.

Input is read in large pieces and cut at LF, so that a file goes in as fast as the writer takes it.
A line is never larger than MAX_LINE_BYTES in memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from io import FileIO
from typing import BinaryIO

PIECE_BYTES = 1 << 18
MAX_LINE_BYTES = 256 << 20  # far above what a daemon accepts
LARGE_BYTES = 64 << 10  # of the writer's batches: a larger line is a batch of its own


class LineTooLong(Exception):
    """The line after those that were cut so far has more than MAX_LINE_BYTES."""


def cut_lines(source: FileIO | BinaryIO) -> Iterator[tuple[list[bytes], int]]:
    """The lines that each piece of the input completes, without LF, and the piece's size.

    What follows the last LF is a line too. Pieces of an unfinished line are joined once.
    """
    unfinished: list[bytes] = []
    size = 0
    while piece := source.read(PIECE_BYTES):
        lines = piece.split(b"\n")
        unfinished.append(lines[0])
        size += len(lines[0])
        if size > MAX_LINE_BYTES:
            raise LineTooLong
        if len(lines) > 1:
            lines[0] = b"".join(unfinished)
            unfinished = [lines.pop()]
            size = len(unfinished[0])
            yield lines, len(piece)
    if rest := b"".join(unfinished):
        yield [rest], 0


class Origins:
    """Where each message came from: `line 3 of stdin` for the third message."""

    def __init__(self) -> None:
        self.messages = 0
        self._starts: list[int] = []
        self._names: list[str] = []
        self._large: deque[tuple[int, int]] = deque()  # (message, size) of large ones

    def begin(self, name: str) -> None:
        """The next message is the first line of this."""
        self._starts.append(self.messages)
        self._names.append(name)

    def add(self, lines: Sequence[bytes], stored: int) -> None:
        """These come next; the first `stored` of all messages need not be remembered."""
        if max(map(len, lines), default=0) >= LARGE_BYTES:
            sizes = enumerate(map(len, lines), self.messages)
            self._large += [(n, size) for n, size in sizes if size >= LARGE_BYTES]
        while self._large and self._large[0][0] < stored:
            self._large.popleft()
        self.messages += len(lines)

    def place(self, message: int) -> str:
        """Of the message with this number, from 0."""
        i = bisect_right(self._starts, message) - 1
        return f"line {message - self._starts[i] + 1} of {self._names[i]}"

    def size_if_large(self, message: int) -> int | None:
        return dict(self._large).get(message)
