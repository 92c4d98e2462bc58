"""Entries of the journal: the same however the bytes were cut, and within limits."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from logd.batch import split_body
from logd.errors import BadRequest, TooLarge
from logd.web.batch_builder import PushBody
from logd.web.journal_upload import MAX_ENTRY_BYTES, MAX_FIELDS, ExportParser


def binary(name: bytes, value: bytes) -> bytes:
    return name + b"\n" + len(value).to_bytes(8, "little") + value + b"\n"


STREAM = (
    b"__CURSOR=s=1;i=2\n__REALTIME_TIMESTAMP=1767225600000000\nMESSAGE=hello = world\n\n"
    b"\n" + binary(b"MESSAGE", b"two\nlines\n") + binary(b"DATA", b"\xff\n\0") + b"A=1\nA=2\n\n"
    b"MESSAGE=" + "é".encode() + b"\nEMPTY=\n\n"
)
EXPECTED = [
    {
        "__CURSOR": "s=1;i=2",
        "__REALTIME_TIMESTAMP": "1767225600000000",
        "MESSAGE": "hello = world",
    },
    {"MESSAGE": "two\nlines\n", "DATA_base64": "/woA", "A": ["1", "2"]},
    {"MESSAGE": "é", "EMPTY": ""},
]


def values(*packed: PushBody) -> list[Any]:
    return [
        json.loads(message)
        for one in packed
        if one.messages
        for message in split_body(one.data, one.enc)
    ]


def feed(entries: ExportParser, body: bytes, size: int) -> list[PushBody]:
    return [entries.feed(body[at : at + size]) for at in range(0, len(body), size)]


def test_an_entry_is_json_with_its_fields() -> None:
    entries = ExportParser()
    assert values(entries.feed(STREAM), entries.finish()) == EXPECTED
    assert base64.b64decode("/woA") == b"\xff\n\0"


def test_the_entries_do_not_depend_on_the_pieces() -> None:
    for cut in range(len(STREAM)):
        entries = ExportParser()
        packed = [entries.feed(STREAM[:cut]), entries.feed(STREAM[cut:]), entries.finish()]
        assert values(*packed) == EXPECTED
    entries = ExportParser()
    single = [entries.feed(STREAM[at : at + 1]) for at in range(len(STREAM))]
    assert values(*single, entries.finish()) == EXPECTED
    assert entries.held_bytes == 0


def test_the_last_entry_may_lack_its_empty_line() -> None:
    entries = ExportParser()
    assert values(entries.feed(b"A=1\n"), entries.finish()) == [{"A": "1"}]


@pytest.mark.parametrize("rest", [b"A", b"A=1", b"A\n\1", binary(b"A", b"x")[:-1]])
def test_half_an_entry_is_refused(rest: bytes) -> None:
    entries = ExportParser()
    entries.feed(rest)
    with pytest.raises(BadRequest, match="in the middle of an entry"):
        entries.finish()


@pytest.mark.parametrize(
    "body", [b"no name=1\n", b"=1\n", b"N" * 65 + b"=1\n", b"{}=\n", b"A\n" + bytes(8) + b"x\n"]
)
def test_what_is_not_the_export_format_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest, match="journalctl -o export"):
        ExportParser().feed(body)


TOO_LARGE = {
    "a value": binary(b"A", bytes(MAX_ENTRY_BYTES + 1)),
    "a size": b"A\n" + b"\xff" * 8,
    "a line": b"A=" + b"x" * MAX_ENTRY_BYTES,
    "values": (b"A=" + b"x" * 1000 + b"\n") * 1024 + b"A" * 64 * 1024,
    "fields": b"A=\n" * (MAX_FIELDS + 1),
}


@pytest.mark.parametrize("body", TOO_LARGE.values(), ids=TOO_LARGE)
@pytest.mark.parametrize("size", [1 << 16, 1 << 30])
def test_an_entry_past_the_limits_is_refused(body: bytes, size: int) -> None:
    with pytest.raises(TooLarge):
        feed(ExportParser(), body, size)


def test_an_entry_of_the_largest_size_is_taken() -> None:
    entries = ExportParser()
    for value in (b"\x01", b"\xff"):
        body = binary(b"A", value * (MAX_ENTRY_BYTES - 100)) + b"\n"
        assert len(values(*feed(entries, body, 65536))) == 1
