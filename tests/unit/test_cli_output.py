"""The pure parts of the tool: times, templates, JSON, lines, tables, exit codes."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli import write
from cli.arguments import input_lines
from cli.arguments.times import parse_since
from cli.exit_codes import UsageError, explain
from cli.output.message_formats import OutputFormat, renderer
from cli.output.stdout import table
from logd.errors import BadTopic, Busy, DamagedBatch, Faulted, NotFound, OutOfRange
from logd.wire.addresses import ConnectionLost
from logd.wire.read_state import Batch
from logd.wire.text import iso_time

NOW_MS = 1_800_000_000_000
BATCH = Batch(7, 1_700_000_000_123, [b"hello", b"\xff\n", "grüß".encode()])


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("10m", NOW_MS - 600_000),
        ("1h30m", NOW_MS - 5_400_000),
        ("250ms", NOW_MS - 250),
        ("2w", NOW_MS - 1_209_600_000),
        ("1d", NOW_MS - 86_400_000),
        ("0s", NOW_MS),
        ("999999999w", 0),
        ("@1234", 1234),
        ("2026-01-31T12:00:00Z", 1_769_860_800_000),
        ("2026-01-31T12:00:00.250+02:00", 1_769_853_600_250),
        ("1960-01-01T00:00:00Z", 0),
    ],
)
def test_times(text: str, time_ms: int) -> None:
    assert parse_since(text, NOW_MS) == time_ms


@pytest.mark.parametrize(
    "text", ["", "10", "10x", "m", "-5m", "@", "@x", "@-1", "yesterday", "٣m", "5m\n", "1e3s"]
)
def test_no_times(text: str) -> None:
    with pytest.raises(UsageError, match="use 10m"):
        parse_since(text, NOW_MS)


def test_a_time_without_a_zone_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    # In a process of its own, whose zone is not this machine's.
    code = (
        "from cli.arguments.times import parse_since; print(parse_since('2026-01-31T12:00:00', 0))"
    )
    monkeypatch.setenv("TZ", "XXX-2")
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert int(printed) == 1_769_853_600_000


@given(st.integers(0, 253_402_300_799_999))
def test_a_printed_time_can_be_given_back(time_ms: int) -> None:
    assert parse_since(iso_time(time_ms), NOW_MS) == time_ms


def test_a_time_beyond_the_calendar() -> None:
    assert iso_time(2**63 - 1) == f"@{2**63 - 1}"


def test_text_is_each_message_and_a_line_end() -> None:
    assert renderer("app", OutputFormat.text, None)(BATCH) == b"hello\n\xff\n\n" + "grüß\n".encode()


def test_raw_is_the_bytes_and_nothing_else() -> None:
    assert renderer("app", OutputFormat.raw, None)(BATCH) == b"hello\xff\n" + "grüß".encode()


def test_json_is_an_object_per_line() -> None:
    lines = renderer("app", OutputFormat.json, None)(BATCH).splitlines()
    same = {"topic": "app", "time": "2023-11-14T22:13:20.123Z"}
    assert [json.loads(line) for line in lines] == [
        same | {"offset": 7, "message": "hello"},
        same | {"offset": 8, "message_base64": "/wo="},
        same | {"offset": 9, "message": "grüß"},
    ]


@given(st.lists(st.binary(), min_size=1))
def test_json_has_one_line_per_message_whatever_it_holds(messages: list[bytes]) -> None:
    lines = renderer("app", OutputFormat.json, None)(Batch(0, 0, messages)).split(b"\n")
    assert len(lines) == len(messages) + 1
    for line, message in zip(lines, messages, strict=False):
        if "message" in (fields := json.loads(line)):
            assert fields["message"].encode() == message


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("{offset} {time} {message}", b"7 2023-11-14T22:13:20.123Z hello"),
        ("{topic}\\t{time_ms}\\n", b"app\t1700000000123\n"),
        ("{{{message}}}", b"{hello}"),
        ("a\\\\n{offset}", b"a\\n7"),
        ("plain", b"plain"),
        ("ü{message}", "ühello".encode()),
    ],
)
def test_templates(template: str, line: bytes) -> None:
    assert (
        renderer("app", OutputFormat.text, template)(BATCH._replace(messages=[b"hello"]))
        == line + b"\n"
    )


def test_a_template_takes_any_bytes() -> None:
    assert renderer("app", OutputFormat.text, "{offset}:{message}")(BATCH).startswith(
        b"7:hello\n8:\xff\n\n"
    )


@pytest.mark.parametrize(
    "template", ["{", "}", "{nope}", "{}", "{0}", "{offset:>5}", "{message!r}", "{message.x}"]
)
def test_no_templates(template: str) -> None:
    with pytest.raises(UsageError, match="--format"):
        renderer("app", OutputFormat.text, template)


def test_a_table_is_aligned() -> None:
    lines = table([("TOPIC", "NEXT"), ("a", 12345), ("longer", 7)])
    assert [*lines] == ["TOPIC    NEXT", "a       12345", "longer      7"]


class Trickle(io.BytesIO):
    """Gives a few bytes at a time, as a pipe may."""

    def __init__(self, data: bytes, size: int) -> None:
        super().__init__(data)
        self._size = size

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self._size)


BYTES = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r"])).map(b"".join)


@given(data=BYTES, size=st.integers(1, 9))
def test_lines_are_the_same_however_they_arrive(data: bytes, size: int) -> None:
    source: BinaryIO = Trickle(data, size)
    found = [line for cut, _ in input_lines.split_lines(source) for line in cut]
    expected = data.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    assert found == expected


@pytest.mark.parametrize(
    ("count", "first", "next_", "says"),
    [
        (3, 0, 3, "app 0..2 (3 messages)"),
        (1, 5, 6, "app 5..5 (1 message)"),
        (3, 0, 9, "app 0..8 (3 messages, mixed with messages of other clients)"),
        (0, None, None, "app: no messages"),
    ],
)
def test_where_messages_landed(count: int, first: int | None, next_: int | None, says: str) -> None:
    assert write.stored_text("app", count, first, next_) == says


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (UsageError("give one"), 1, "give one"),
        (ConnectionLost("no logd answers"), 1, "no logd answers"),
        (FileNotFoundError(2, "No such file"), 1, "No such file"),
        (NotFound("no topic app"), 2, "log-cli topics"),
        (BadTopic("a topic is"), 2, "a topic is"),
        (Busy("later"), 2, "retry"),
        (OutOfRange("first=1 next=2"), 3, "first=1 next=2.*--or-first"),
        (Faulted("first=1 next=2"), 3, "damaged"),
        (DamagedBatch("a body"), 3, "a body"),
    ],
)
def test_exit_codes(error: Exception, code: int, says: str) -> None:
    explained = explain(error)
    assert explained is not None
    assert explained[0] == code
    assert re.search(says, explained[1])


def test_a_bug_keeps_its_traceback() -> None:
    assert explain(KeyError("oops")) is None


def test_help_does_not_load_the_client() -> None:
    code = (
        "import sys, cli.__main__; print({'logd.client.client', 'xxhash', 'rich'} & {*sys.modules})"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert printed.strip() == b"set()"


def test_the_client_loads_neither_asyncio_nor_typer() -> None:
    code = "import sys, logd; print([m for m in ('asyncio', 'typer') if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert printed.strip() == b"[]"
