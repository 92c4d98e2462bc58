"""Bytes to lines: pieces join, nothing is in two of them, long lines are cut and counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logd.forward.file_content import TAIL_BYTES, Stamp
from logd.forward.lines import CHUNK_BYTES, FileChunk, LineLimits, last_line_start, read_chunk


class Held:
    """Content in memory."""

    is_compressed, identity = False, (0, 0)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def size(self) -> int:
        return len(self.data)

    def stamp(self) -> Stamp:
        return Stamp(len(self.data), 0)

    def read(self, position: int, size: int) -> bytes:
        return self.data[position : position + size]

    def close(self) -> None: ...


def pieces(data: bytes, limits: LineLimits, *, partial: bool = False) -> list[FileChunk]:
    found: list[FileChunk] = []
    at, tail = 0, b""
    while piece := read_chunk(Held(data), at, len(data), tail, limits, partial=partial):
        assert piece.end > at
        at, tail = piece.end, piece.tail
        assert tail == data[max(0, at - TAIL_BYTES) : at]
        found.append(piece)
    return found


@given(
    st.lists(st.binary(max_size=50)), st.binary(max_size=20), st.integers(1, 40), st.integers(1, 9)
)
def test_pieces_join_to_all_whole_lines(
    lines: list[bytes], rest: bytes, line_bytes: int, chunk_lines: int
) -> None:
    lines = [line.replace(b"\n", b"") for line in lines]
    rest = rest.replace(b"\n", b"")
    data = b"".join(line + b"\n" for line in lines) + rest
    limits = LineLimits(line_bytes, chunk_lines)
    for partial in (False, True):
        wanted = [*lines, rest] if partial and rest else lines
        got = pieces(data, limits, partial=partial)
        assert [line for piece in got for line in piece.lines] == [w[:line_bytes] for w in wanted]
        assert sum(piece.cut_lines for piece in got) == sum(len(w) > line_bytes for w in wanted)


@pytest.mark.parametrize("size", [CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_a_line_longer_than_a_piece(size: int) -> None:
    data = b"a\n" + b"x" * size + b"\nb\n"
    got = pieces(data, LineLimits(100))
    assert [line for piece in got for line in piece.lines] == [b"a", b"x" * 100, b"b"]
    assert sum(piece.cut_lines for piece in got) == 1


def test_an_unfinished_line_is_not_searched_again() -> None:
    content = Held(b"x" * (3 * CHUNK_BYTES) + b"\n")
    size = content.size()
    piece = read_chunk(content, 0, size, b"", LineLimits(10), searched=size - 1)
    assert piece is not None
    assert piece.end == size
    assert read_chunk(content, 0, size, b"", LineLimits(10), searched=size) is None


@pytest.mark.parametrize(
    ("data", "start"), [(b"", 0), (b"a\n", 2), (b"a\nb", 2), (b"ab", 0), (b"\n" + b"x" * 20, 21)]
)
def test_where_the_last_line_starts(data: bytes, start: int, tmp_path: Path) -> None:
    assert last_line_start(Held(data), len(data), 10) == start
