"""Control characters of messages and of the daemon's replies do not reach a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from logd import Client
from tests.support.daemon import Daemon, running
from tests.support.log_cli import answering, log_cli, on_terminal

CLEAR = "\x1b[2J\x1b]0;title\x07"
HOSTILE = [
    f"a{CLEAR}b".encode(),
    "c\x9b2Jd \u202eover".encode(),  # C1 and a bidi override, as UTF-8
    b"e\x9b2Jf\xff",  # C1 as a byte
    b"g\rh\x00i\x7fj\ttab",
    "grüß \U0001f600\r".encode(),
]
SHOWN = [
    r"a\u001b[2J\u001b]0;title\u0007b",
    r"c\u009b2Jd \u202eover",
    r"e\x9b2Jf\xff",
    "g\\u000dh\\u0000i\\u007fj\ttab",
    "grüß \U0001f600\r",  # a CR at the end of a line is a line end
]
DANGEROUS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("hostile")) as daemon:
        with Client(daemon.address) as client:
            client.push("app", HOSTILE)
        yield daemon


@pytest.mark.parametrize(
    "words",
    [
        ["read", "app"],
        ["read", "app", "--format", "{message}"],
        ["read", "app", "--cursor", "me"],
        ["read", "app", "--forever", "--limit", "5"],
        ["tail", "app"],
        ["read", "ap*", "--format", "{message}"],
    ],
    ids=" ".join,
)
def test_messages_on_a_terminal(hostile: Daemon, words: list[str]) -> None:
    assert on_terminal(hostile, *words) == "".join(f"{line}\r\n" for line in SHOWN)


def test_json_on_a_terminal_is_json_without_control_characters(hostile: Daemon) -> None:
    text = on_terminal(hostile, "read", "app", "-o", "json")
    assert not DANGEROUS.search(text)
    messages = [json.loads(line).get("message", "").encode() for line in text.splitlines()]
    assert messages == [HOSTILE[0], HOSTILE[1], b"", HOSTILE[3], HOSTILE[4]]


def test_in_a_pipe_and_as_raw_they_are_what_they_are(hostile: Daemon) -> None:
    assert log_cli(hostile, "read", "app")[1] == b"".join(m + b"\n" for m in HOSTILE)
    assert log_cli(hostile, "read", "app", "-o", "raw")[1] == b"".join(HOSTILE)
    words = ["read", "app", "-o", "raw", "--limit", "1"]
    assert on_terminal(hostile, *words) == f"a{CLEAR}b"


ROW = f"app{CLEAR} 0 1 2 3\r\n".encode()
COUNTER = f"version: 1{CLEAR}\r\n".encode()


@pytest.mark.parametrize(
    ("words", "reply"),
    [
        (["ping"], f"ERR not-found no{CLEAR}\r\n".encode()),
        (["stats"], f"ERR no{CLEAR} such\r\n".encode()),
        (["stats"], b"TEXT %d\r\n%s" % (len(COUNTER), COUNTER)),
        (["topics"], b"TEXT %d\r\n%s" % (len(ROW), ROW)),
        (["ping"], f"{CLEAR}\r\n".encode()),
    ],
    ids=str,
)
def test_what_a_daemon_answers_on_a_terminal(words: list[str], reply: bytes) -> None:
    with answering(reply) as address:
        text = on_terminal(address, *words, stderr_too=True)
    assert text
    assert not DANGEROUS.search(text)
