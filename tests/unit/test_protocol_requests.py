"""What each command line means, or why it is refused: tables, each row fed at every split."""

from __future__ import annotations

from typing import cast

import pytest

from logd.batch import JOIN_BYTES
from logd.errors import BadTopic
from logd.wire.requests import (
    At,
    Close,
    Commit,
    ConfigRequest,
    Cursor,
    Help,
    Mixed,
    Partitions,
    Ping,
    Push,
    Read,
    Stats,
    Tail,
    Topics,
    topic_name,
)
from tests.support.feeding import MAX_BATCH_BYTES, Err, Plain, Seen, fed, new_parser, parsed

LARGEST = 2**63 - 1


# -- what is accepted -----------------------------------------------------------------------------

SUM = "0123456789abcdef"
ONE_TO_THREE = [b"1\n", b"2\n", b"3\n"]
NAME_64 = "p" * 64
TOPIC_128 = "t" * 128

ACCEPTED: list[tuple[bytes, list[Seen]]] = [
    (b"PUSH app 6\r\nhello\n", [Plain("app", b"hello\n", 1)]),
    (b"PUSH app 6\nhello\n", [Plain("app", b"hello\n", 1)]),
    (b"push app 6\r\nhello\n", [Plain("app", b"hello\n", 1)]),
    (b"PUSH app 1\r\n\n", [Plain("app", b"\n", 1)]),
    (b"PUSH app 06\r\nhello\n", [Plain("app", b"hello\n", 1)]),
    (b"PUSH app 6\r\na\nb\nc\n", [Plain("app", b"a\nb\nc\n", 3)]),
    (b"PUSH app 6 enc=lines\r\nhello\n", [Plain("app", b"hello\n", 1)]),
    (b"PUSH app 3 enc=sized\r\n1\nx", [Push("app", b"1\nx", "sized")]),
    (b"PUSH app 3 enc=lines+zstd\r\nxyz", [Push("app", b"xyz", "lines+zstd")]),
    (b"PUSH app 3 enc=sized+zstd\r\nxyz", [Push("app", b"xyz", "sized+zstd")]),
    (b"PUSH app 2 count=1\r\nx\n", [Push("app", b"x\n", messages=1)]),
    (b"PUSH app 2 count=0\r\nx\n", [Push("app", b"x\n", messages=0)]),
    (f"PUSH app 2 sum={SUM}\r\nx\n".encode(), [Push("app", b"x\n", sum=SUM)]),
    (b"PUSH app 2 id=p:7\r\nx\n", [Push("app", b"x\n", id="p:7")]),
    (b"PUSH app 2 id=p:007\r\nx\n", [Push("app", b"x\n", id="p:7")]),
    (f"PUSH app 2 id={NAME_64}:0\r\nx\n".encode(), [Push("app", b"x\n", id=f"{NAME_64}:0")]),
    (b"PUSH app 2 id=p:%d\r\nx\n" % LARGEST, [Push("app", b"x\n", id=f"p:{LARGEST}")]),
    (
        f"PUSH app 2 id=a.b-c_1:7 sum={SUM} count=1 enc=lines\r\nx\n".encode(),
        [Push("app", b"x\n", "lines", 1, SUM, "a.b-c_1:7")],
    ),
    (b"PUSH app\r\nhello\r\n", [Plain("app", b"hello\n", 1)]),
    (b"PUSH app\nhello\n", [Plain("app", b"hello\n", 1)]),
    (b"PUSH app\r\n\r\n", [Plain("app", b"\n", 1)]),
    (b"PUSH app\r\nhello\r\r\n", [Plain("app", b"hello\r\n", 1)]),
    (b"PUSH app\r\na\0b\r\n", [Plain("app", b"a\0b\n", 1)]),
    (b"PUSH app\r\nPING\r\nPING\r\n", [Plain("app", b"PING\n", 1), Ping()]),
    (b"PUSH a 2\r\n1\nPUSH a 2\r\n2\nPUSH a 2\r\n3\n", [Plain("a", i, 1) for i in ONE_TO_THREE]),
    (b"PUSH a 2\r\n1\nPUSH b 2\r\n2\n", [Plain("a", b"1\n", 1), Plain("b", b"2\n", 1)]),
    (b"PUSH a 2\r\n1\nPUSH a 2\r\n\n\n", [Plain("a", b"1\n", 1), Plain("a", b"\n\n", 2)]),
    (b"READ app 0 1\r\n", [Read("app", 0, 1)]),
    (b"read app first 1\n", [Read("app", "first", 1)]),
    (b"READ app next 10\r\n", [Read("app", "next", 10)]),
    (b"READ app @0 1\r\n", [Read("app", At(0), 1)]),
    (b"READ app @1700000000000 1\r\n", [Read("app", At(1_700_000_000_000), 1)]),
    (b"READ app %d %d\r\n" % (LARGEST, LARGEST), [Read("app", LARGEST, LARGEST)]),
    (b"READ app 5 1 bytes=100\r\n", [Read("app", 5, 1, 100)]),
    (b"READ app 5 1 bytes=0\r\n", [Read("app", 5, 1, 0)]),
    (b"READ app 5 1 wait=250\r\n", [Read("app", 5, 1, None, 250)]),
    (b"READ app 5 1 wait=60001\r\n", [Read("app", 5, 1, None, 60_000)]),
    (b"READ app 5 1 wait=1 bytes=2\r\n", [Read("app", 5, 1, 2, 1)]),
    (b"READ app 5 1 bytes=2 wait=1\r\n", [Read("app", 5, 1, 2, 1)]),
    (b"TAIL app 10\r\n", [Tail("app", 10)]),
    (b"STATS\r\n", [Stats()]),
    (b"STATS app\r\n", [Stats("app")]),
    (b"TOPICS\r\n", [Topics("*")]),
    (b"TOPICS a*[0-9]?\r\n", [Topics("a*[0-9]?")]),
    (b"PARTITIONS app\r\n", [Partitions("app")]),
    (b"CURSOR app\r\n", [Cursor("app")]),
    (b"cursor app billing\n", [Cursor("app", "billing")]),
    (f"CURSOR app {NAME_64}\r\n".encode(), [Cursor("app", NAME_64)]),
    (b"CURSOR app -\r\nCURSOR app ..\r\n", [Cursor("app", "-"), Cursor("app", "..")]),
    (b"COMMIT app billing 42\r\n", [Commit("app", "billing", 42)]),
    (b"commit app a.b-c_D9 007\n", [Commit("app", "a.b-c_D9", 7)]),
    (b"COMMIT app billing %d\r\n" % LARGEST, [Commit("app", "billing", LARGEST)]),
    (b"COMMIT app billing -\r\n", [Commit("app", "billing", None)]),
    (b"COMMIT app - -\r\n", [Commit("app", "-", None)]),
    (b"CONFIG\r\nHELP\r\nPING\r\nCLOSE\r\n", [ConfigRequest(), Help(), Ping(), Close()]),
    (b"pInG\n", [Ping()]),
    (f"STATS {TOPIC_128}\r\n".encode(), [Stats(TOPIC_128)]),
    (b"STATS 0\r\nSTATS a.b-c_D9\r\n", [Stats("0"), Stats("a.b-c_D9")]),
]  # fmt: skip


