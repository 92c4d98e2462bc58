"""The first line of a reply, as a client reads it."""

from __future__ import annotations

import pytest
from feeding import new_parser
from hypothesis import given, settings
from hypothesis import strategies as st

from logd.errors import LogdError
from logd.replies import NotLogd, Reply, parse_reply
from logd.requests import Refused

property_of = settings(deadline=None, max_examples=300)


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
    assert parse_reply(line) == Reply(word, numbers, bytearray(body_bytes))


@pytest.mark.parametrize("code", ["bad-request", "not-found", "too-large", "out-of-order", "busy"])
def test_an_error_survives_the_wire(code: str) -> None:
    error = parse_reply(f"ERR {code} first=0 next=5\r\n".encode())
    assert isinstance(error, LogdError)
    assert (error.code, error.text) == (code, "first=0 next=5")
    assert error.line() == f"ERR {code} first=0 next=5\r\n".encode()


def test_an_error_never_breaks_out_of_its_line() -> None:
    (refused,) = new_parser().feed(b"PING \x1b[31m\rOK 0 1\r\n")[:1]
    assert isinstance(refused, Refused)
    (refused,) = new_parser().feed(b"READ app 0 1 a\x1b[31m\x85\r=1\r\n")
    assert isinstance(refused, Refused)
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
