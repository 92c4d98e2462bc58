"""The register on etcd with peers that fail: what may be concluded from each failure.

A read that fails may be repeated on the next endpoint. A compare-and-set that was sent is never
sent again, unless etcd said that it refused it.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from logd.cluster.etcd import EtcdRegister
from logd.cluster.register import ClusterState, Register, Versioned
from logd.errors import BadRequest, InvalidState, LogdError, OutcomeUnknown, RegisterUnavailable
from tests.support.daemon import HANG_S
from tests.support.listener import nobody
from tests.unit.fake_etcd import (
    Answer,
    FakeEtcd,
    closes,
    drips,
    error,
    floods,
    hangs,
    header,
    reply,
)

STATE = ClusterState(7, "b", ("a", "b"), 2)
SHORT_S = 0.5  # for a peer that does not answer
KEY = base64.b64encode(b"/logd/test/state").decode()
VALUE = base64.b64encode(STATE.encode()).decode()


def kv(revision: int = 5, key: str = KEY, value: str = VALUE) -> dict[str, str]:
    return {"key": key, "mod_revision": str(revision), "version": "1", "value": value}


def found(*kvs: dict[str, str]) -> dict[str, Any]:
    return {"header": header(), "kvs": list(kvs), "count": str(len(kvs))} if kvs else NO_KEY


NO_KEY = {"header": header()}
FOUND = reply(found(kv()))
WRITTEN = reply(
    {
        "header": header(6),
        "succeeded": True,
        "responses": [{"response_put": {"header": {"revision": "6"}}}],
    }
)


def other(*kvs: dict[str, str]) -> bytes:
    """What a comparison that failed replies."""
    return reply({"header": header(), "responses": [{"response_range": found(*kvs)}]})


@contextmanager
def register(*endpoints: FakeEtcd | str, **options: Any) -> Iterator[EtcdRegister]:
    urls = [one if isinstance(one, str) else one.url for one in endpoints]
    with EtcdRegister(urls, "logd", "test", **options) as opened:
        yield opened


def outcome(answer: Answer, revision: int = 5, timeout_s: float = HANG_S) -> int | str | None:
    """Of a compare-and-set that is answered so; sent once, although another endpoint is there."""
    with FakeEtcd(answer) as etcd, FakeEtcd(WRITTEN) as second, register(etcd, second) as client:
        try:
            return client.compare_and_set(STATE, revision, timeout_s)
        except OutcomeUnknown:
            assert (etcd.paths, second.paths) == (["/v3/kv/txn"], [])
            return "unknown"
        except RegisterUnavailable:
            return "unavailable"


# -- what etcd replies --------------------------------------------------------------------------


def test_get() -> None:
    with FakeEtcd(reply(NO_KEY), FOUND) as etcd, register(etcd) as client:
        opened: Register = client
        assert opened.get(HANG_S) == Versioned(None, 0)
        assert opened.get(HANG_S) == Versioned(STATE, 5)
        assert etcd.requests == [("/v3/kv/range", {"key": KEY}, "")] * 2
        assert etcd.connections == 1  # it is kept


def test_compare_and_set() -> None:
    with FakeEtcd(WRITTEN, other(kv(8)), other()) as etcd, register(etcd) as client:
        assert client.compare_and_set(STATE, 5, HANG_S) == 6
        assert client.compare_and_set(STATE, 5, HANG_S) is None
        assert client.compare_and_set(STATE, 5, HANG_S) is None
        compare = {"key": KEY, "target": "MOD", "result": "EQUAL", "mod_revision": "5"}
        assert etcd.requests[0][1] == {
            "compare": [compare],
            "success": [{"request_put": {"key": KEY, "value": VALUE}}],
            "failure": [{"request_range": {"key": KEY}}],
        }


@pytest.mark.parametrize("value", ["", "e30=", base64.b64encode(b"\xff").decode()])
def test_a_register_that_contains_something_else(value: str) -> None:
    with (
        FakeEtcd(reply(found(kv(value=value)))) as etcd,
        register(etcd) as client,
        pytest.raises(InvalidState),
    ):
        client.get(HANG_S)


# -- what is not a reply ------------------------------------------------------------------------

NONSENSE: dict[str, bytes] = {
    "not HTTP": b"SSH-2.0-OpenSSH\r\n\r\n",
    "empty": reply(b""),
    "not JSON": reply(b"<html>welcome</html>"),
    "half of JSON": reply(b'{"header": {"revision"'),
    "deep JSON": reply(b"[" * 100_000),
    "another type": reply([1, 2]),
    "no header": reply({}),
    "header of another service": reply({"header": {"revision": "5"}}),
    "no revision": reply({"header": {"cluster_id": "17"}}),
    "words for numbers": reply({"header": header() | {"revision": "many"}}),
    "not base64": reply(found(kv(value="?"))),
    "redirect": b"HTTP/1.1 307 Go\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n",
    "long line": b"HTTP/1.1 200 OK\r\nA: " + b"x" * 100_000 + b"\r\n\r\n",
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"A: x\r\n" * 1000 + b"\r\n",
    "bad chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "huge": reply(b" " * (2 << 20)),
}
STATUS: dict[str, bytes] = {
    "500": reply(b"oops", 500),
    "503": reply({}, 503),
    "404": reply(b"Not Found\n", 404),
    "timed out": error(14, "etcdserver: request timed out", 503),
    "leader changed": error(14, "etcdserver: leader changed", 503),
    "stopped": error(14, "etcdserver: server stopped", 503),
    "transport": error(14, "transport is closing", 503),
    "canceled": error(1, "context canceled", 408),
    "internal": error(13, "etcdserver: something", 500),
    "of a proxy": error(7, "forbidden by the proxy", 403),
    "too large for the gateway": error(8, "grpc: received message larger than max", 429),
}
NO_REPLY: dict[str, Answer] = {
    "closed": closes,
    "half a head": lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nContent-"),
    "half a body": lambda connection: connection.sendall(WRITTEN[:-20]),
    "flood": floods,
}
LATE: dict[str, Answer] = {"hangs": hangs, "drips": drips}
REFUSED: dict[str, bytes] = {
    "no user": error(3, "etcdserver: user name is empty", 400),
    "denied": error(7, "etcdserver: permission denied", 403),
    "full": error(8, "etcdserver: mvcc: database space exceeded", 429),
    "token": error(16, "etcdserver: invalid auth token", 401),
}
CONTRADICTIONS: dict[str, bytes] = {
    "nothing was done": reply({"header": header(), "succeeded": True}),
    "no evidence": reply({"header": header()}),
    "the same revision": other(kv(5)),
    "another key": other(kv(8, key="eA==")),
    "two keys": other(kv(8), kv(9)),
    "not newer": reply(
        {
            "header": header(5),
            "succeeded": True,
            "responses": [{"response_put": {"header": {"revision": "5"}}}],
        }
    ),
}


@pytest.mark.parametrize("name", [*NONSENSE, *STATUS, *NO_REPLY, *CONTRADICTIONS])
def test_an_ambiguous_answer_to_a_compare_and_set(name: str) -> None:
    assert outcome((NONSENSE | STATUS | NO_REPLY | CONTRADICTIONS)[name]) == "unknown"


def test_no_key_where_none_was_expected() -> None:
    assert outcome(other(), revision=0) == "unknown"  # the comparison would have held
    assert outcome(other(kv(1)), revision=0) is None


@pytest.mark.parametrize("name", LATE)
def test_a_compare_and_set_that_is_not_answered_in_time(name: str) -> None:
    assert outcome(LATE[name], timeout_s=SHORT_S) == "unknown"


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_compare_and_set_is_sent_to_the_next_endpoint(name: str) -> None:
    assert outcome(REFUSED[name]) == 6
    with (
        FakeEtcd(REFUSED[name]) as etcd,
        register(etcd) as client,
        pytest.raises(RegisterUnavailable, match="etcdserver: "),
    ):
        client.compare_and_set(STATE, 5, HANG_S)


@pytest.mark.parametrize("name", [*NONSENSE, *STATUS, *NO_REPLY, *LATE, *REFUSED])
def test_a_read_goes_on_to_the_next_endpoint(name: str) -> None:
    answer = (NONSENSE | STATUS | NO_REPLY | LATE | REFUSED)[name]
    # The first gets half of the time; the whole must suffice on a busy machine.
    timeout_s = 2.0 if name in LATE else HANG_S
    with FakeEtcd(answer) as etcd, FakeEtcd(FOUND) as second, register(etcd, second) as client:
        assert client.get(timeout_s) == Versioned(STATE, 5)
        asked = len(etcd.paths)
        assert client.get(HANG_S) == Versioned(STATE, 5)  # the one that answers is preferred
        assert len(etcd.paths) == asked


@pytest.mark.parametrize("name", [*NONSENSE, *STATUS, *NO_REPLY, *LATE, *REFUSED])
def test_a_read_that_nobody_answers(name: str) -> None:
    answer = (NONSENSE | STATUS | NO_REPLY | LATE | REFUSED)[name]
    timeout_s = SHORT_S if name in LATE else HANG_S
    with (
        FakeEtcd(answer) as etcd,
        register(etcd) as client,
        pytest.raises(RegisterUnavailable, match="etcd is not available"),
    ):
        client.get(timeout_s)


@pytest.mark.parametrize("kvs", [[kv(key="eA==")], [kv(), kv()], [kv(0)]])
def test_a_read_of_something_else(kvs: list[dict[str, str]]) -> None:
    with (
        FakeEtcd(reply(found(*kvs))) as etcd,
        register(etcd) as client,
        pytest.raises(RegisterUnavailable),
    ):
        client.get(HANG_S)


# -- connections --------------------------------------------------------------------------------


def test_nobody_listens() -> None:
    with nobody() as absent, FakeEtcd(WRITTEN) as etcd:
        with register(f"http://{absent}") as client:
            for call in (client.get, lambda s: client.compare_and_set(STATE, 5, s)):
                with pytest.raises(RegisterUnavailable, match=f"no connection to {absent}"):
                    call(HANG_S)
        with register(f"http://{absent}", etcd) as client:
            assert client.compare_and_set(STATE, 5, HANG_S) == 6  # nothing was sent to the first


def test_no_time_is_left() -> None:
    with FakeEtcd(WRITTEN) as etcd, register(etcd) as client:
        assert client.compare_and_set(STATE, 5, HANG_S) == 6
        for timeout_s in (0.0, -1.0):
            with pytest.raises(RegisterUnavailable):
                client.compare_and_set(STATE, 5, timeout_s)
        assert etcd.paths == ["/v3/kv/txn"]


def test_the_deadline_is_of_the_whole_call() -> None:
    with FakeEtcd(drips) as etcd, FakeEtcd(hangs) as second, register(etcd, second) as client:
        began_s = time.monotonic()
        with pytest.raises(RegisterUnavailable):
            client.get(SHORT_S)
        with pytest.raises(OutcomeUnknown):
            client.compare_and_set(STATE, 5, SHORT_S)
        assert time.monotonic() - began_s < HANG_S / 2


def test_a_kept_connection_that_the_server_has_ended() -> None:
    """It is noticed before the next request is sent, which is therefore not ambiguous."""
    with FakeEtcd(WRITTEN) as etcd, register(etcd) as client:
        assert client.compare_and_set(STATE, 5, HANG_S) == 6
        etcd.cut()
        assert client.compare_and_set(STATE, 5, HANG_S) == 6
        assert etcd.connections == 2


def test_a_server_that_keeps_no_connection() -> None:
    answer = FOUND.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
    with FakeEtcd(answer) as etcd, register(etcd) as client:
        for _ in range(2):
            assert client.get(HANG_S) == Versioned(STATE, 5)
        assert etcd.connections == 2


def test_an_endpoint_of_another_etcd_cluster() -> None:
    strange = reply({"header": header(cluster="18")})
    first = FakeEtcd(FOUND, closes)
    with first, FakeEtcd(strange) as second, register(first, second) as client:
        assert client.get(HANG_S) == Versioned(STATE, 5)
        with pytest.raises(RegisterUnavailable, match="belongs to another etcd cluster"):
            client.get(HANG_S)  # and not: there is no state


# -- users --------------------------------------------------------------------------------------

USER = {"user": "logd", "password": "secret-of-logd"}


def token(text: str) -> bytes:
    return reply({"header": header(), "token": text})


def test_a_token_is_kept_and_renewed() -> None:
    answers = [token("t.1"), FOUND, FOUND, REFUSED["token"], token("t.2"), WRITTEN]
    with FakeEtcd(*answers) as etcd, register(etcd, **USER) as client:
        for _ in range(2):
            client.get(HANG_S)
        assert client.compare_and_set(STATE, 5, HANG_S) == 6
        assert [(path.rpartition("/")[2], shown) for path, _, shown in etcd.requests] == [
            ("authenticate", ""), ("range", "t.1"), ("range", "t.1"),
            ("txn", "t.1"), ("authenticate", ""), ("txn", "t.2"),
        ]  # fmt: skip
        assert etcd.requests[0][1] == {"name": "logd", "password": "secret-of-logd"}


@pytest.mark.parametrize(
    "answer",
    [
        error(3, "etcdserver: authentication failed, invalid user ID or password", 400),
        error(9, "etcdserver: authentication is not enabled", 412),
        reply({"header": header()}), token(""), token("two\r\nLines: 1"), token("x" * 10_000),
        closes, reply(b"", 500),
    ],
)  # fmt: skip
def test_no_token(answer: Answer) -> None:
    with FakeEtcd(answer) as etcd, register(etcd, **USER) as client:
        for call in (client.get, lambda s: client.compare_and_set(STATE, 5, s)):
            with pytest.raises(RegisterUnavailable) as caught:
                call(HANG_S)
            assert "secret" not in str(caught.value)
        assert {*etcd.paths} == {"/v3/auth/authenticate"}


# -- members and settings -----------------------------------------------------------------------


def test_members() -> None:
    base = "/logd/test/members/"
    entries = [("a", b'{"role":"leader"}'), ("b", b"[]"), ("c", b"{"), ("d", b"{}")]
    kvs = [
        kv(5, *(base64.b64encode(text).decode() for text in ((base + node).encode(), value)))
        for node, value in entries
    ]
    granted = reply({"header": header(), "ID": "77", "TTL": "2"})
    with FakeEtcd(granted, reply(NO_KEY), reply(found(*kvs))) as etcd, register(etcd) as client:
        client.publish_member("a", {"role": "leader"}, 1.5)
        assert client.members() == {"a": {"role": "leader"}, "d": {}}
        assert etcd.requests[0][:2] == ("/v3/lease/grant", {"TTL": "2"})
        assert etcd.requests[1][1] == {
            "key": kvs[0]["key"], "value": kvs[0]["value"], "lease": "77",
        }  # fmt: skip


def test_members_that_cannot_be_published() -> None:
    with FakeEtcd(reply({"header": header(), "ID": "77"})) as etcd, register(etcd) as client:
        for node, info in (("a/b", {}), ("", {}), ("a", {"x": object()}), ("a", {"x": "\udc00"})):
            with pytest.raises(LogdError):
                client.publish_member(node, info, 1)


@pytest.mark.parametrize(
    ("endpoints", "options"),
    [
        ([], {}), ([""], {}), (["ftp://a:1"], {}), (["http://a:b"], {}), (["http://a:0"], {}),
        (["http://a:1/path"], {}), (["http://a b:1"], {}),
        (["a:1"], {"user": "x"}), (["a:1"], {"password": "x"}),
        (["a:1"], {"user": "x", "password": "\udc00"}),
        (["https://a:1"], {"ca": "/nowhere"}), (["http://a:1"], {"ca": __file__}),
        (["https://a:1"], {"ca": __file__}), (["https://a:1"], {"cert": "/nowhere"}),
    ],
)  # fmt: skip
def test_settings_that_are_not_valid(endpoints: list[str], options: dict[str, str]) -> None:
    with pytest.raises(BadRequest):
        EtcdRegister(endpoints, "logd", "test", **options)


@pytest.mark.parametrize("name", ["", "/", "a//b", "\n", "\udc00"])
def test_names_that_are_not_valid(name: str) -> None:
    for prefix, cluster in ((name, "test"), ("logd", name)):
        with pytest.raises(BadRequest):
            EtcdRegister(["http://a:1"], prefix, cluster)


def test_an_endpoint_without_a_port_or_with_a_slash() -> None:
    for endpoint in ("127.0.0.1", "http://localhost/", "https://[::1]:2379/", "[::1]:2379"):
        EtcdRegister([endpoint], "/logd/", "test").close()