@pytest.mark.parametrize(("data", "requests"), ACCEPTED, ids=[str(data) for data, _ in ACCEPTED])
def test_what_is_accepted(data: bytes, requests: list[Seen]) -> None:
    assert parsed(data) == requests
    assert parsed(data + b"PING\r\n") == [*requests, Ping()]


# -- what is refused, and the connection goes on --------------------------------------------------

BAD_NUMBERS = {
    "underscore": b"1_0",
    "plus": b"+5",
    "arabic": "٣".encode(),
    "superscript": "²".encode(),
    "minus": b"-1",
    "empty": b"",
    "2^63": b"%d" % 2**63,
    "20 digits": b"1" * 20,
    "900 digits": b"9" * 900,
    "hex": b"0x10",
    "point": b"1.0",
    "exponent": b"1e3",
    "tab": b"\t1",
    "carriage return": b"1\r",
    "NUL": b"1\0",
}
WITH_A_NUMBER = [
    b"READ app %b 1\r\n",
    b"READ app @%b 1\r\n",
    b"READ app 0 %b\r\n",
    b"READ app 0 1 bytes=%b\r\n",
    b"READ app 0 1 wait=%b\r\n",
    b"TAIL app %b\r\n",
    b"COMMIT app billing %b\r\n",
    b"PUSH app 2 count=%b\r\nx\n",
    b"PUSH app 2 id=p:%b\r\nx\n",
]


