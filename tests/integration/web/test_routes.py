"""The routes of logd itself, with curl: bodies, queries, events.

The answers to single requests are in tests/integration/compatibility.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import time
from typing import Any

import pytest

from logd import Client
from tests.integration.web.conftest import Curl
from tests.support.daemon import Daemon, wait_until

NDJSON = ("-H", "Content-Type: application/x-ndjson")
JSON = ("-H", "Content-Type: application/json")
FORM = ("-H", "Content-Type: application/x-www-form-urlencoded")


def push(daemon: Daemon, topic: str, *messages: bytes) -> None:
    with Client(daemon.address) as client:
        client.push(topic, messages)


# -- pushing ------------------------------------------------------------------------------------

BODIES: dict[str, tuple[tuple[str, ...], bytes, list[bytes]]] = {
    "lines": ((), b"one\ntwo\n", [b"one", b"two"]),
    "a last line without its end": ((), b"one\ntwo", [b"one", b"two"]),
    "lines of another system": ((), b"one\r\ntwo\r\n", [b"one", b"two"]),
    "empty lines": ((), b"\n\n", [b"", b""]),
    "any bytes": ((), b"\xff\x00\n", [b"\xff\x00"]),
    "NDJSON": (NDJSON, b'{"a": 1}\n\n{"b":2}\n', [b'{"a": 1}', b'{"b":2}']),
    "an array": (JSON, b'[1, {"b": [2]}, "three\\n3"]', [b"1", b'{"b": [2]}', b"three\n3"]),
    "an array with a charset": (
        ("-H", "Content-Type: application/json; charset=utf-8"),
        b'["\xc3\xa9"]',
        ["é".encode()],
    ),
    "one object": (JSON, b'{"a": 1}', [b'{"a": 1}']),
    "one object with spaces around it": (JSON, b' \r\n{"a":\n [1]}\n', [b'{"a":\n [1]}']),
    "one number": (JSON, b"1", [b"1"]),
    "one string": (JSON, b'"three\\n3"', [b"three\n3"]),
    "null": (JSON, b"null", [b"null"]),
    "an object of another JSON type": (
        ("-H", "Content-Type: application/cloudevents+json; charset=utf-8"),
        b'{\n"id": 1}',
        [b'{\n"id": 1}'],
    ),
    "a form": (FORM, b"name=app&msg=one%0Atwo&a=b+c", [b"name=app&msg=one%0Atwo&a=b+c"]),
    "text that curl -d sends": (FORM, b"hello", [b"hello"]),
    "gzip": (("-H", "Content-Encoding: gzip"), gzip.compress(b"one\ntwo\n"), [b"one", b"two"]),
}


@pytest.mark.parametrize(("options", "body", "messages"), BODIES.values(), ids=BODIES)
def test_messages_in_many_forms(
    curl: Curl, daemon: Daemon, options: tuple[str, ...], body: bytes, messages: list[bytes]
) -> None:
    answer = curl("/topics/app", *options, body=body)
    assert (answer.status, answer.json()) == (200, {"offset": 0, "messages": len(messages)})
    with Client(daemon.address) as client:
        assert client.stats("app")["next"] == str(len(messages))
    raw = curl("/topics/app/messages?format=ndjson").lines()
    shown = [one["message"].encode() for one in raw if "message" in one]
    assert shown == [message for message in messages if b"\xff" not in message]


REFUSED: dict[str, tuple[tuple[str, ...], bytes, int, str]] = {
    "nothing": ((), b"", 400, "bad-request"),
    "no JSON": (NDJSON, b'{"a": 1}\n{"b":\n', 400, "bad-request"),
    "an empty array": (JSON, b"[]", 400, "bad-request"),
    "an empty JSON body": (JSON, b" ", 400, "bad-request"),
    "half an object": (JSON, b'{"a": 1', 400, "bad-request"),
    "two objects": (JSON, b'{"a": 1} {"b": 2}', 400, "bad-request"),
    "no gzip": (("-H", "Content-Encoding: gzip"), b"plain", 400, "bad-request"),
    "half a gzip": (
        ("-H", "Content-Encoding: gzip"), gzip.compress(b"a\n" * 99)[:-9], 400, "bad-request",
    ),
    "something unknown": (("-H", "Content-Encoding: br"), b"x", 400, "bad-request"),
    "too much": ((), b"x" * 9_000_000, 413, "too-large"),
}  # fmt: skip


def test_a_refused_push_stores_nothing(curl: Curl) -> None:
    for name, (options, body, status, code) in REFUSED.items():
        answer = curl("/topics/app", *options, body=body)
        assert (answer.status, answer.json()["error"]) == (status, code), name
    assert curl("/topics").json() == []


def test_a_log_record_in_a_query_string_is_refused(curl: Curl) -> None:
    """Python's HTTPHandler sends GET by default: a 200 would hide that nothing is stored."""
    curl("/topics/app", body=b"one\n")
    for topic in ("app", "missing"):
        answer = curl(f"/topics/{topic}?name=app&msg=lost&levelname=INFO")
        assert (answer.status, answer.json()["error"]) == (400, "bad-request")
        assert 'method="POST"' in answer.json()["text"]
    assert curl("/topics/app").json()["next"] == 1


