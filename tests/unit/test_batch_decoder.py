"""Batches are unpacked in windows: the same messages, and never many bytes at a time."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator

import pytest

from logd.batch import (
    LINES,
    LINES_ZSTD,
    SIZED,
    SIZED_ZSTD,
    ScannedBatch,
    body_sum,
    compress,
    encode_header,
    inflate,
    inflate_to_store,
    reading,
    scan,
)
from logd.errors import BadRequest, DamagedBatch
from logd.wire import batch_decoder
from logd.wire.batch_decoder import CHUNK_BYTES, CHUNK_MESSAGES, BatchBody, messages, text, verify

ALL = (LINES, SIZED, LINES_ZSTD, SIZED_ZSTD)
DRAWN = random.Random(15)
VALUES = {
    "none": [b""] * 700,
    "short": [b"%d" % n for n in range(2000)],
    "one": [b"x" * 300_000],
    "large and small": [b"", b"y" * 100_000, b"", b"z", b"w" * 70_000, b"last"],
    "any": [DRAWN.randbytes(DRAWN.randrange(900)).replace(b"\n", b" ") for _ in range(400)],
}
BOMB_MESSAGES = 1 << 20


def stored(values: list[bytes], enc: str) -> bytes:
    plain = enc.removesuffix("+zstd")
    if plain == LINES:
        content = b"".join(value + b"\n" for value in values)
    else:
        content = b" ".join(b"%d" % len(value) for value in values) + b"\n" + b"".join(values)
    return packed(content, len(values), enc)


def packed(content: bytes, count: int, enc: str) -> bytes:
    plain = enc.removesuffix("+zstd")
    body = content if plain == enc else compress(content, plain)[0]
    return encode_header(10, count, len(body), 5, enc, body_sum(body)) + body


def opened(data: bytes, max_body_bytes: int = 0) -> BatchBody:
    found: ScannedBatch
    (found,) = scan(reading(data), 0, len(data), max_body_bytes=max_body_bytes)
    return BatchBody.of(found, reading(data))


def frame(content: bytes, window_log: int, block_bytes: int) -> bytes:
    """A zstd frame of blocks that are not compressed."""
    head = b"\x28\xb5\x2f\xfd" + bytes([2 << 6, (window_log - 10) << 3])
    blocks = [content[at : at + block_bytes] for at in range(0, len(content), block_bytes)]
    sizes = [len(block) << 3 for block in blocks]
    sizes[-1] |= 1  # the last one
    framed = [n.to_bytes(3, "little") + block for n, block in zip(sizes, blocks, strict=True)]
    return head + len(content).to_bytes(4, "little") + b"".join(framed)


@pytest.mark.parametrize("window_log", [17, 27, 28, 31])
def test_a_frame_with_any_window_can_be_read(window_log: int) -> None:
    """`zstd --long=31` makes such frames; no more memory is used than the content takes."""
    content = b"line\n" * 60_000
    body = frame(content, window_log, 100_000)
    data = encode_header(10, 60_000, len(body), 5, LINES_ZSTD, body_sum(body)) + body
    assert inflate_to_store(body, 1 << 20) == content
    assert b"".join(text(opened(data), 0, 60_000)) == content


@pytest.mark.parametrize(
    ("content_bytes", "window_log", "block_bytes"),
    [(300_000, 20, 200_000), (300_000, 10, 100_000), (60_000, 10, 2000)],
)
def test_a_frame_that_readers_would_not_accept_is_not_stored(
    content_bytes: int, window_log: int, block_bytes: int
) -> None:
    """Its blocks are larger than zstd allows, which a decoder of whole frames does not notice."""
    body = frame(b"\n" * content_bytes, window_log, block_bytes)
    assert inflate(body, 1 << 20) == b"\n" * content_bytes
    with pytest.raises(BadRequest, match="not one valid zstd frame"):
        inflate_to_store(body, 1 << 20)


@pytest.mark.parametrize("enc", ALL)
@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("max_body_bytes", [0, 1 << 20])
def test_any_range_of_messages(kind: str, enc: str, max_body_bytes: int) -> None:
    values = VALUES[kind]
    body = opened(stored(values, enc), max_body_bytes)
    verify(body)
    count = len(values)
    for first, stop in {(0, count), (0, 1), (count - 1, count), (count // 3, count // 2 + 1)}:
        lists = list(messages(body, first, stop - first))
        assert [one for some in lists for one in some] == values[first:stop]
        assert all(0 < len(some) <= CHUNK_MESSAGES for some in lists)
        assert all(len(some) == 1 or sum(map(len, some)) <= 2 * CHUNK_BYTES for some in lists)
        if enc.startswith(LINES):
            wanted = b"".join(value + b"\n" for value in values[first:stop])
            assert b"".join(text(body, first, stop - first)) == wanted


@pytest.mark.parametrize("enc", ALL)
def test_windows_that_end_anywhere(enc: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [b"", b"a", b"bcd", b"", b"efghijklmnop", b"q", b""]
    body = opened(stored(values, enc))
    for size in range(1, 12):
        monkeypatch.setattr(batch_decoder, "CHUNK_BYTES", size)
        monkeypatch.setattr(batch_decoder, "WINDOW_BYTES", size)
        for first in range(len(values)):
            for stop in range(first + 1, len(values) + 1):
                lists = messages(body, first, stop - first)
                assert [one for some in lists for one in some] == values[first:stop]


@pytest.mark.parametrize("enc", ALL)
def test_a_bomb_takes_little_memory(enc: str) -> None:
    """A few bytes that inflate to millions of messages."""
    content = b"\n" * BOMB_MESSAGES
    if enc.startswith(SIZED):
        content = b"0" + b" 0" * (BOMB_MESSAGES - 1) + b"\n"
    body = opened(packed(content, BOMB_MESSAGES, enc))
    found = 0
    tracemalloc.start()
    try:
        verify(body)
        for some in messages(body, BOMB_MESSAGES // 2, 100_000):
            found += len(some)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == 100_000
    assert most < 4 << 20  # apart from the window of the decompressor


DAMAGED: dict[str, tuple[bytes, str]] = {
    "too few lines": (b"a\nb\n", LINES),
    "too few compressed lines": (b"a\nb\n", LINES_ZSTD),
    "no line of sizes": (b"abc", SIZED),
    "letters for sizes": (b"1 x 1\nabc", SIZED),
    "a long size": (b"1" * 50_000 + b"\nabc", SIZED),
    "too few sizes": (b"1 1\nab", SIZED_ZSTD),
    "too few bytes": (b"1 1 9\nab", SIZED),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_what_does_not_add_up_is_damage(kind: str) -> None:
    content, enc = DAMAGED[kind]
    body = opened(packed(content, 3, enc))

    def all_of(lists: Iterator[list[bytes]]) -> int:
        return sum(map(len, lists))

    with pytest.raises(DamagedBatch):
        all_of(messages(body, 0, 3))


def test_what_is_no_zstd_is_damage() -> None:
    data = encode_header(10, 3, 9, 5, LINES_ZSTD, body_sum(b"not zstd\n")) + b"not zstd\n"
    with pytest.raises(DamagedBatch):
        list(messages(opened(data), 0, 3))


@pytest.mark.parametrize("at", [0, 100_000, 299_999])
def test_a_changed_body_is_noticed(at: int) -> None:
    data = bytearray(stored([b"x" * 300_000], LINES))
    data[-300_001 + at] ^= 1
    with pytest.raises(DamagedBatch, match="does not match its sum"):
        verify(opened(bytes(data)))