@pytest.mark.parametrize("word", BAD_NUMBERS.values(), ids=BAD_NUMBERS)
@pytest.mark.parametrize("command", WITH_A_NUMBER, ids=str)
def test_a_number_that_is_none_is_refused(command: bytes, word: bytes) -> None:
    data = command % word + b"PING\r\n"
    expected = [Err("bad-request"), Ping()]
    assert fed([data]) == expected
    assert fed(data[i : i + 1] for i in range(len(data))) == expected


BAD_TOPICS = {
    "up": b"../x",
    "absolute": b"/etc/x",
    "dot": b".",
    "two dots": b"..",
    "slash": b"a/b",
    "NUL": b"a\0b",
    "option": b"-rf",
    "underscore first": b"_a",
    "300 bytes": b"a" * 300,
    "129 bytes": b"a" * 129,
    "empty": b"",
    "not ASCII": "ä".encode(),
    "arabic digit": "٣".encode(),
    "inner return": b"a\rb",
    "tab": b"a\tb",
    "glob": b"a*",
    "colon": b"a:b",
}
WITH_A_TOPIC = [
    b"PUSH %b 2\r\nx\n",
    b"PUSH %b 2 enc=sized\r\n1\n",
    b"PUSH %b\r\none line\r\n",
    b"READ %b 0 1\r\n",
    b"TAIL %b 1\r\n",
    b"STATS %b\r\n",
    b"PARTITIONS %b\r\n",
    b"CURSOR %b\r\n",
    b"CURSOR %b billing\r\n",
    b"COMMIT %b billing 1\r\n",
]


@pytest.mark.parametrize("topic", BAD_TOPICS.values(), ids=BAD_TOPICS)
@pytest.mark.parametrize("command", WITH_A_TOPIC, ids=str)
def test_a_topic_that_is_none_is_refused(command: bytes, topic: bytes) -> None:
    assert parsed(command % topic + b"PING\r\n") == [Err("bad-topic"), Ping()]


@pytest.mark.parametrize("topic", [b"abc\n", b"abc\r", b"\nabc", b"abc\r\n", *BAD_TOPICS.values()])
def test_a_topic_is_checked_whole(topic: bytes) -> None:
    with pytest.raises(BadTopic):
        topic_name(topic)


REFUSED = [
    b"READ\r\n",
    b"READ app\r\n",
    b"READ app 0\r\n",
    b"READ app 0 0\r\n",
    b"READ app 0  1\r\n",
    b"READ app last 1\r\n",
    b"READ app FIRST 1\r\n",
    b"READ app 0 1 2\r\n",
    b"READ app 0 1 \r\n",
    b"READ app 0 1 limit=5\r\n",
    b"READ app 0 1 sum=0123456789abcdef\r\n",
    b"READ app 0 1 bytes\r\n",
    b"READ app 0 1 bytes=1 bytes=1\r\n",
    b"READ app 0 1 wait=1 wait=2\r\n",
    b"READ app 0 1 Bytes=1\r\n",
    b"READ app 0 1 =1\r\n",
    b"TAIL\r\n",
    b"TAIL app\r\n",
    b"TAIL app 0\r\n",
    b"TAIL app 1 wait=5\r\n",
    b"STATS a b\r\n",
    b"TOPICS a b\r\n",
    b"TOPICS ../*\r\n",
    b"TOPICS \r\n",
    b"PARTITIONS\r\n",
    b"PARTITIONS a b\r\n",
    b"CURSOR\r\n",
    b"CURSOR app \r\n",
    b"CURSOR app a b\r\n",
    b"CURSOR app a/b\r\n",
    b"CURSOR app %b\r\n" % (b"c" * 65),
    b"CURSOR app a\0\r\n",
    b"CURSOR app \xc3\xa4\r\n",
    b"COMMIT\r\n",
    b"COMMIT app\r\n",
    b"COMMIT app billing\r\n",
    b"COMMIT app billing 1 2\r\n",
    b"COMMIT app billing 1 \r\n",
    b"COMMIT app  1\r\n",
    b"COMMIT app a:b 1\r\n",
    b"COMMIT app %b 1\r\n" % (b"c" * 65),
    b"COMMIT app billing --\r\n",
    b"COMMIT app billing next\r\n",
    b"PING 1\r\n",
    b"PING \r\n",
    b"CONFIG all\r\n",
    b"HELP me\r\n",
    b"CLOSE now\r\n",
    b"PUSH app 0\r\n",
    b"PUSH app 0 enc=sized\r\n",
    b"PUSH app 5\r\nhello",
    b"PUSH app 5\r\nhe\nlo",
    b"PUSH app 2 3\r\nx\n",
    b"PUSH app 2 color=red\r\nx\n",
    b"PUSH app 2 wait=5\r\nx\n",
    b"PUSH app 2 enc\r\nx\n",
    b"PUSH app 2 enc=\r\nx\n",
    b"PUSH app 2 enc=gap\r\nx\n",
    b"PUSH app 2 enc=LINES\r\nx\n",
    b"PUSH app 2 enc=zstd\r\nx\n",
    b"PUSH app 2 enc=\xff\r\nx\n",
    b"PUSH app 2 enc=sized enc=sized\r\nx\n",
    b"PUSH app 2 count=1 enc=lines count=1\r\nx\n",
    b"PUSH app 2 sum=0123456789ABCDEF\r\nx\n",
    b"PUSH app 2 sum=0123456789abcde\r\nx\n",
    b"PUSH app 2 sum=0123456789abcdef0\r\nx\n",
    b"PUSH app 2 sum=\r\nx\n",
    b"PUSH app 2 id=p\r\nx\n",
    b"PUSH app 2 id=-\r\nx\n",
    b"PUSH app 2 id=:1\r\nx\n",
    b"PUSH app 2 id=p:\r\nx\n",
    b"PUSH app 2 id=p:1:2\r\nx\n",
    b"PUSH app 2 id=p/q:1\r\nx\n",
    b"PUSH app 2 id=%b:1\r\nx\n" % (b"p" * 65),
    b"PUSH app 2 id=p:1 id=p:1\r\nx\n",
]