def test_the_name_of_a_topic_is_text_in_json(curl: Curl, daemon: Daemon) -> None:
    curl("/topics/007", body=b"one\n")
    with Client(daemon.address) as client:
        client.commit("007", "me", 1)
    told = curl("/topics/007").json()
    assert (told["topic"], told["next"], told["hook_running"]) == ("007", 1, "-")
    assert isinstance(told["id"], str)
    assert told["cursor.me"] == "1 lag=0"
    assert [one["topic"] for one in curl("/topics").json()] == ["007"]
    assert isinstance(curl("/stats").json()["version"], str)


MISSING = {
    "GET": ["/nope", "/topics/app/nope", "/loki", "/page/", "/api/v1/x"],
    "POST": ["/nope", "/loki/api/v1/query"],
    "DELETE": ["/nope"],
}


def test_unknown_paths(empty: Daemon) -> None:
    for method, paths in MISSING.items():
        for path in paths:
            answer = Curl(empty)(path, "-X", method)
            assert (answer.status, answer.headers["content-type"]) == (404, "application/json")
            assert answer.json()["error"] == "not-found"
            assert "docs/http.md" in answer.json()["text"]


NOT_ALLOWED = [
    ("GET", "/_bulk", "POST, PUT"),
    ("GET", "/loki/api/v1/push", "POST"),
    ("GET", "/log", "POST"),
    ("PUT", "/topics/app", "GET, HEAD, POST"),
    ("DELETE", "/topics/app", "GET, HEAD, POST"),
    ("POST", "/topics/app/messages", "GET, HEAD"),
    ("POST", "/", "GET, HEAD"),
]


def test_unsupported_methods(empty: Daemon) -> None:
    curl = Curl(empty)
    for method, path, allowed in NOT_ALLOWED:
        answer = curl(path, "-X", method)
        assert (answer.status, answer.headers["content-type"]) == (405, "application/json")
        assert answer.headers["allow"] == allowed
        assert answer.json()["error"] == "bad-request"
        assert allowed in answer.json()["text"]
    assert curl("/log", "--head").headers["allow"] == "POST"


# -- reading ------------------------------------------------------------------------------------


def offsets(curl: Curl, query: str) -> list[int]:
    answer = curl(f"/topics/app/messages?format=ndjson&{query}")
    assert answer.status == 200, answer.body
    return [one["offset"] for one in answer.lines()]


