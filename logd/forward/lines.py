"""Splits files into chunks of whole lines.

Invariants: the end of a chunk is the start of the next one, and a chunk fits into one batch in any
line format.
"""

from __future__ import annotations

from typing import NamedTuple

from logd.forward.file_content import TAIL_BYTES, Content

CHUNK_BYTES = 1 << 17
CHUNK_LINES = 2048
_SEARCH_BYTES = 1 << 18


class FileChunk(NamedTuple):
    lines: list[bytes]
    end: int  # the position after the chunk
    tail: bytes  # the last bytes before `end`
    cut_lines: int = 0  # the number of lines that were truncated to the limit


class LineLimits(NamedTuple):
    line_bytes: int
    chunk_lines: int = CHUNK_LINES


def read_chunk(
    content: Content,
    start: int,
    stop: int,
    tail: bytes,
    limits: LineLimits,
    *,
    searched: int = 0,
    partial: bool = False,
) -> FileChunk | None:
    """The lines from `start` on that end before `stop`; None if there is none.

    `tail` are the bytes before `start`. There is no line end before `searched`, so that a slowly
    growing line is not searched repeatedly. With `partial`, an unterminated rest counts as a line.
    """
    if searched - start < CHUNK_BYTES:
        data = content.read(start, min(CHUNK_BYTES, stop - start))
        if end := data.rfind(b"\n") + 1:
            return _whole_lines(data[:end], start, tail, limits)
        if not data:
            return None
        searched = start
    # A line that is longer than a chunk or not terminated. Bytes over the limit are skipped.
    lf = find_lf(content, max(start, searched), stop)
    if lf is None and not partial:
        return None
    line_end, end = (stop, stop) if lf is None else (lf, lf + 1)
    line = content.read(start, min(limits.line_bytes, line_end - start))
    from_ = max(start, end - TAIL_BYTES)
    last = content.read(from_, end - from_)
    return FileChunk([line], end, (tail + last)[-TAIL_BYTES:], int(len(line) < line_end - start))


def _whole_lines(data: bytes, start: int, tail: bytes, limits: LineLimits) -> FileChunk:
    lines = data[:-1].split(b"\n")
    if len(lines) > limits.chunk_lines:
        del lines[limits.chunk_lines :]
        data = data[: sum(map(len, lines)) + len(lines)]
    cut = 0
    if len(data) > limits.line_bytes:
        cut = sum(len(line) > limits.line_bytes for line in lines)
        lines = [line[: limits.line_bytes] for line in lines]
    return FileChunk(lines, start + len(data), (tail + data[-TAIL_BYTES:])[-TAIL_BYTES:], cut)


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
    """The position after the last LF before `size`."""
    at = max(0, size - line_bytes)
    found = content.read(at, size - at).rfind(b"\n")
    return at + found + 1 if found >= 0 else (0 if at == 0 else size)
