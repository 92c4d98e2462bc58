"""Input of `log-cli write`: the lines of files, and the file and line number of each message.

Input is read in large pieces and split at LF, so that reading is not slower than the writer. A line
in memory is never larger than MAX_LINE_BYTES.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from io import FileIO
from typing import BinaryIO

PIECE_BYTES = 1 << 18
MAX_LINE_BYTES = 256 << 20  # much more than a daemon accepts
LARGE_BYTES = 64 << 10  # of a writer's batch: a larger line is sent as a separate batch


class LineTooLong(Exception):
    """The line after those returned so far has more than MAX_LINE_BYTES."""


def split_lines(source: FileIO | BinaryIO) -> Iterator[tuple[list[bytes], int]]:
    """The lines that each piece of the input completes, without LF, and the size of the piece.

    Text after the last LF is also a line. Pieces of an incomplete line are joined once.
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


class InputPositions:
    """The source of each message: `line 3 of stdin` for the third message."""

    def __init__(self) -> None:
        self.messages = 0
        self._starts: list[int] = []
        self._names: list[str] = []
        self._large: deque[tuple[int, int]] = deque()  # (message, size) of large messages

    def begin(self, name: str) -> None:
        """The next message is the first line of this file."""
        self._starts.append(self.messages)
        self._names.append(name)

    def add(self, lines: Sequence[bytes], stored: int) -> None:
        """Add the next messages, and forget the sizes of the first `stored` ones."""
        if max(map(len, lines), default=0) >= LARGE_BYTES:
            sizes = enumerate(map(len, lines), self.messages)
            self._large += [(n, size) for n, size in sizes if size >= LARGE_BYTES]
        while self._large and self._large[0][0] < stored:
            self._large.popleft()
        self.messages += len(lines)

    def place(self, message: int) -> str:
        """The line of the message with this number, counted from 0."""
        i = bisect_right(self._starts, message) - 1
        return f"line {message - self._starts[i] + 1} of {self._names[i]}"

    def size_if_large(self, message: int) -> int | None:
        return dict(self._large).get(message)
