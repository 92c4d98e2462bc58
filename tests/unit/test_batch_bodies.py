"""Messages to a body and back, and every body that does not add up."""

from __future__ import annotations

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from logd.batch import compress, count_messages, encode_body, inflate, split_body
from logd.errors import BadRequest, LogdError, TooLarge

property_of = settings(max_examples=300)

MESSAGE = st.binary(max_size=30) | st.sampled_from([b"", b"\n", b"\0", b"\r\n"])
MESSAGES = st.lists(MESSAGE, min_size=1)


@given(MESSAGES)
@property_of
def test_any_messages_come_back(messages: list[bytes]) -> None:
    body, enc = encode_body(messages)
    assert enc == ("sized" if any(b"\n" in message for message in messages) else "lines")
    assert count_messages(body, enc) == len(messages)
    assert count_messages(bytearray(body), enc) == len(messages)
    assert split_body(body, enc) == messages
    assert split_body(*compress(body, enc)) == messages


@pytest.mark.parametrize(
    ("messages", "body", "enc"),
    [
        ([b"one", b"two"], b"one\ntwo\n", "lines"),
        ([b""], b"\n", "lines"),
        ([b"", b""], b"\n\n", "lines"),
        ([b"a\r"], b"a\r\n", "lines"),
        ([b"a\nb", b"", b"c"], b"3 0 1\na\nbc", "sized"),
        ([b"\n"], b"1\n\n", "sized"),
    ],
)
def test_golden_bodies(messages: list[bytes], body: bytes, enc: str) -> None:
    assert encode_body(messages) == (body, enc)
    assert split_body(body, enc) == messages


BROKEN = {
    "lines, empty": (b"", "lines"),
    "lines without an end": (b"one\ntwo", "lines"),
    "sized, empty": (b"", "sized"),
    "sized without a line": (b"3", "sized"),
    "sized, an empty line": (b"\n", "sized"),
    "one byte short": (b"3 1\nabc", "sized"),
    "one byte over": (b"3 1\nabcde", "sized"),
    "a leading zero": (b"03\nabc", "sized"),
    "a plus": (b"+3\nabc", "sized"),
    "a minus": (b"4 -1\nabc", "sized"),
    "an underscore": (b"1_0\n0123456789", "sized"),
    "arabic digits": ("٣\nabc".encode(), "sized"),
    "two spaces": (b"1  2\nabc", "sized"),
    "a space first": (b" 3\nabc", "sized"),
    "a space last": (b"3 \nabc", "sized"),
    "a carriage return": (b"3\r\nabc", "sized"),
    "a tab": (b"1\t2\nabc", "sized"),
    "a size past all": (b"99999999999999999999\nabc", "sized"),
    "5,000 digits": (b"9" * 5000 + b"\nabc", "sized"),
    "sizes that wrap": (b"4294967296 4294967296\n", "sized"),
}


@pytest.mark.parametrize(("body", "enc"), BROKEN.values(), ids=BROKEN)
def test_a_body_that_does_not_add_up(body: bytes, enc: str) -> None:
    with pytest.raises(BadRequest):
        count_messages(body, enc)
    with pytest.raises(BadRequest):
        split_body(body, enc)


@given(st.binary(max_size=40) | st.from_regex(rb"[0-9 ]{0,8}\n.{0,8}", fullmatch=True))
@property_of
def test_counting_and_splitting_agree(body: bytes) -> None:
    for enc in ("lines", "sized"):
        try:
            count = count_messages(body, enc)
        except BadRequest:
            with pytest.raises(BadRequest):
                split_body(body, enc)
        else:
            assert len(split_body(body, enc)) == count > 0


# -- zstd: exactly one frame, with a size it keeps -----------------------------------------------

LIMIT = 1000
SMALL = b"hello\n" * 20
LARGE = b"x\n" * 100_000
_FRAME = zstandard.ZstdCompressor().compress(LARGE)


def frame(content: bytes, *, says_size: bool = True, has_sum: bool = False) -> bytes:
    compressor = zstandard.ZstdCompressor(write_content_size=says_size, write_checksum=has_sum)
    return compressor.compress(content)


def declaring(size: int) -> bytes:
    """The frame of LARGE, but with another size in its header."""
    assert _FRAME[4] >> 6 == 2, "four bytes of content size at byte 5"
    return _FRAME[:5] + size.to_bytes(4, "little") + _FRAME[9:]


def with_dictionary(content: bytes) -> bytes:
    samples: list[bytes | bytearray | memoryview] = [
        b"hello %d world %d" % (i, 7 * i) for i in range(2000)
    ]
    dictionary = zstandard.train_dictionary(1024, samples)
    return zstandard.ZstdCompressor(dict_data=dictionary).compress(content)


SKIPPABLE = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"skip"
BAD_FRAMES = {
    "nothing": b"",
    "no frame": SMALL,
    "the magic alone": frame(SMALL)[:4],
    "cut short": frame(SMALL)[:-1],
    "no size": frame(SMALL, says_size=False),
    "two frames": frame(SMALL) * 2,
    "a byte behind it": frame(SMALL) + b"\0",
    "garbage behind it": frame(SMALL) + SMALL,
    "a skippable frame before it": SKIPPABLE + frame(SMALL),
    "a skippable frame behind it": frame(SMALL) + SKIPPABLE,
    "declares 10 bytes, inflates to 200,000": declaring(10),
    "declares more than it has": frame(SMALL)[:5] + b"\xff" + frame(SMALL)[6:],
    "a dictionary": with_dictionary(SMALL),
    "a flipped bit in its sum": frame(SMALL, has_sum=True)[:-1] + b"\0",
}


@pytest.mark.parametrize("body", BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_a_body_that_is_not_one_sound_frame(body: bytes) -> None:
    with pytest.raises(BadRequest):
        inflate(body, LIMIT)
    for enc in ("lines+zstd", "sized+zstd"):
        with pytest.raises(BadRequest):
            split_body(body, enc, LIMIT)


@pytest.mark.parametrize("size", [len(LARGE), LIMIT + 1, 2**32 - 1])
def test_a_frame_that_declares_more_than_the_limit(size: int) -> None:
    with pytest.raises(TooLarge):
        inflate(declaring(size), LIMIT)


def test_a_frame_up_to_the_limit() -> None:
    exact = b"x" * (LIMIT - 1) + b"\n"
    assert inflate(frame(exact), LIMIT) == exact
    assert inflate(bytearray(frame(exact)), LIMIT) == exact


@pytest.mark.parametrize("bad", [b"one\ntwo", b""])
def test_what_is_inside_the_frame_must_add_up_too(bad: bytes) -> None:
    with pytest.raises(BadRequest):
        split_body(frame(bad), "lines+zstd")


@given(st.binary(max_size=60), st.integers(0, 500), st.integers(0, 7))
@property_of
def test_any_bytes_are_a_frame_or_an_error(noise: bytes, at: int, bit: int) -> None:
    flipped = bytearray(frame(SMALL, has_sum=True))
    flipped[at % len(flipped)] ^= 1 << bit
    for body in (noise, frame(SMALL)[:5] + noise, bytes(flipped)):
        try:
            assert len(inflate(body, LIMIT)) <= LIMIT
        except LogdError:
            pass
