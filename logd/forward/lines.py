"""Bytes to lines: a piece of a file that ends behind a line end, and what lines it holds.

Always: the pieces of a file join without a gap, so the end of one is the start of the next, and no
byte is in two of them. A piece is small enough that, in whatever form, it fits into one batch.
"""

from __future__ import annotations

from typing import NamedTuple

from logd.forward.file_content import TAIL_BYTES, Content

PIECE_BYTES = 1 << 17
PIECE_LINES = 2048
_SEARCH_BYTES = 1 << 18


class FileChunk(NamedTuple):
    lines: list[bytes]
    end: int  # the position behind the piece
    tail: bytes  # the last bytes before `end`
    cut_lines: int = 0  # how many lines were longer than the limit and lost their rest


class LineLimits(NamedTuple):
    line_bytes: int
    piece_lines: int = PIECE_LINES


def next_piece(
    content: Content,
    start: int,
    stop: int,
    tail: bytes,
    limits: LineLimits,
    *,
    searched: int = 0,
    partial: bool = False,
) -> FileChunk | None:
    """The lines from `start` on that end before `stop`; None where not even one does.

    `tail` are the bytes before `start`. Before `searched` there is no line end: a line that grows
    for a long time is not looked through again and again. With `partial`, what is left at `stop`
    without a line end counts as a line.
    """
    if searched - start >= PIECE_BYTES:
        return _one_line(content, start, stop, tail, limits, searched, partial)
    data = content.read(start, min(PIECE_BYTES, stop - start))
    end = data.rfind(b"\n") + 1
    if end:
        return _whole_lines(data[:end], start, tail, limits)
    return _one_line(content, start, stop, tail, limits, start, partial) if data else None


def _whole_lines(data: bytes, start: int, tail: bytes, limits: LineLimits) -> FileChunk:
    lines = data[:-1].split(b"\n")
    if len(lines) > limits.piece_lines:
        del lines[limits.piece_lines :]
        data = data[: sum(map(len, lines)) + len(lines)]
    cut = 0
    if len(data) > limits.line_bytes:
        cut = sum(len(line) > limits.line_bytes for line in lines)
        lines = [line[: limits.line_bytes] for line in lines]
    return FileChunk(lines, start + len(data), (tail + data[-TAIL_BYTES:])[-TAIL_BYTES:], cut)


def _one_line(
    content: Content,
    start: int,
    stop: int,
    tail: bytes,
    limits: LineLimits,
    searched: int,
    partial: bool,
) -> FileChunk | None:
    """A line that is longer than a piece, or has no end yet. Its rest is skipped, never kept."""
    lf = find_lf(content, max(start, searched), stop)
    if lf is None and not partial:
        return None
    stop = stop if lf is None else lf
    line = content.read(start, min(limits.line_bytes, stop - start))
    end = stop if lf is None else lf + 1
    from_ = max(start, end - TAIL_BYTES)
    last = content.read(from_, end - from_)
    return FileChunk([line], end, (tail + last)[-TAIL_BYTES:], int(len(line) < stop - start))


def find_lf(content: Content, start: int, stop: int) -> int | None:
    while start < stop:
        data = content.read(start, min(_SEARCH_BYTES, stop - start))
        at = data.find(b"\n")
        if at >= 0:
            return start + at
        if not data:
            return None
        start += len(data)
    return None


def last_line_start(content: Content, size: int, line_bytes: int) -> int:
    """Behind the last LF before `size`: where to start at the end without half a line."""
    at = max(0, size - line_bytes)
    found = content.read(at, size - at).rfind(b"\n")
    return at + found + 1 if found >= 0 else (0 if at == 0 else size)
