"""Invalid requests are refused, and the connection is closed: framing, hosts, paths, bodies."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import pytest

from tests.integration.web.raw_http import (
    CHUNKED,
    GET,
    LOG,
    PUSH,
    answer,
    dial,
    rest,
    send_until_cut,
    status,
    topics,
)
from tests.support.daemon import Daemon, running

LINGER_S = 0.8  # somewhat less than the daemon waits

# -- framing ------------------------------------------------------------------------------------

BODY = b"\r\nx\n"
BAD = {
    "two lengths": PUSH + b"Content-Length: 2\r\nContent-Length: 3\r\n" + BODY,
    "two equal lengths": PUSH + b"Content-Length: 2\r\nContent-Length: 2\r\n" + BODY,
    "a list of lengths": PUSH + b"Content-Length: 2, 2\r\n" + BODY,
    "a sign": PUSH + b"Content-Length: +2\r\n" + BODY,
    "a negative one": PUSH + b"Content-Length: -2\r\n" + BODY,
    "hex": PUSH + b"Content-Length: 0x2\r\n" + BODY,
    "an underscore": PUSH + b"Content-Length: 0_2\r\n" + BODY,
    "other digits": PUSH + "Content-Length: ٢\r\n".encode() + BODY,
    "no number": PUSH + b"Content-Length: two\r\n" + BODY,
    "no length": PUSH + b"Content-Length:\r\n" + BODY,
    "5,000 digits": PUSH + b"Content-Length: " + b"9" * 5000 + b"\r\n" + BODY,
    "length and chunks": PUSH + b"Content-Length: 2\r\n" + CHUNKED + b"\r\n2\r\nx\n\r\n0\r\n\r\n",
    "chunks and length": PUSH + CHUNKED + b"Content-Length: 2\r\n\r\n2\r\nx\n\r\n0\r\n\r\n",
    "chunked twice": PUSH + b"Transfer-Encoding: chunked, chunked\r\n\r\n2\r\nx\n\r\n0\r\n\r\n",
    "chunked and more": PUSH + b"Transfer-Encoding: chunked, gzip\r\n\r\n2\r\nx\n\r\n0\r\n\r\n",
    "compressed and chunked": PUSH + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "compressed and chunked, in two headers": (
        PUSH + b"Transfer-Encoding: gzip\r\n" + CHUNKED + b"\r\n2\r\nx\n\r\n0\r\n\r\n"
    ),
    "compressed commands": LOG + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "nearly chunked": PUSH + b"Transfer-Encoding: xchunked\r\n\r\n2\r\nx\n\r\n0\r\n\r\n",
    "a space before the colon": PUSH + b"Content-Length : 2\r\n" + BODY,
    "a chunk of no size": PUSH + CHUNKED + b"\r\nz\r\nx\n\r\n0\r\n\r\n",
    "a negative chunk": PUSH + CHUNKED + b"\r\n-2\r\nx\n\r\n0\r\n\r\n",
    "a chunk of 2^70": PUSH + CHUNKED + b"\r\n" + b"f" * 18 + b"\r\nx\n\r\n0\r\n\r\n",
    "a chunk that goes on": PUSH + CHUNKED + b"\r\n2\r\nx\nyy\r\n0\r\n\r\n",
    "a folded header": PUSH + b"X: a\r\n b\r\nContent-Length: 2\r\n" + BODY,
    "a NUL in a header": PUSH + b"X: a\0b\r\nContent-Length: 2\r\n" + BODY,
    "a lone CR": PUSH + b"X: a\rContent-Length: 2\r\n" + BODY,
    "no HTTP": b"PUSH app\r\nhello\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/9.9": b"POST /topics/app HTTP/9.9\r\nHost: localhost\r\nContent-Length: 2\r\n" + BODY,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "101 headers": PUSH + b"".join(b"X-%d: y\r\n" % n for n in range(101)) + b"\r\n",
    "two hosts": PUSH + b"Host: localhost\r\nContent-Length: 2\r\n" + BODY,
}  # fmt: skip


@pytest.mark.parametrize("request_", BAD.values(), ids=BAD)
def test_what_could_be_understood_in_two_ways_is_refused(empty: Daemon, request_: bytes) -> None:
    """And the connection ends: what stands behind it is not taken for another request."""
    reply = answer(empty, request_ + GET)
    assert status(reply) == 400
    assert reply.count(b"HTTP/1.1 ") == 1
    assert topics(empty) == []


def test_chunked_in_other_letters_is_taken(daemon: Daemon) -> None:
    head = b"Connection: close\r\nTransfer-Encoding: Chunked\r\n\r\n"
    assert status(answer(daemon, PUSH + head + b"2\r\nx\n\r\n0\r\n\r\n")) == 200


def test_a_length_that_nothing_could_hold(daemon: Daemon) -> None:
    before = daemon.rss_bytes()
    with dial(daemon) as connection:
        connection.sendall(PUSH + b"Content-Length: %d\r\n\r\nx" % 2**40)
        assert status(connection.recv(1000)) == 413
    assert daemon.rss_bytes() < before + (8 << 20)


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize("header", [b"", b"Connection: close\r\n"])
def test_a_refusal_reaches_one_who_is_still_sending(
    daemon: Daemon, version: bytes, header: bytes
) -> None:
    """For a moment it may: a reset would have it stop, and not read the answer."""
    head = b"POST /nope HTTP/" + version + b"\r\nHost: localhost\r\n" + header
    took_s = LINGER_S
    while took_s >= LINGER_S:  # a machine that stood still: then the moment was over
        with dial(daemon) as connection:
            connection.sendall(head + b"Content-Length: 1000000\r\n\r\n")
            started_s = time.monotonic()
            reply = rest(connection)  # and its end
            failed = None
            try:
                for _ in range(3):  # the first one would bring the reset
                    connection.sendall(b"x" * 1000)
            except (BrokenPipeError, ConnectionResetError) as error:
                failed = error
            took_s = time.monotonic() - started_s
    assert (status(reply), failed) == (404, None)


@pytest.mark.parametrize("piece", [b"X: %s\r\n" % (b"y" * 1000), b"y" * 1000])
def test_a_head_without_an_end(daemon: Daemon, piece: bytes) -> None:
    """Many headers, and one header that never ends."""
    before = daemon.rss_bytes()
    with dial(daemon) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
        send_until_cut(connection, piece * 64)
    assert daemon.rss_bytes() < before + (8 << 20)


def test_a_url_without_an_end(daemon: Daemon) -> None:
    assert status(answer(daemon, b"GET /" + b"a" * (1 << 20))) in (400, 431)


# -- who asks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example",
             "evil.example:1775", "", "[::1", "127.1@evil.example"]
)  # fmt: skip
def test_a_host_that_is_not_here(empty: Daemon, host: str) -> None:
    head = f"POST /log HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 12\r\n\r\n"
    assert status(answer(empty, head.encode() + b"PUSH app\r\nx\n")) == 403
    assert topics(empty) == []


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost.evil.example", "file://", "http://localhost:99"]
)  # fmt: skip
def test_an_origin_that_is_not_ours(empty: Daemon, origin: str) -> None:
    head = f"POST /log HTTP/1.1\r\nHost: localhost\r\nOrigin: {origin}\r\nConnection: close\r\n"
    request = head.encode() + b"Content-Length: 12\r\n\r\nPUSH app\r\nx\n"
    assert status(answer(empty, request)) == 403
    assert topics(empty) == []


def test_names_that_are_allowed(tmp_path: Path) -> None:
    flags = ("--http-host", "127.0.0.1:0", "--http-names", "logs.example")
    with running(tmp_path, *flags) as daemon:
        request = b"GET /healthz HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n"
        for host in (b"logs.example", b"LOGS.example:80", b"localhost", b"[::1]:1775", b"10.0.0.1"):
            assert status(answer(daemon, request % host)) == 200


@pytest.mark.parametrize(
    "path", ["/topics/%2e%2e%2fx", "/topics/a%00b", "/topics/%ff", "/topics/%", "/topics/%zz",
             "/topics/a%0d%0aPING", "/topics/..", "/topics/a%2fb", "//", "/topics//messages", "*",
             "/topics/-rf", "/topics/app%20", "/topics/%F0%9F%98%80", "/topics/.x",
             "/topics/" + "a" * 129, "/topics/" + "a" * 5000]
)  # fmt: skip
def test_paths_that_lead_nowhere(empty: Daemon, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n"
    assert status(answer(empty, head.encode() + BODY)) in (400, 404, 405)
    assert topics(empty) == []
    assert [path.name for path in (empty.data_dir / "topics").iterdir()] == []


# -- bodies ---------------------------------------------------------------------------------------


def test_a_bomb(daemon: Daemon) -> None:
    bomb = gzip.compress(bytes(1 << 28), 9)
    before = daemon.rss_bytes()
    head = b"Content-Encoding: gzip\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    assert status(answer(daemon, PUSH + head + bomb)) == 413
    assert daemon.rss_bytes() < before + (64 << 20)
    assert topics(daemon) == []


def test_a_body_that_never_ends(daemon: Daemon) -> None:
    """It is refused at the limit, long before its client is tired."""
    with dial(daemon) as connection:
        connection.sendall(PUSH + CHUNKED + b"\r\n")
        send_until_cut(connection, b"10000\r\n" + b"x" * 65536 + b"\r\n")
    assert topics(daemon) == []