@pytest.mark.parametrize("data", REFUSED, ids=str)
def test_a_refused_command_leaves_the_rest_in_step(data: bytes) -> None:
    assert parsed(data + b"PING\r\n") == [Err("bad-request"), Ping()]


def test_a_refused_body_is_dropped_even_if_it_looks_like_commands() -> None:
    body = b"PING\r\nCLOSE\r\n"
    data = b"PUSH ../x %d\r\n%bPUSH app 2\r\nx\n" % (len(body), body)
    assert parsed(data) == [Err("bad-topic"), Plain("app", b"x\n", 1)]


def test_the_line_behind_a_refused_one_line_push_is_dropped() -> None:
    assert parsed(b"PUSH ../x\r\nCLOSE\r\nPING\r\n") == [Err("bad-topic"), Ping()]


def test_one_bad_push_in_a_run_is_refused_alone() -> None:
    data = b"".join(b"PUSH a 2\r\n" + body for body in (b"1\n", b"no", b"3\n", b"\n\n", b"5\n"))
    assert parsed(data) == [
        Plain("a", b"1\n", 1),
        Err("bad-request"),
        Plain("a", b"3\n", 1),
        Plain("a", b"\n\n", 2),
        Plain("a", b"5\n", 1),
    ]


# -- what closes the connection -------------------------------------------------------------------

CLOSING = {
    "unknown": (b"FROB app\r\n", "unknown-command"),
    "empty line": (b"\r\n", "unknown-command"),
    "space first": (b" PING\r\n", "unknown-command"),
    "tab": (b"PING\t\r\n", "unknown-command"),
    "HTTP GET": (b"GET / HTTP/1.1\r\n", "unknown-command"),
    "HTTP POST": (b"POST /log HTTP/1.0\r\n", "unknown-command"),
    "HTTP with a verb of ours": (b"READ /app HTTP/1.1\r\n", "unknown-command"),
    "HTTP header": (b"Host: localhost\r\n", "unknown-command"),
    "HTTP header with a dash": (b"Content-Length: 5\r\n", "unknown-command"),
    "TLS": (b"\x16\x03\x01\x02\x00\n", "unknown-command"),
    "NUL": (b"\0\0\0\0\n", "unknown-command"),
    "length of 2^40": (b"PUSH app %d\r\n" % 2**40, "too-large"),
    "one too long": (b"PUSH app %d\r\n" % (MAX_BATCH_BYTES + 1), "too-large"),
    "one too long, with an option": (
        b"PUSH app %d enc=sized\r\n" % (MAX_BATCH_BYTES + 1),
        "too-large",
    ),
    "too long for a bad topic": (b"PUSH ../x %d\r\n" % 2**40, "too-large"),
    "largest number": (b"PUSH app %d\r\n" % LARGEST, "too-large"),
    "past the largest": (b"PUSH app %d\r\n" % (LARGEST + 1), "bad-request"),
    "19 nines": (b"PUSH app %d\r\n" % (10**19 - 1), "bad-request"),
    "PUSH alone": (b"PUSH\r\n", "bad-request"),
    "no length": (b"PUSH app \r\n", "bad-request"),
    "option for a length": (b"PUSH app enc=lines\r\n", "bad-request"),
    "two spaces": (b"PUSH app  6\r\n", "bad-request"),
    "long line": (b"STATS " + b"x" * 1019 + b"\r\n", "too-large"),
    "long line, LF": (b"STATS " + b"x" * 1019 + b"\n", "too-large"),
    "a number of 5,000 digits": (b"READ app " + b"9" * 5000 + b" 1\r\n", "too-large"),
    "a line without an end": (b"x" * 1100, "too-large"),
}
BEHIND = b"PUSH app 6\r\nhello\nPING\r\nPUSH app\r\nx\r\n"


