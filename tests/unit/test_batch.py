"""The batch's bytes: golden ones, every way to damage them, and the one scanner over both."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh32_hexdigest

from logd.batch import (
    ENCODINGS,
    MAX_HEADER_BYTES,
    MAX_NUMBER,
    Buffer,
    Header,
    ScannedBatch,
    body_sum,
    count_lf,
    encode_header,
    parse_header,
    read_sizes,
    reading,
    scan,
    sizes_line,
)
from logd.errors import BadRequest, DamagedBatch
from tests.unit.compiled import source

property_of = settings(max_examples=200)

TIME_MS = 1_700_000_000_000
GOLDEN_LINES = b"BATCH 0 2 8 1700000000000 lines 6e628429ca24c01d - 2ad86638\r\none\ntwo\n"
GOLDEN_SIZED = (
    b"BATCH 2 2 11 1700000000001 sized 2c9531ec6fb6e43b web-1:7 99264095\r\n3 4\na\nbc\0de"
)
GOLDEN = GOLDEN_LINES + GOLDEN_SIZED


def batch(offset: int, body: bytes, messages: int = 1, time_ms: int = TIME_MS) -> bytes:
    head = encode_header(offset, messages, len(body), time_ms, "lines", body_sum(body))
    return head + body


def headed(text: str) -> bytes:
    """A header line with the sum that belongs to it, whatever the rest of it says."""
    line = text.encode("latin-1")
    return line + xxh32_hexdigest(line).encode() + b"\r\n"


def found(data: bytes, **how: int | bool) -> list[ScannedBatch]:
    return list(scan(reading(data), 0, len(data), **how))  # type: ignore[arg-type]


def walked(data: bytes) -> tuple[list[int], int | None]:
    """The offsets of the sound batches, and where the first bad one is."""
    sound = []
    try:
        for good in scan(reading(data), 0, len(data), expect=0):
            sound.append(good.header.offset)
    except DamagedBatch as damage:
        return sound, damage.position
    return sound, None


# -- the header ---------------------------------------------------------------------------------


def test_golden_bytes() -> None:
    """These bytes are on people's disks: a change here is a change of the format."""
    lines, sized = found(GOLDEN, expect=0)
    assert lines.header == (0, 2, 8, TIME_MS, "lines", "6e628429ca24c01d", "-", 61)
    assert (lines.position, bytes(lines.body), lines.end) == (0, b"one\ntwo\n", 69)
    assert sized.header == (2, 2, 11, TIME_MS + 1, "sized", "2c9531ec6fb6e43b", "web-1:7", 68)
    assert (sized.position, bytes(sized.body), sized.end) == (69, b"3 4\na\nbc\0de", len(GOLDEN))
    assert encode_header(*lines.header[:7]) + b"one\ntwo\n" == GOLDEN_LINES
    assert encode_header(*sized.header[:7]) + b"3 4\na\nbc\0de" == GOLDEN_SIZED


def test_the_sums_are_those_the_protocol_names() -> None:
    assert body_sum(b"") == "2d06800538d394c2"  # XXH3-64 of nothing, seed 0
    assert xxh32_hexdigest(b"") == "02cc5d05"


