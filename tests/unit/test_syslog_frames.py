"""Syslog frames out of a stream, however it is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logd.net import syslog_frames
from logd.net.syslog_frames import MAX_FRAME_BYTES, Frames

CASES: dict[str, tuple[bytes, list[bytes]]] = {
    "counted": (b"5 hello11 hello world", [b"hello", b"hello world"]),
    "lines": (b"<13>one\n<13>two\r\n", [b"<13>one", b"<13>two"]),
    "counted with a line end inside": (b"9 one\ntwo\n\n", [b"one\ntwo\n"]),
    "both in turn": (b"<1>a\n4 <1>b<1>c\n", [b"<1>a", b"<1>b", b"<1>c"]),
    "empty lines": (b"\n\r\n<1>a\n\n", [b"<1>a"]),
    "NUL and LF": (b"<1>a\0\n<1>b\0\n", [b"<1>a", b"<1>b"]),
    "LF and NUL": (b"<1>a\n\0<1>b\n\0", [b"<1>a", b"<1>b"]),
    "NUL": (b"<1>a\0<1>b\0", [b"<1>a", b"<1>b"]),
    "empty records between NULs": (b"\0<1>a\0\0\0<1>b\0", [b"<1>a", b"<1>b"]),
    "LF is content after a NUL": (b"<1>a\0<1>b\n c\r\n\0<1>d\0", [b"<1>a", b"<1>b\n c", b"<1>d"]),
    "LF ends a record before the first NUL": (
        b"<1>a\n b\0<1>c\n d\0",
        [b"<1>a", b" b", b"<1>c\n d"],
    ),
    "LF and a priority after a NUL": (
        b"<1>a\0b\n<13>c\n<1>d\n e\n",
        [b"<1>a", b"b", b"<13>c", b"<1>d", b" e"],
    ),
    "no priority in angle brackets": (
        b"<1>a\0<1>b\n<1234>\n<x>\0",
        [b"<1>a", b"<1>b\n<1234>\n<x>"],
    ),
    "counted between NULs": (b"<1>a\0003 b\0c<1>d\0", [b"<1>a", b"b\0c", b"<1>d"]),
    "any bytes": (b"4 \xff\x00\n\x1b<1>\xfe\n", [b"\xff\x00\n\x1b", b"<1>\xfe"]),
    "a number of eight digits is no count": (b"12345678 x\n", [b"12345678 x"]),
    "a zero is no count": (b"0 x\n", [b"0 x"]),
}


def fed(pieces: list[bytes]) -> list[bytes]:
    frames = Frames()
    return [frame for piece in pieces for frame in frames.feed(piece)] + frames.end()


@pytest.mark.parametrize(("data", "expected"), CASES.values(), ids=CASES)
def test_at_every_split(data: bytes, expected: list[bytes]) -> None:
    assert fed([data]) == expected
    assert fed([data[i : i + 1] for i in range(len(data))]) == expected
    for i in range(len(data)):
        assert fed([data[:i], data[i:]]) == expected


def test_a_last_line_without_its_end() -> None:
    assert fed([b"<1>a\n<1>b"]) == [b"<1>a", b"<1>b"]
    assert fed([b"<1>a\n10 half"]) == [b"<1>a"]


@pytest.mark.parametrize("terminator", [b"", b"\n", b"\0"])
def test_what_is_too_long_loses_its_end_and_nothing_else(terminator: bytes) -> None:
    long = b"<1>" + b"x" * (MAX_FRAME_BYTES + 100)
    three = (b"<1>a", long, b"<1>b")
    data = b"".join(one + terminator if terminator else b"%d %s" % (len(one), one) for one in three)
    for size in (1000, 70_000, len(data)):
        frames = Frames()
        got = [
            frame for at in range(0, len(data), size) for frame in frames.feed(data[at : at + size])
        ]
        assert got == [b"<1>a", long[:MAX_FRAME_BYTES], b"<1>b"]
        assert frames.cut == 1


_TOKENS = st.sampled_from([b"\n", b"\0", b"\r", b"<1>", b"<13>", b"<", b">", b"3 ", b"1", b"xy"])


@given(st.lists(st.binary(max_size=30) | st.lists(_TOKENS).map(b"".join), max_size=6))
def test_any_bytes_give_the_same_frames_however_cut(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    assert fed(pieces) == fed([data]) == fed([data[i : i + 1] for i in range(len(data))])


@given(st.lists(st.lists(_TOKENS).map(b"".join), max_size=6))
def test_records_near_the_limit_are_the_same_however_cut(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(syslog_frames, "MAX_FRAME_BYTES", 7)
        assert fed(pieces) == fed([data]) == fed([data[i : i + 1] for i in range(len(data))])
