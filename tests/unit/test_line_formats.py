"""Lines to JSON objects: what each form finds, and that nothing is ever lost."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logd.forward.line_formats import MAX_MESSAGE_BYTES, LineFormat, message, renderer

NOW = datetime(2026, 11, 16, 12, 0, 0, tzinfo=UTC)


@pytest.fixture(autouse=True, scope="module")
def _in_utc() -> Iterator[None]:
    """RFC 3164 has local times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def parsed(form: str, line: bytes, **fields: str) -> dict[str, Any]:
    render = renderer(LineFormat(form), fields, now=lambda: NOW)
    assert render is not None
    found: dict[str, Any] = json.loads(render(line, "/var/log/app.log"))
    return found


LINES: dict[str, tuple[str, bytes, dict[str, Any]]] = {
    "rfc 5424": (
        "syslog",
        b'<165>1 2026-08-24T05:14:15.000003-07:00 host.example app 8710 ID47 [ex@1 a="1" b="\\"]"]'
        b" \xef\xbb\xbfhello \xc3\xa9",
        {
            "time": "2026-08-24T12:14:15.000003Z",
            "severity": "notice",
            "facility": "local4",
            "host": "host.example",
            "application": "app",
            "pid": "8710",
            "message_id": "ID47",
            "data": {"ex@1": {"a": "1", "b": '"]'}},
            "message": "hello é",
        },
    ),
    "rfc 5424, nothing known": (
        "syslog",
        b"<14>1 - - - - - -",
        {"severity": "info", "facility": "user"},
    ),
    "rfc 3164": (
        "syslog",
        b"<34>Oct 11 22:14:15 mymachine su[12]: 'su root' failed",
        {
            "time": "2026-10-11T22:14:15Z",
            "severity": "crit",
            "facility": "auth",
            "host": "mymachine",
            "application": "su",
            "pid": "12",
            "message": "'su root' failed",
        },
    ),
    "rfc 3164 in a file, last year": (
        "syslog",
        b"Dec  1 00:00:01 box cron: x",
        {"time": "2025-12-01T00:00:01Z", "host": "box", "application": "cron", "message": "x"},
    ),
    "rfc 3164, a leap day": (
        "syslog",
        b"Feb 29 00:00:01 box a: x",
        {"time": "2024-02-29T00:00:01Z", "host": "box", "application": "a", "message": "x"},
    ),
    "rsyslog's file format": (
        "syslog",
        b"2026-11-16T01:02:03.5+01:00 box sshd[9]: hi: there",
        {
            "time": "2026-11-16T00:02:03.500000Z",
            "host": "box",
            "application": "sshd",
            "pid": "9",
            "message": "hi: there",
        },
    ),
    "common": (
        "common",
        b'127.0.0.1 - frank [10/Oct/2026:13:55:36 -0700] "GET /a.gif HTTP/1.0" 200 2326',
        {
            "time": "2026-10-10T20:55:36Z",
            "host": "127.0.0.1",
            "user": "frank",
            "request": "GET /a.gif HTTP/1.0",
            "status": 200,
            "bytes": 2326,
            "method": "GET",
            "target": "/a.gif",
            "protocol": "HTTP/1.0",
            "message": "GET /a.gif HTTP/1.0",
        },
    ),
    "combined": (
        "combined",
        b'::1 - - [10/Oct/2026:13:55:36 +0000] "\\x16\\x03" 400 - "-" "a \\"b\\""',
        {
            "time": "2026-10-10T13:55:36Z",
            "host": "::1",
            "request": "\\x16\\x03",
            "status": 400,
            "agent": 'a \\"b\\"',
            "message": "\\x16\\x03",
        },
    ),
    "json": ("json", b'{"a": [1, {"b": null}], "line": 5}', {"a": [1, {"b": None}]}),
    "json that is no object": ("json", b"[1]", {}),
    "json that is none": ("json", b'{"a": NaN}', {}),
    "a number beyond all numbers": ("json", b'{"a": 1e999}', {}),
    "half a surrogate pair": ("json", b'{"a": "\\ud800"}', {"a": "\ud800"}),
    "no syslog": ("syslog", b"hello", {}),
    "no such month": ("syslog", b"Foo 11 22:14:15 mymachine su: x", {}),
    "no common": ("common", b"hello", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_what_a_form_finds(name: str) -> None:
    form, line, fields = LINES[name]
    assert parsed(form, line) == {**fields, "line": line.decode()}


def test_fields_and_the_path_are_added() -> None:
    assert parsed("none", b"hi", site="berlin") == {"site": "berlin", "line": "hi"}
    render = renderer(LineFormat.none, {"site": "berlin"}, add_path=True)
    assert render is not None
    assert json.loads(render(b"hi", "/x\udcff")) == {
        "path": "/x\\udcff",
        "site": "berlin",
        "line": "hi",
    }


def test_without_a_form_and_fields_the_message_is_the_line() -> None:
    assert renderer(LineFormat.none, {}) is None


def test_bytes_that_are_not_utf8_are_in_base64() -> None:
    assert parsed("json", b"\xff\x00") == {"line64": "/wA="}


def test_an_object_that_would_be_enormous_has_the_line_alone() -> None:
    line = b"\x01" * 1_000_000
    whole = message(line, {"a": line.decode()})
    assert len(whole) < MAX_MESSAGE_BYTES
    assert b64decode(json.loads(whole)["line64"]) == line


PIECES = st.sampled_from(
    [
        b"<34>", b"<999>1 ", b"Oct 11 22:14:15 ", b"2026-11-16T01:02:03Z ", b'[a b="', b"- - ",
        b"{", b'"a":', b"[" * 2000, b"host app[1]: ", b'"GET / HTTP/1.1" 200 1',
        b"[10/Oct/2026:13:55:36 -0700] ", b"\xff", b"\r", b"9" * 5000, b"Feb 31 99:99:99 ",
    ]
)  # fmt: skip
ANY = st.one_of(st.binary(), st.lists(st.one_of(PIECES, st.binary(max_size=8))).map(b"".join))


@given(st.sampled_from([*LineFormat]), ANY)
def test_any_bytes_give_an_object_that_has_the_line(form: LineFormat, line: bytes) -> None:
    render = renderer(form, {"x": "y"}, now=lambda: NOW)
    assert render is not None
    whole = render(line, "path")
    assert b"\n" not in whole
    found = json.loads(whole)
    kept = found["line"].encode() if "line" in found else b64decode(found["line64"])
    assert kept == line