def test_by_time(curl: Curl, daemon: Daemon) -> None:
    push(daemon, "app", b"old")
    with Client(daemon.address) as client:
        old_ms = client.partitions("app")[0].max_time_ms
        while client.partitions("app")[0].max_time_ms == old_ms:
            client.push("app", [b"new"])
        new_ms = client.partitions("app")[0].max_time_ms
    assert offsets(curl, f"since=@{new_ms}")[0] > 0
    iso = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(new_ms // 1000)) + f".{new_ms % 1000:03d}Z"
    assert offsets(curl, f"since={iso}") == offsets(curl, f"since={new_ms}")
    assert max(offsets(curl, f"until=@{new_ms}")) < min(offsets(curl, f"since=@{new_ms}"))
    assert offsets(curl, "since=2100-01-01") == []


BAD_QUERIES = [
    "from=x", "from=-1", "from=1_0", "from=1&since=1", "limit=x", "limit=-1", "until=x", "since=x",
    "grep=(", "grep=" + "a" * 1001, "format=xml", "frm=1", "from=%D9%A3", "limit=" + "9" * 5000,
]  # fmt: skip


def test_invalid_queries(curl: Curl, daemon: Daemon) -> None:
    push(daemon, "app", b"x")
    for query in BAD_QUERIES:
        answer = curl(f"/topics/app/messages?{query}")
        assert (answer.status, answer.json()["error"]) == (400, "bad-request"), query
        assert answer.json()["text"]


def test_a_pattern_that_would_take_for_ever_elsewhere(curl: Curl, daemon: Daemon) -> None:
    push(daemon, "app", b"a" * 100_000 + b"b")
    assert offsets(curl, "grep=(a%2B)%2B$") == []


def test_a_long_scan_says_how_far_it_is(curl: Curl, daemon: Daemon) -> None:
    with Client(daemon.address) as client:
        for n in range(300):
            client.push("app", [b"%d " % n + b"x" * 200] * 1000)
    lines = curl("/topics/app/messages?format=ndjson&grep=^299%20&progress=1&limit=5").lines()
    told = [line["progress"] for line in lines if "progress" in line]
    assert all(one["next"] == 300_000 for one in told)
    assert [one["offset"] for one in told] == sorted(one["offset"] for one in told)
    assert [line["offset"] for line in lines if "progress" not in line] == list(
        range(299_000, 299_005)
    )


# -- following ----------------------------------------------------------------------------------


def events(process: subprocess.Popen[bytes], count: int) -> list[tuple[int, Any]]:
    """So many events: the id and the data of each."""
    assert process.stdout is not None
    found: list[tuple[int, Any]] = []
    id_ = -1
    while len(found) < count:
        line = process.stdout.readline()
        assert line, "the stream ended"
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "id":
            id_ = int(value)
        elif name == "data":
            found.append((id_, json.loads(value)))
    return found


def test_events(curl: Curl, daemon: Daemon) -> None:
    push(daemon, "app", b"zero", b"one", b"two")
    with subprocess.Popen(curl.command("/topics/app/follow?from=1", "-N"), stdout=-1) as process:
        got = events(process, 2)
        push(daemon, "app", b"three")
        got += events(process, 1)
        process.terminate()
    assert [(id_, data["message"]) for id_, data in got] == [(1, "one"), (2, "two"), (3, "three")]
    again = curl.command("/topics/app/follow?grep=t", "-N", "-H", "Last-Event-ID: 1")
    with subprocess.Popen(again, stdout=-1) as process:
        assert [id_ for id_, _ in events(process, 2)] == [2, 3]
        process.terminate()
    with Client(daemon.address) as client:
        wait_until(lambda: client.stats("app")["waiting_reads"] == "0")


def test_events_up_to_an_offset_or_a_time(curl: Curl, daemon: Daemon) -> None:
    push(daemon, "app", b"zero", b"one")
    with Client(daemon.address) as client:
        old_ms = client.partitions("app")[0].max_time_ms
        while time.time_ns() // 1_000_000 <= old_ms:
            pass
        client.push("app", [b"new"])
    for until in ("2", f"@{old_ms + 1}"):
        got = curl(f"/topics/app/follow?from=first&until={until}").body.splitlines()
        assert [line for line in got if line.startswith(b"id")] == [b"id: 0", b"id: 1"]


def test_events_begin_at_the_end(curl: Curl, daemon: Daemon) -> None:
    push(daemon, "app", b"old")
    with (
        subprocess.Popen(curl.command("/topics/app/follow", "-N"), stdout=-1) as process,
        Client(daemon.address) as client,
    ):
        wait_until(lambda: client.stats("app")["waiting_reads"] == "1")
        client.push("app", [b"new"])
        assert [(id_, one["message"]) for id_, one in events(process, 1)] == [(1, "new")]
        process.terminate()


# -- looking ------------------------------------------------------------------------------------


def test_only_the_own_page_may_send_requests(empty: Daemon) -> None:
    answer = Curl(empty)("/topics", "-H", f"Origin: http://{empty.http}")
    assert answer.status == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert "default-src 'none'" in answer.headers["content-security-policy"]