@pytest.mark.parametrize(("data", "code"), CLOSING.values(), ids=CLOSING)
def test_what_closes_runs_nothing_behind_it(data: bytes, code: str) -> None:
    expected = [Ping(), Err(code, closes=True)]
    stream = b"PING\r\n" + data + BEHIND
    assert fed([stream]) == expected
    assert fed(stream[i : i + 1] for i in range(len(stream))) == expected
    for at in (*range(1, 40), *range(len(data), len(data) + 40)):
        assert fed([stream[:at], stream[at:]]) == expected


@pytest.mark.parametrize("word", BAD_NUMBERS.values(), ids=BAD_NUMBERS)
def test_a_push_whose_length_cannot_be_read_closes(word: bytes) -> None:
    for data in (b"PUSH app %b\r\n" % word, b"PUSH app %b enc=lines\r\n" % word):
        (refusal,) = fed([data + BEHIND])
        assert isinstance(refusal, Err)
        assert refusal.closes
        assert fed((data + BEHIND)[i : i + 1] for i in range(len(data + BEHIND))) == [refusal]


def test_a_closed_parser_swallows_everything() -> None:
    parser = new_parser()
    parser.feed(b"FROB\r\n")
    assert parser.closed
    assert parser.feed(b"PING\r\n" * 100) == []
    assert not parser.unfinished


def test_a_released_parser_swallows_everything() -> None:
    parser = new_parser()
    assert fed([b"PUSH app 6\r\nhello\n"], parser) == [Plain("app", b"hello\n", 1)]
    parser.release()
    assert parser.feed(b"PUSH app 6\r\nhello\n") == []


def test_the_longest_line_is_accepted_and_one_more_byte_is_not() -> None:
    words = b"READ app 0 1 bytes="
    for end in (b"\n", b"\r\n"):
        fits = words + b"0" * (1024 - len(words)) + end
        assert fed([fits]) == [Err("bad-request")]
        assert fed([fits[:1], fits[1:-1], fits[-1:]]) == [Err("bad-request")]
        over = words + b"0" * (1025 - len(words)) + end
        assert fed([over]) == [Err("too-large", closes=True)]
        assert fed([over[:1], over[1:-1], over[-1:]]) == [Err("too-large", closes=True)]


def test_the_longest_one_line_message_is_accepted_and_one_more_byte_is_not() -> None:
    most = 64 * 1024
    for end in (b"\n", b"\r\n"):
        for size, expected in (
            (most, [Plain("app", b"x" * most + b"\n", 1), Ping()]),
            (most + 1, [Err("too-large", closes=True)]),
            (most + 2, [Err("too-large", closes=True)]),
            (most + 3, [Err("too-large", closes=True)]),
        ):
            data = b"PUSH app\r\n" + b"x" * size + end + b"PING\r\n"
            assert fed([data]) == expected
            for at in range(len(data) - 12, len(data)):
                assert fed([data[:at], data[at:]]) == expected
            assert fed(data[i : i + 999] for i in range(0, len(data), 999)) == expected


# -- payloads -------------------------------------------------------------------------------------


def test_a_payload_that_holds_commands_stays_one_message() -> None:
    message = b"x\r\nPUSH app 2\r\nyy\r\nCLOSE\r\n"
    body = b"%d\n%b" % (len(message), message)
    data = b"PUSH app %d enc=sized\r\n%bPING\r\n" % (len(body), body)
    assert parsed(data) == [Push("app", body, "sized"), Ping()]