@given(
    offset=st.integers(0, MAX_NUMBER // 2),
    messages=st.integers(1, MAX_NUMBER // 2),
    size=st.integers(1, MAX_NUMBER),
    time_ms=st.integers(0, MAX_NUMBER),
    enc=st.sampled_from(ENCODINGS),
    sum_=st.from_regex("[0-9a-f]{16}", fullmatch=True),
    id_=st.just("-") | st.from_regex("[A-Za-z0-9._-]{1,64}:(0|[1-9][0-9]{0,18})", fullmatch=True),
    before=st.binary(max_size=5),
)
@property_of
def test_a_header_comes_back_as_it_was(
    offset: int, messages: int, size: int, time_ms: int, enc: str, sum_: str, id_: str,
    before: bytes,
) -> None:  # fmt: skip
    line = encode_header(offset, messages, size, time_ms, enc, sum_, id_)
    header = parse_header(before + line + b"body", len(before))
    assert header == Header(offset, messages, size, time_ms, enc, sum_, id_, len(line))
    assert header.next == offset + messages
    for end in range(len(line)):
        assert parse_header(line[:end]) is None


SUM = "0123456789abcdef"


@pytest.mark.parametrize("words", ["later ", "a b c ", "key=value ~!@#$%^&*() ", "x" * 900 + " "])
def test_words_that_later_versions_add_are_skipped(words: str) -> None:
    line = headed(f"BATCH 5 1 3 7 lines {SUM} - {words}")
    assert parse_header(line) == (5, 1, 3, 7, "lines", SUM, "-", len(line))


BAD_HEADERS = {
    "leading zero": f"BATCH 05 1 3 7 lines {SUM} - ",
    "negative": f"BATCH -5 1 3 7 lines {SUM} - ",
    "plus": f"BATCH +5 1 3 7 lines {SUM} - ",
    "20 digits": f"BATCH {'1' * 20} 1 3 7 lines {SUM} - ",
    "no messages": f"BATCH 5 0 3 7 lines {SUM} - ",
    "no body": f"BATCH 5 1 0 7 lines {SUM} - ",
    "a gap with a body": f"BATCH 5 1 3 7 gap {SUM} - ",
    "past the last offset": f"BATCH {MAX_NUMBER} 1 3 7 lines {SUM} - ",
    "unknown enc": f"BATCH 5 1 3 7 json {SUM} - ",
    "enc in capitals": f"BATCH 5 1 3 7 LINES {SUM} - ",
    "sum in capitals": f"BATCH 5 1 3 7 lines {SUM.upper()} - ",
    "short sum": f"BATCH 5 1 3 7 lines {SUM[1:]} - ",
    "no id": f"BATCH 5 1 3 7 lines {SUM} ",
    "bad id": f"BATCH 5 1 3 7 lines {SUM} p:07 ",
    "two spaces": f"BATCH 5 1 3  7 lines {SUM} - ",
    "two spaces before the sum": f"BATCH 5 1 3 7 lines {SUM} -  ",
    "tab": f"BATCH 5 1 3 7 lines {SUM} -\t",
    "not ASCII": f"BATCH 5 1 3 7 lines {SUM} - \xe4 ",
    "control character": f"BATCH 5 1 3 7 lines {SUM} - \x1b ",
    "small letters": f"batch 5 1 3 7 lines {SUM} - ",
    "space first": f" BATCH 5 1 3 7 lines {SUM} - ",
    "over-long": f"BATCH 5 1 3 7 lines {SUM} - {'x' * 1000} ",
}


@pytest.mark.parametrize("text", BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_a_header_is_strict_even_where_its_sum_is_right(text: str) -> None:
    assert parse_header(headed(text)) is None


def test_a_header_ends_in_carriage_return_and_line_feed() -> None:
    sound = headed(f"BATCH 5 1 3 7 lines {SUM} - ")
    assert parse_header(sound) is not None
    assert parse_header(sound.replace(b"\r\n", b"\n")) is None
    assert parse_header(sound.replace(b"\r\n", b"\r\r")) is None
    capitals = sound[:-10] + sound[-10:].upper()
    assert capitals == sound or parse_header(capitals) is None


@given(st.binary(max_size=200), st.integers(0, 200))
@property_of
def test_any_bytes_are_a_header_or_not(data: bytes, at: int) -> None:
    assert parse_header(data, min(at, len(data))) is None


# -- the scanner --------------------------------------------------------------------------------


@pytest.mark.parametrize("position", range(len(GOLDEN)))
def test_every_flipped_bit_is_noticed(position: int) -> None:
    for bit in range(8):
        damaged = GOLDEN[:position] + bytes([GOLDEN[position] ^ 1 << bit]) + GOLDEN[position + 1 :]
        is_in_first = position < len(GOLDEN_LINES)
        assert walked(damaged) == (([], 0) if is_in_first else ([0], len(GOLDEN_LINES)))


@pytest.mark.parametrize("end", range(len(GOLDEN)))
def test_every_cut_is_noticed(end: int) -> None:
    ends_of_batches = {0: ([], None), len(GOLDEN_LINES): ([0], None)}
    torn = ([], 0) if end < len(GOLDEN_LINES) else ([0], len(GOLDEN_LINES))
    assert walked(GOLDEN[:end]) == ends_of_batches.get(end, torn)


@pytest.mark.parametrize("tail", [b"\0", b"\0" * 5000, b"x" * 5000, b"BATCH", b"\r\n", GOLDEN[1:]])
def test_what_follows_the_last_batch_is_noticed(tail: bytes) -> None:
    assert walked(GOLDEN + tail) == ([0, 2], len(GOLDEN))


OUT_OF_PLACE = {
    "a gap": batch(0, b"a\n") + batch(2, b"b\n"),
    "an overlap": batch(0, b"a\nb\n", 2) + batch(1, b"c\n"),
    "the same twice": batch(0, b"a\n") * 2,
    "an older time": batch(0, b"a\n") + batch(1, b"b\n", time_ms=TIME_MS - 1),
}


@pytest.mark.parametrize("bodies", [True, False])
@pytest.mark.parametrize("data", OUT_OF_PLACE.values(), ids=OUT_OF_PLACE)
def test_batches_that_do_not_follow_each_other(data: bytes, bodies: bool) -> None:
    with pytest.raises(DamagedBatch):
        found(data, bodies=bodies)


def test_the_first_batch_must_be_the_one_that_is_due() -> None:
    data = batch(5, b"a\n")
    assert found(data, expect=5, since_ms=TIME_MS)
    for wrong in ({"expect": 4}, {"expect": 6}, {"since_ms": TIME_MS + 1}):
        with pytest.raises(DamagedBatch):
            found(data, **wrong)


def test_without_bodies_only_headers_are_checked() -> None:
    damaged = GOLDEN_LINES.replace(b"two", b"twO") + GOLDEN_SIZED
    assert [(b.header.offset, bytes(b.body)) for b in found(damaged, bodies=False)] == [
        (0, b""),
        (2, b""),
    ]


def test_a_forged_batch_inside_a_body_is_not_found() -> None:
    lines = GOLDEN.count(b"\n") + 1
    assert walked(batch(0, GOLDEN + b"\n", lines) + batch(lines, b"x\n")) == ([0, lines], None)


def test_a_gap_batch_has_no_body() -> None:
    gap = encode_header(0, 5, 0, TIME_MS, "gap", body_sum(b""))
    assert [b.header.enc for b in found(gap + batch(5, b"x\n"))] == ["gap", "lines"]


BODIES = st.lists(st.integers(0, 300), min_size=1, max_size=8)


@given(BODIES, st.integers(1, 1500), st.booleans())
@property_of
def test_the_window_makes_no_difference(sizes: list[int], window: int, bodies: bool) -> None:
    data = b"".join(batch(i, b"x" * size + b"\n") for i, size in enumerate(sizes))
    expected = found(data, bodies=bodies)
    assert [b.header.size for b in expected] == [size + 1 for size in sizes]
    assert found(data, bodies=bodies, window_bytes=window) == expected


def test_bodies_that_are_not_wanted_are_not_read() -> None:
    data = b"".join(batch(i, b"x" * 99_999 + b"\n") for i in range(10))
    asked = []

    def read(position: int, size: int) -> memoryview:
        asked.append(size)
        return memoryview(data)[position : position + size]

    window = MAX_HEADER_BYTES
    headers = list(scan(read, 0, len(data), bodies=False, window_bytes=window))
    assert len(headers) == 10
    assert sum(asked) <= 10 * window


# -- counting lines -----------------------------------------------------------------------------


UNCOMPILED = source("batch", native=False)
COUNTERS = {"as installed": count_lf, "uncompiled": UNCOMPILED.count_lf}


@pytest.mark.parametrize("count", COUNTERS.values(), ids=COUNTERS)
@given(st.lists(st.sampled_from([b"\n", b"\n\n", b"x", b"\x8a", b"\0" * 40])), st.integers(0, 40))
@property_of
def test_line_feeds_are_counted_right(
    count: Callable[[Buffer], int], parts: list[bytes], start: int
) -> None:
    data = b"".join(parts) + b"\n" * (start * 30)
    part = memoryview(data)[start:]
    assert count(part) == count(bytes(part)) == count(bytearray(part)) == bytes(part).count(b"\n")


SIZES = st.from_regex(rb"[0-9 ]{0,30}\n?x?", fullmatch=True) | st.lists(
    st.integers(0, 10**11), max_size=9
).map(lambda sizes: b" ".join(b"%d" % size for size in sizes) + b"\n")


@given(SIZES)
@property_of
def test_sizes_are_read_the_same_with_and_without_a_compiler(body: bytes) -> None:
    assert read_sizes(body) == UNCOMPILED.read_sizes(memoryview(body))


@pytest.mark.parametrize("read", [read_sizes, UNCOMPILED.read_sizes])
@pytest.mark.parametrize("size", [b"0", b"12345"])
def test_a_long_line_of_sizes(read: Callable[[Buffer], object], size: bytes) -> None:
    """Longer than what is read in one step, wherever a step ends."""
    for count in (10_923, 32_768, 32_769, 100_000):
        line = b" ".join([size] * count)
        assert read(line + b"\nx") == (count, len(line) + 1, count * int(size))
        assert read(line) is None
        assert read(line + b" \n") is None
        assert read(line + b" x\n") is None
    assert read(b"1" * 100_000 + b"\n") is None


@pytest.mark.parametrize("read", [read_sizes, UNCOMPILED.read_sizes])
def test_counting_sizes_costs_little_memory(read: Callable[[Buffer], object]) -> None:
    body = b"0 " * (1 << 19) + b"0\n"
    tracemalloc.start()
    try:
        read(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < len(body)


@pytest.mark.parametrize("end", [b"", b"\n", b"x\n"])
def test_a_line_of_sizes_costs_little_memory(end: bytes) -> None:
    body = b"1 " * (1 << 18) + b"1" + end
    tracemalloc.start()
    try:
        with suppress(BadRequest):
            sizes_line(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(body)
