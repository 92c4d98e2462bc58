"""Replies as a client takes them: first lines, bodies, and any bytes, however they arrive."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logd.errors import LogdError
from logd.wire import replies
from logd.wire.replies import NotLogd, ReceivedReply, Replies, parse_reply
from logd.wire.requests import RefusedRequest
from tests.support.feeding import new_parser

property_of = settings(max_examples=300)


@pytest.mark.parametrize(
    ("line", "word", "numbers", "body_bytes"),
    [
        (b"OK\r\n", "OK", (), 0),
        (b"OK 5 3\r\n", "OK", (5, 3), 0),
        (b"OK 5 3\n", "OK", (5, 3), 0),
        (b"TEXT 12\r\n", "TEXT", (12,), 12),
        (b"BATCHES 5 3 100\r\n", "BATCHES", (5, 3, 100), 100),
        (b"BATCHES 5 0 0\r\n", "BATCHES", (5, 0, 0), 0),
    ],
)
def test_replies(line: bytes, word: str, numbers: tuple[int, ...], body_bytes: int) -> None:
    assert parse_reply(line) == ReceivedReply(word, numbers, bytearray(body_bytes))


@pytest.mark.parametrize("code", ["bad-request", "not-found", "too-large", "out-of-order", "busy"])
def test_an_error_survives_the_wire(code: str) -> None:
    error = parse_reply(f"ERR {code} first=0 next=5\r\n".encode())
    assert isinstance(error, LogdError)
    assert (error.code, error.text) == (code, "first=0 next=5")
    assert error.line() == f"ERR {code} first=0 next=5\r\n".encode()


def test_an_error_never_breaks_out_of_its_line() -> None:
    (refused,) = new_parser().feed(b"PING \x1b[31m\rOK 0 1\r\n")[:1]
    assert isinstance(refused, RefusedRequest)
    (refused,) = new_parser().feed(b"READ app 0 1 a\x1b[31m\x85\r=1\r\n")
    assert isinstance(refused, RefusedRequest)
    line = refused.error.line()
    assert line.count(b"\n") == line.count(b"\r") == 1
    assert all(32 <= byte < 127 for byte in line[:-2])


@given(st.binary(max_size=60) | st.binary(max_size=20).map(lambda b: b"OK " + b))
@property_of
def test_any_bytes_are_a_reply_or_an_error(line: bytes) -> None:
    try:
        reply = parse_reply(line)
    except NotLogd:
        return
    assert isinstance(reply, LogdError) or reply.word in ("OK", "TEXT", "BATCHES")


# -- as they arrive -----------------------------------------------------------------------------

STREAM = (
    b"OK\r\nOK 5 3\r\nTEXT 7\r\na: b\nc\nERR busy later\r\nBATCHES 0 1 20\r\n"
    b"OK 1 1\r\nOK 2 2\r\n\r\n\r\nTEXT 0\r\nOK 9 9\n"
)
TAKEN = [
    ("OK", (), b""),
    ("OK", (5, 3), b""),
    ("TEXT", (7,), b"a: b\nc\n"),
    "busy: later",
    ("BATCHES", (0, 1, 20), b"OK 1 1\r\nOK 2 2\r\n\r\n\r\n"),
    ("TEXT", (0,), b""),
    ("OK", (9, 9), b""),
]


def fed(pieces: list[bytes]) -> list[object]:
    taken, replies = list[object](), Replies()
    for piece in pieces:
        while piece:
            with replies.room() as room:
                size = min(len(room), len(piece))
                assert size
                room[:size] = piece[:size]
            piece = piece[size:]
            replies.received(size)
            while (reply := replies.take()) is not None:
                if isinstance(reply, ReceivedReply):
                    taken.append((reply.word, reply.numbers, bytes(reply.body)))
                else:
                    taken.append(str(reply))
    assert replies.is_between
    return taken


def test_the_same_at_every_split() -> None:
    assert fed([STREAM]) == TAKEN
    for at in range(1, len(STREAM)):
        assert fed([STREAM[:at], STREAM[at:]]) == TAKEN, f"cut at {at}"
    for size in (1, 2, 3, 7):
        pieces = [STREAM[i : i + size] for i in range(0, len(STREAM), size)]
        assert fed(pieces) == TAKEN, f"{size} at a time"


@given(st.lists(st.integers(1, 3_000), max_size=30))
@property_of
def test_more_than_fits_the_room_for_lines(sizes: list[int]) -> None:
    stream = b"".join(b"TEXT %d\r\n%s" % (n, b"x" * n) for n in [9_000, 1, 20_000, 8_192]) * 2
    stream += b"OK 1 1\r\n" * 3_000
    pieces = []
    for size in sizes:
        pieces.append(stream[:size])
        stream = stream[size:]
    taken = fed([*pieces, stream])
    assert len(taken) == 8 + 3_000


def test_there_is_room_when_one_reply_is_taken_at_a_time() -> None:
    parser = Replies()
    for _ in range(3):
        with parser.room() as room:
            count, rest = divmod(len(room), 4)
            assert (count > 0, rest) == (True, 0)
            room[:] = b"OK\r\n" * count
        parser.received(4 * count)
        for n in range(count):
            assert not parser.is_between
            assert isinstance(parser.take(), ReceivedReply), n
        assert parser.is_between


def test_lines_without_an_end_and_bodies_without_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotLogd, match="no end of line"):
        fed([b"x" * 4097])
    monkeypatch.setattr(replies, "MAX_REPLY_BYTES", 100)
    with pytest.raises(NotLogd, match="101 bytes"):
        fed([b"TEXT 101\r\n"])


@given(st.binary(max_size=200), st.integers(1, 50))
@property_of
def test_any_bytes_give_replies_or_not_logd(data: bytes, size: int) -> None:
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    replies = Replies()
    try:
        for piece in pieces:
            with replies.room() as room:
                room[: len(piece)] = piece
            replies.received(len(piece))
            while replies.take() is not None:
                pass
    except NotLogd:
        pass
    except ValueError:
        assert replies._reply is not None  # a piece larger than what is missing of a body