def test_a_payload_that_holds_a_forged_push_line_stays_one_message() -> None:
    body = b"PUSH app 12\r\n"
    data = b"PUSH app %d\r\n%b" % (len(body), body)
    assert parsed(data * 3) == [Plain("app", body, 1)] * 3


def test_equal_pushes_that_come_one_by_one() -> None:
    """Each just like the last: the shape that waiting clients send, and may be cut short for."""
    parser = new_parser()
    again = b"PUSH app 3\r\nab\n"
    assert fed([again] * 3, parser) == [Plain("app", b"ab\n", 1)] * 3
    assert fed([b"PUSH app 3\r\n\n\n\n"], parser) == [Plain("app", b"\n\n\n", 3)]
    assert fed([again], parser) == [Plain("app", b"ab\n", 1)]
    assert fed([b"PUSH app 3\r\nabc"], parser) == [Err("bad-request")]
    assert fed([again], parser) == [Plain("app", b"ab\n", 1)]
    refused = [Err("bad-request"), Err("unknown-command", closes=True)]
    assert fed([b"PUSH app 3\r\n", again], parser) == refused


def test_a_push_just_like_the_last_inside_a_dropped_body() -> None:
    again = b"PUSH app 3\r\nab\n"
    pieces = [again, b"PUSH ../x %d\r\n" % (2 * len(again)), again, again, again]
    assert fed(pieces) == [Plain("app", b"ab\n", 1), Err("bad-topic"), Plain("app", b"ab\n", 1)]


@pytest.mark.parametrize("size", [MAX_BATCH_BYTES + 1, 2 * MAX_BATCH_BYTES])
def test_a_push_that_is_too_large_is_the_last_however_it_comes(size: int) -> None:
    large = b"PUSH app %d\r\n%s\n" % (size, b"x" * (size - 1))
    assert parsed(large + b"PUSH app 2\r\n1\n") == [Err("too-large", closes=True)]


# -- pushes to several topics by turns ------------------------------------------------------------

A, B = b"PUSH a 2\r\n1\n", b"PUSH b 3\r\n22\n"
BY_TURNS: list[tuple[bytes, int]] = [
    (A + B, 2),
    (A + B + A + A + B, 5),
    (A + B + b"PUSH a 4\r\n333\n" + A, 4),  # another length for the same topic: still in order
    (A + B + b"PUSH c 4\r\nx\ny\n" + A, 4),  # two messages in one push
    (A + B + b"PUSH c 2\r\nxy" + B, 4),  # refused: no LF
    (A + b"PUSH c 2\r\nxy" + B + A, 4),
    (A + b"PUSH c 0\r\n" + B, 3),
    (A + b"PUSH c %d\r\n%s" % (MAX_BATCH_BYTES + 1, b"x" * MAX_BATCH_BYTES + b"\n") + B, 2),
    (A + b"PUSH c %d\r\n%s" % (MAX_BATCH_BYTES, b"x" * (MAX_BATCH_BYTES - 1) + b"\n") + B, 3),
    (A + b"PING\r\n" + B + A, 4),
    (A + b"PUSH b\r\none line\n" + B + A, 4),
    (A + b"PUSH b 3 enc=lines\r\n22\n" + B + A, 4),
]


@pytest.mark.parametrize(("data", "replies"), BY_TURNS)
def test_pushes_by_turns_are_the_same_one_by_one(data: bytes, replies: int) -> None:
    whole = parsed(data)  # at every split, and so with each command by itself
    assert len(whole) == replies
    assert fed(data[i : i + 1] for i in range(len(data))) == whole


def test_pushes_by_turns_are_one_request() -> None:
    (mixed,) = new_parser().feed((A + B) * 50)
    assert isinstance(mixed, Mixed)
    assert mixed.runs == {"a": [b"1\n"] * 50, "b": [b"22\n"] * 50}
    assert mixed.turns == b"\0\1" * 50


def test_what_comes_by_turns_is_at_most_a_batch() -> None:
    requests = new_parser().feed((A + B) * 20_000)
    assert all(isinstance(request, Mixed) for request in requests)
    sizes = [sum(map(len, run)) for mixed in requests for run in cast(Mixed, mixed).runs.values()]
    assert max(sizes) <= JOIN_BYTES
    assert sum(sizes) == 5 * 20_000
