"""Any bytes at any split: requests or refusals, bounded memory, a budget that comes back."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logd.protocol import Budget
from logd.wire.requests import (
    At,
    Commit,
    Cursor,
    Partitions,
    Ping,
    Push,
    Read,
    Stats,
    Tail,
    Topics,
    push_line,
    read_line,
)
from tests.support.feeding import (
    MAX_BATCH_BYTES,
    Err,
    Plain,
    Seen,
    fed,
    fed_in_turns,
    new_parser,
    received_in_place,
    seen,
)

LARGEST = 2**63 - 1
property_of = settings(max_examples=300)


# -- the budget -----------------------------------------------------------------------------------


def test_past_the_budget_a_push_is_busy_and_its_body_dropped() -> None:
    budget = Budget(1000)
    first, second = new_parser(budget), new_parser(budget)
    assert first.feed(b"PUSH a 900\r\nx") == []
    assert budget.used_bytes == 900
    assert fed([b"PUSH b 200\r\n", b"x" * 199 + b"\nPING\r\n"], second) == [Err("busy"), Ping()]
    assert fed([b"x" * 898 + b"\n"], first) == [Plain("a", b"x" * 899 + b"\n", 1)]
    assert budget.used_bytes == 0
    body = b"x" * 199 + b"\n"
    assert fed([b"PUSH b 200\r\n", body], second) == [Plain("b", body, 1)]
    assert budget.used_bytes == 0


@pytest.mark.parametrize("arrived", [b"", b"x", b"x" * 899])
def test_a_connection_that_goes_away_gives_back_what_it_took(arrived: bytes) -> None:
    budget = Budget(1000)
    parser = new_parser(budget)
    parser.feed(b"PUSH a 900\r\n" + arrived)
    assert budget.used_bytes == 900
    parser.release()
    parser.release()
    assert budget.used_bytes == 0


def test_unfinished_one_line_messages_are_paid_for_as_well() -> None:
    """A thousand clients that never end their line must not cost a thousand times 60 KB."""
    budget = Budget(1 << 20)
    parsers = [new_parser(budget) for _ in range(1000)]
    answers = [fed([b"PUSH app\r\n", b"x" * 60_000], parser) for parser in parsers]
    assert [Err("busy")] in answers
    for parser in parsers:
        parser.release()
    assert budget.used_bytes == 0


# -- memory ---------------------------------------------------------------------------------------


def held_bytes(pieces: Iterable[bytes]) -> int:
    """How much more is allocated after feeding these pieces than before."""
    parser = new_parser(Budget(1 << 30))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for piece in pieces:
            parser.feed(piece)
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


PIECE = bytes(4096)
ENDLESS = {
    "a line without an end": [b"READ "],
    "a one-line message without an end": [b"PUSH app\r\n"],
    "the line behind a refused one-line push": [b"PUSH ../x\r\n"],
    "a length of 2^40": [b"PUSH app %d\r\n" % 2**40],
    "the body of a refused push": [b"PUSH ../x 1000\r\n"],
    "what follows an error": [b"FROB\r\n"],
}


@pytest.mark.parametrize("start", ENDLESS.values(), ids=ENDLESS)
def test_memory_is_bounded_whatever_is_sent(start: list[bytes]) -> None:
    assert held_bytes([*start, *[PIECE] * 1000]) < 100_000


# -- any bytes at all -----------------------------------------------------------------------------


def cut(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(at % (len(data) + 1) for at in cuts), len(data)]
    return [data[start:stop] for start, stop in pairwise(edges)]


WORDS = st.sampled_from(
    [b"PUSH", b"READ", b"TAIL", b"STATS", b"TOPICS", b"PING", b"CLOSE", b"push", b"app", b"../x",
     b"CURSOR", b"COMMIT", b"-",
     b"0", b"1", b"6", b"12", b"999", b"1001", b"first", b"@5", b"enc=sized", b"id=p:1", b"count=1",
     b"bytes=1", b"wait=1", b"\r\n", b"\n", b" ", b"\r", b"hello\n", b"a\nb\n", b"\0", b"\xff",
     b"GET / HTTP/1.1\r\n", b"PUSH app 6\r\n", b"PUSH app\r\n", b"PUSH a 2\r\nx\n"]
)  # fmt: skip
NEARLY_COMMANDS = st.lists(WORDS | st.binary(max_size=6), max_size=40).map(b"".join)
CUTS = st.lists(st.integers(0, 10_000), max_size=6)


@given(NEARLY_COMMANDS | st.binary(max_size=300), CUTS)
@property_of
def test_any_bytes_give_the_same_requests_however_cut(data: bytes, cuts: list[int]) -> None:
    """The invariant of the parser: any bytes give requests or refusals, never an exception."""
    budget = Budget(1 << 20)
    parser = new_parser(budget)
    assert fed(cut(data, cuts), parser) == fed([data]) == received_in_place(data, 5)
    pieces = (received_in_place(data, size, large=True) for size in (5, 40, len(data) or 1))
    assert all(piece == fed([data]) for piece in pieces)
    parser.release()
    assert budget.used_bytes == 0


@given(st.lists(NEARLY_COMMANDS, min_size=2, max_size=4), CUTS)
@property_of
def test_a_budget_returns_to_nothing(streams: list[bytes], cuts: list[int]) -> None:
    """Even a small one, which connections fight over."""
    budget = Budget(MAX_BATCH_BYTES + 10)
    parsers = [new_parser(budget) for _ in streams]
    rounds = zip(*(cut(stream, cuts) for stream in streams), strict=True)
    for pieces in rounds:
        for parser, piece in zip(parsers, pieces, strict=True):
            seen(parser.feed(piece))
            assert 0 <= budget.used_bytes <= budget.limit_bytes
    for parser in parsers:
        parser.release()
    assert budget.used_bytes == 0


# A grammar of commands, each with what it must give.

TOPIC = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
NUMBER = st.integers(0, LARGEST)
PRODUCER_ID = st.from_regex("[A-Za-z0-9._-]{1,64}:(0|[1-9][0-9]{0,17})", fullmatch=True)
COUNT = st.integers(1, LARGEST)
END = st.sampled_from([b"\r\n", b"\n"])
Part = tuple[bytes, list[Seen]]


@st.composite
def plain_push(draw: st.DrawFn) -> Part:
    topic, body = draw(TOPIC), draw(st.binary(max_size=40)) + b"\n"
    line = f"PUSH {topic} {len(body)}".encode() + draw(END)
    return line + body, [Plain(topic, body, body.count(b"\n"))]


@st.composite
def push_with_options(draw: st.DrawFn) -> Part:
    body = draw(st.binary(min_size=1, max_size=40))
    push = Push(
        draw(TOPIC),
        body,
        draw(st.sampled_from(["sized", "lines+zstd", "sized+zstd"])),
        draw(st.none() | NUMBER),
        draw(st.none() | st.from_regex("[0-9a-f]{16}", fullmatch=True)),
        draw(st.just("-") | PRODUCER_ID),
    )
    return push_line(push) + body, [push]


@st.composite
def one_line_push(draw: st.DrawFn) -> Part:
    topic = draw(TOPIC)
    text = draw(st.binary(max_size=40)).replace(b"\n", b"").rstrip(b"\r")
    data = b"PUSH " + topic.encode() + draw(END) + text + draw(END)
    return data, [Plain(topic, text + b"\n", 1)]


@st.composite
def read(draw: st.DrawFn) -> Part:
    at = draw(NUMBER | st.sampled_from(["first", "next"]) | NUMBER.map(At))
    wait_ms = draw(st.integers(0, 60_000))
    request = Read(draw(TOPIC), at, draw(COUNT), draw(st.none() | NUMBER), wait_ms)
    return read_line(request), [request]


def small_commands() -> st.SearchStrategy[Part]:
    return st.sampled_from(
        [
            (b"PING\r\n", [Ping()]),
            (b"STATS\n", [Stats()]),
            (b"TOPICS a*\r\n", [Topics("a*")]),
            (b"TAIL app 5\r\n", [Tail("app", 5)]),
            (b"PARTITIONS app\r\n", [Partitions("app")]),
            (b"CURSOR app\r\n", [Cursor("app")]),
            (b"COMMIT app billing 7\r\n", [Commit("app", "billing", 7)]),
            (b"COMMIT app billing -\n", [Commit("app", "billing", None)]),
            (b"COMMIT app billing x\r\n", [Err("bad-request")]),
            (b"PUSH app 3\r\nno\r", [Err("bad-request")]),
            (b"PUSH -rf 3\r\nno\n", [Err("bad-topic")]),
            (b"PUSH -rf\r\nno\n", [Err("bad-topic")]),
            (b"READ app +1 1\r\n", [Err("bad-request")]),
        ]
    )


ENDINGS: list[Part] = [
    (b"", []),
    (b"PING", []),
    (b"PUSH app 10\r\nunfinish", []),
    (b"PUSH app\r\nunfinished", []),
    (b"FROB\r\nPING\r\n", [Err("unknown-command", True)]),
    (b"PUSH app x\r\nPING\r\n", [Err("bad-request", True)]),
    (b"PUSH app 5000\r\nPING\r\n", [Err("too-large", True)]),
]


@given(
    st.lists(
        plain_push() | push_with_options() | one_line_push() | read() | small_commands(),
        max_size=12,
    ),
    st.sampled_from(ENDINGS),
    CUTS,
)
@property_of
def test_pipelines_mean_what_their_parts_mean(
    parts: list[Part], ending: Part, cuts: list[int]
) -> None:
    parts = [*parts, ending]
    data = b"".join(part for part, _ in parts)
    assert fed(cut(data, cuts)) == [request for _, requests in parts for request in requests]


@given(
    st.lists(plain_push() | one_line_push() | read() | small_commands(), max_size=12),
    st.sampled_from(ENDINGS),
    CUTS,
    st.integers(1, 5),
    st.booleans(),
)
@property_of
def test_a_limit_on_requests_leaves_none_out(
    parts: list[Part], ending: Part, cuts: list[int], most: int, large: bool
) -> None:
    parts = [*parts, ending]
    data = b"".join(part for part, _ in parts)
    wanted = [request for _, requests in parts for request in requests]
    assert fed_in_turns(cut(data, cuts), most, large=large) == wanted
