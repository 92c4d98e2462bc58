"""Clients that are wrong, slow, stuck, greedy or malicious: each is refused or cut off, and the
others do not notice. Spoken by hand: no client library would send this.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from logd import Client
from tests.support.daemon import HANG_S, Daemon, messages, running

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
PUSH = b"POST /topics/app HTTP/1.1\r\nHost: localhost\r\n"
LINGER_S = 0.8  # somewhat less than it does
LOG = b"POST /log HTTP/1.1\r\nHost: localhost\r\n"


@contextmanager
def dial(daemon: Daemon) -> Iterator[socket.socket]:
    host, _, port = daemon.http.rpartition(":")
    with socket.create_connection((host, int(port)), HANG_S) as connection:
        yield connection


def rest(connection: socket.socket) -> bytes:
    """What comes until the daemon ends the connection, in whatever way."""
    got = b""
    try:
        while piece := connection.recv(1 << 16):
            got += piece
    except ConnectionResetError:
        pass
    return got


def answer(daemon: Daemon, request: bytes) -> bytes:
    """All that the daemon says to this until it closes; which may be before it has all of it."""
    with dial(daemon) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request)
        return rest(connection)


def one_answer(connection: socket.socket) -> bytes:
    """The next response, which says its length; nothing if there is none."""
    got = b""
    while not (found := re.search(rb"content-length: (\d+)\r\n(?s:.*?)\r\n\r\n", got)):
        piece = connection.recv(1 << 16)
        if not piece:
            return b""
        got += piece
    while len(got) < found.end() + int(found[1]):
        piece = connection.recv(1 << 16)
        if not piece:
            return b""
        got += piece
    return got


def status(reply: bytes) -> int:
    assert reply.startswith(b"HTTP/1.1 "), reply[:100]
    return int(reply[9:12])


def topics(daemon: Daemon) -> list[str]:
    with Client(daemon.address) as client:
        return [info.topic for info in client.topics()]


# -- framing ------------------------------------------------------------------------------------

BODY = b"\r\nx\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
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


def test_a_compressed_transfer_is_refused_with_what_to_do(empty: Daemon) -> None:
    """Other codings than chunked are not decoded: what is stored would be something else."""
    for coding in (b"gzip, chunked", b"deflate,chunked"):
        reply = answer(empty, PUSH + b"Transfer-Encoding: " + coding + b"\r\n\r\n0\r\n\r\n")
        assert json.loads(reply.partition(b"\r\n\r\n")[2]) == {
            "error": "bad-request",
            "text": "Transfer-Encoding must be chunked; compress with Content-Encoding: gzip",
        }


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


def send_until_cut(connection: socket.socket, piece: bytes) -> None:
    give_up_s = time.monotonic() + HANG_S
    while time.monotonic() < give_up_s:
        try:
            connection.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            return
    pytest.fail("it may go on for ever")


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
             "/topics/-rf", "/topics/app%20", "/topics/%F0%9F%98%80", "/topics/" + "a" * 5000]
)  # fmt: skip
def test_paths_that_lead_nowhere(empty: Daemon, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n"
    assert status(answer(empty, head.encode() + BODY)) in (400, 404, 405)
    assert topics(empty) == []
    assert [path.name for path in (empty.data_dir / "topics").iterdir()] == []


# -- other kinds of clients ---------------------------------------------------------------------


def test_an_old_client(daemon: Daemon) -> None:
    request = b"POST /log HTTP/1.0\r\nHost: localhost\r\nContent-Length: 12\r\n\r\nPUSH app\r\nx\n"
    reply = answer(daemon, request)
    assert status(reply) == 200
    assert reply.endswith(b"\r\n\r\nOK 0 1\r\n")


def test_an_old_client_gets_no_chunks(daemon: Daemon) -> None:
    """It does not know them: the end of the connection is the end of the response."""
    with Client(daemon.address) as client:
        client.push("app", [b"one", b"two"])
    reply = answer(daemon, b"GET /topics/app/messages HTTP/1.0\r\nHost: localhost\r\n\r\n")
    assert b"chunked" not in reply.lower()
    assert reply.endswith(b"\r\n\r\none\ntwo\n")


def test_pipelined_requests_are_answered_in_order(daemon: Daemon) -> None:
    one = b"POST /log HTTP/1.1\r\nHost: localhost\r\nContent-Length: 13\r\n\r\nPUSH app 2\r\n%d\n"
    last = b"GET /topics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    requests = b"".join(one.replace(b": 13", b": 14") % (n % 10) for n in range(100))
    reply = answer(daemon, requests + last)
    assert re.findall(rb"OK (\d+) 1\r\n", reply) == [b"%d" % n for n in range(100)]
    assert reply.endswith(b"]")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (b"\x00\x01\r\n\r\n", [200, 200, 400]),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 101, [200, 200, 400]),
        (LOG + b"Transfer-Encoding: chunked\r\n\r\nz\r\n", [200, 200, 400]),
        (PUSH + b"Transfer-Encoding: chunked\r\n\r\n2\r\nx\n!\r\n", [200, 200, 400]),
        (PUSH + b"Expect: 100-continue\r\n" + CHUNKED + b"\r\nz\r\n", [200, 200, 400]),
        (LOG + b"Expect: 100-continue\r\n" + CHUNKED + b"\r\nz\r\n", [200, 200, 400]),
    ],
)
def test_what_came_before_something_wrong_is_answered_before_it(
    daemon: Daemon, wrong: bytes, said: list[int]
) -> None:
    """The refusal must not be taken for the answer to a request that was carried out."""
    reply = answer(daemon, PUSH + b"Content-Length: 2\r\n\r\nx\n" + GET + wrong + GET)
    assert [int(status) for status in re.findall(rb"HTTP/1.1 (\d+)", reply)] == said
    alone = answer(daemon, wrong + GET)
    assert re.findall(rb"HTTP/1.1 (\d+)", alone) == [b"400"]
    assert "Traceback" not in daemon.log, daemon.log[-3000:]


def test_a_stream_of_commands_that_goes_wrong_is_cut_off(daemon: Daemon) -> None:
    """Part of the response is out: another one in its middle would be taken for replies."""
    with dial(daemon) as connection:
        connection.sendall(LOG + CHUNKED + b"\r\n6\r\nPING\r\n\r\n")
        got = b""
        while b"OK\r\n" not in got:
            got += connection.recv(1000)
        connection.sendall(b"z\r\n")
        got += rest(connection)
    assert got.count(b"HTTP/1.1 ") == 1
    assert not got.endswith(b"0\r\n\r\n")


def test_a_client_that_leaves_its_pipeline(daemon: Daemon) -> None:
    """The first request waits, others stand behind it: all of them hear that nobody listens."""
    with Client(daemon.address) as client:
        client.push("app", [b"x"])
        for path in (b"/topics/app/follow", b"/topics/app/messages"):
            with dial(daemon) as connection:
                follow = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path
                connection.sendall(follow + GET * 3)
                assert connection.recv(1)
        deadline_s = time.monotonic() + HANG_S
        while int(client.stats()["connections"]) > 1 and time.monotonic() < deadline_s:
            pass
        client.push("app", [b"y"])  # would be sent to the follower
        client.ping()
    assert "Traceback" not in daemon.log, daemon.log[-3000:]


def test_clients_that_reset_leave_nothing_behind(daemon: Daemon) -> None:
    """A connection with answered requests is let go of at once, not when its time would be up."""

    def reset_many() -> int:
        for _ in range(1000):
            with dial(daemon) as connection:
                connection.sendall(GET)
                one_answer(connection)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return daemon.rss_bytes()

    before = reset_many()
    assert reset_many() < before + (4 << 20)


def test_patterns_are_not_kept(daemon: Daemon) -> None:
    """A regular expression learns while it searches; what it has learnt goes with its request."""
    letters = random.Random(1).choices(b"abcdefghijklmnopqrstuvwxyz", k=60_000)
    with Client(daemon.address) as client:
        client.push("app", [bytes(letters)])

    def search(first: int) -> int:
        for number in range(first, first + 30):
            query = b"grep=%%5Ba-q%%5D%%5B%%5Eu-z%%5D%%7B13%%7DX%d" % number
            head = b"GET /topics/app/messages?%s HTTP/1.1\r\nHost: localhost\r\n" % query
            assert status(answer(daemon, head + b"Connection: close\r\n\r\n")) == 200
        return daemon.rss_bytes()

    before = search(0)
    assert search(30) < before + (2 << 20)


NOT_JSON = {
    "nested too deeply": b"[" * 100_000,
    "not UTF-8": b'["\xff"]',
    "cut off": b'["a',
    "half a surrogate": b'["\\ud800"]',
}


JSON_ROUTES = [
    (b"/topics/app", b"application/json", b"%s"),
    (b"/topics/app", b"application/x-ndjson", b"%s\n"),
    (b"/loki/api/v1/push", b"application/json", b'{"streams": %s}'),
    (b"/_bulk", b"application/json", b'{"index": {"_index": "a", "b": %s}}\n1\n'),
    (b"/_bulk", b"application/json", b'{"index": {"_index": "a"}}\n%s\n'),
]


def test_json_that_is_none(daemon: Daemon) -> None:
    for path, kind, form in JSON_ROUTES:
        for name, body in NOT_JSON.items():
            made = form % body
            head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" % path
            head += b"Content-Type: %s\r\nContent-Length: %d\r\n\r\n" % (kind, len(made))
            said = status(answer(daemon, head + made))
            assert said in (200, 400), (path, form, name)  # 200: it is kept as it came
    assert "Traceback" not in daemon.log, daemon.log[-3000:]


def test_a_time_of_5000_digits(daemon: Daemon) -> None:
    body = b'{"streams": [{"stream": {}, "values": [["%s", "x"]]}]}' % (b"9" * 5000)
    head = b"POST /loki/api/v1/push HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    assert status(answer(daemon, head + b"Content-Length: %d\r\n\r\n" % len(body) + body)) == 400


@pytest.mark.parametrize(
    "path", ["/topics", "/topics/app/messages", "/topics/app/follow", "/stats"]
)
def test_only_the_head(daemon: Daemon, path: str) -> None:
    with Client(daemon.address) as client:
        client.push("app", [b"one"])
    head = f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    reply = answer(daemon, head.encode())
    assert status(reply) == 200
    assert reply.endswith(b"\r\n\r\n")


DIALOGUE = b"PUSH app 4\r\none\nPUSH app\r\ntwo\r\nREAD base 0 2\r\nPUSH ../x 2\r\ny\nPING\r\n"


def test_a_dialogue_cut_anywhere(daemon: Daemon) -> None:
    """A body may come in any two chunks; the replies are the same."""
    with Client(daemon.address) as client:
        client.push("base", [b"a", b"b"])
    head = LOG + b"Connection: close\r\n" + CHUNKED + b"\r\n"
    said = set()
    for cut in range(1, len(DIALOGUE)):
        body = DIALOGUE.replace(b"app", b"t%02d" % cut)
        first, second = (b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:cut], body[cut:]))
        with dial(daemon) as connection:
            connection.sendall(head + first)
            connection.sendall(second + b"0\r\n\r\n")
            said.add(dechunked(rest(connection)))
    stored = daemon.stored("base")
    wanted = b"OK 0 1\r\nOK 1 1\r\nBATCHES 0 2 %d\r\n%s" % (len(stored), stored)
    assert len(said) == 1
    (same,) = said
    assert same.startswith(wanted + b"ERR bad-topic ")
    assert same.endswith(b"\r\nOK\r\n")


def dechunked(reply: bytes) -> bytes:
    head, _, body = reply.partition(b"\r\n\r\n")
    if b"chunked" not in head.lower():
        return body
    out = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        if size == b"0":
            return out
        out += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]


# -- slow ones ----------------------------------------------------------------------------------

IMPATIENT = ("--http-host", "127.0.0.1:0", "--request-timeout", "1.5s", "--idle-timeout", "20s")
SLOW = {
    "nothing at all": (b"", b""),
    "line ends": (b"", b"\r\n"),
    "the request line": (b"GET /", b"a"),
    "a header": (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ", b"y"),
    "headers": (b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"X: y\r\n"),
    "a body": (PUSH + b"Content-Length: 100000\r\n\r\n", b"x"),
    "chunks": (PUSH + CHUNKED + b"\r\n", b"1\r\nx\r\n"),
    "a chunk's size": (PUSH + CHUNKED + b"\r\n", b"0"),
    "a command": (LOG + b"Content-Length: 999\r\n\r\nPUSH", b"x"),
    "a command's body": (
        LOG + CHUNKED + b"\r\nd\r\nPUSH app 99\r\n\r\n", b"1\r\nx\r\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("begin", "more"), SLOW.values(), ids=SLOW)
def test_a_byte_now_and_then_does_not_keep_it(tmp_path: Path, begin: bytes, more: bytes) -> None:
    """The time for one request counts from its beginning, whatever comes in between."""
    idle = ("--idle-timeout", "1.5s") if not more else ()
    with running(tmp_path, *IMPATIENT, *idle) as daemon, dial(daemon) as connection:
        connection.settimeout(0.4)  # so seldom that no limit on size is met
        connection.sendall(begin)
        give_up_s = time.monotonic() + HANG_S
        while True:
            assert time.monotonic() < give_up_s, "it may go on for ever"
            try:
                connection.sendall(more)
                if not connection.recv(1000):
                    break
            except TimeoutError:
                continue
            except (ConnectionResetError, BrokenPipeError):
                break
        assert topics(daemon) == []


def test_between_requests_there_is_time(tmp_path: Path) -> None:
    """A connection that is kept, and a body that streams, live longer than one request may take."""
    with running(tmp_path, *IMPATIENT) as daemon, dial(daemon) as kept, dial(daemon) as streams:
        streams.sendall(LOG + CHUNKED + b"\r\n")
        begun_s, n = time.monotonic(), 0
        with Client(daemon.address, timeout_s=HANG_S) as client:
            client.push("app", [b"first"])
            while time.monotonic() < begun_s + 4:
                client.read("app", "next", 1, wait_ms=300)
                kept.sendall(GET)
                assert status(one_answer(kept)) == 200
                n += 1
                streams.sendall(b"%x\r\nPUSH app\r\nmessage\r\n\r\n" % 19)
        streams.sendall(b"0\r\n\r\n")
        replies = b""
        while b"\r\n0\r\n\r\n" not in replies:
            piece = streams.recv(1 << 16)
            assert piece, "it was cut off"
            replies += piece
        assert len(re.findall(rb"OK \d+ 1\r\n", replies)) == n


@pytest.mark.alone
def test_a_client_that_does_not_read(daemon: Daemon) -> None:
    """It costs a bounded piece of memory, and others keep their pace."""
    with Client(daemon.address) as client:
        for _ in range(60):
            client.push("big", [b"x" * 1_000_000])
        before = daemon.rss_bytes()
        stuck = []
        for path in ("/topics/big/messages?limit=0", "/topics/big/messages?format=ndjson") * 5:
            connection = socket.create_connection(tuple_of(daemon), HANG_S)
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            connection.recv(10)
            stuck.append(connection)
        for _ in range(3):
            connection = socket.create_connection(tuple_of(daemon), HANG_S)
            read = b"READ big 0 60\r\n"
            head = b"POST /log HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(
                read
            )
            connection.sendall(head + read)
            connection.recv(10)
            stuck.append(connection)
        begun_s = time.monotonic()
        for _ in range(300):
            client.push("app", [b"x"])
        assert time.monotonic() - begun_s < HANG_S / 3
        assert daemon.rss_bytes() < before + (150 << 20)
        for connection in stuck:
            connection.close()


def tuple_of(daemon: Daemon) -> tuple[str, int]:
    host, _, port = daemon.http.rpartition(":")
    return host, int(port)


def test_a_client_that_does_not_read_is_cut_off(tmp_path: Path) -> None:
    flags = ("--http-host", "127.0.0.1:0", "--idle-timeout", "1.5s")
    with running(tmp_path, *flags) as daemon:
        with Client(daemon.address) as client:
            for _ in range(30):
                client.push("big", [b"x" * 1_000_000])
        with dial(daemon) as connection:
            stuck_read(connection)
            give_up_s = time.monotonic() + HANG_S
            while open_connections(daemon) != 1:
                assert time.monotonic() < give_up_s


def open_connections(daemon: Daemon) -> int:
    """With the one that asks, which is new each time: it could be cut off as well."""
    with Client(daemon.address) as client:
        return int(client.stats()["connections"])


# -- greedy ones --------------------------------------------------------------------------------


def test_connections_past_the_limit(tmp_path: Path) -> None:
    flags = ("--http-host", "127.0.0.1:0", "--max-connections", "20")
    with running(tmp_path, *flags) as daemon:
        held = [socket.create_connection(tuple_of(daemon), HANG_S) for _ in range(20)]
        for connection in held:
            connection.sendall(GET)
            assert status(one_answer(connection)) == 200
        refused = answer(daemon, GET)
        assert status(refused) == 503
        assert b"retry-after" in refused
        for connection in held:
            connection.close()
        give_up_s = time.monotonic() + HANG_S
        while (
            status(answer(daemon, GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")))
            != 200
        ):
            assert time.monotonic() < give_up_s


def test_bodies_share_the_daemons_memory(tmp_path: Path) -> None:
    """HTTP and TCP bodies have one budget. A body that does not fit is refused with `busy`."""
    limits = ("--max-batch-bytes", "1MB", "--max-unfinished-bytes", "2MB")
    with (
        running(tmp_path, "--http-host", "127.0.0.1:0", *limits) as daemon,
        dial_tcp(daemon) as line,
        dial(daemon) as first,
        dial_tcp(daemon) as probe,
    ):
        line.sendall(b"PUSH app 1000000\r\n" + b"x" * 100)
        first.sendall(PUSH + b"Content-Length: 1000000\r\n\r\n" + b"y" * 999_990)
        until_busy(probe)
        assert status(answer(daemon, closing_push(100))) == 503
        first.sendall(b"y" * 9 + b"\n")
        assert status(first.recv(4096)) == 200
        line.sendall(b"x" * 999_899 + b"\n")
        assert line.recv(100).startswith(b"OK ")
        assert status(answer(daemon, closing_push(900_000))) == 200


def dial_tcp(daemon: Daemon) -> socket.socket:
    host, _, port = daemon.address.rpartition(":")
    return socket.create_connection((host, int(port)), HANG_S)


def until_busy(probe: socket.socket) -> None:
    """Wait until the memory for unfinished bodies is used up.

    The parser returns what the message takes before it reads from another connection. A probe that
    holds memory for longer, such as a request over HTTP, could have one of the bodies refused that
    are to fill it.
    """
    give_up_s = time.monotonic() + HANG_S
    reply = b"OK "
    while reply.startswith(b"OK "):
        assert time.monotonic() < give_up_s, "the memory is not shared"
        probe.sendall(b"PUSH probe\r\n" + b"p" * 100 + b"\r\n")
        reply = probe.recv(1000)
    assert reply.startswith(b"ERR busy ")


def closing_push(size: int) -> bytes:
    head = b"Connection: close\r\nContent-Length: %d\r\n\r\n" % size
    return PUSH + head + b"z" * (size - 1) + b"\n"


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


@pytest.mark.alone
def test_slow_clients_do_not_slow_pushes(daemon: Daemon) -> None:
    half = [socket.create_connection(tuple_of(daemon), HANG_S) for _ in range(300)]
    for n, connection in enumerate(half):
        connection.sendall([b"GET /", GET[:-2], PUSH + b"Content-Length: 9\r\n\r\nx"][n % 3])
    with Client(daemon.address) as client:
        begun_s = time.monotonic()
        for _ in range(500):
            client.push("app", [b"x" * 100])
        assert time.monotonic() - begun_s < HANG_S / 3
    for connection in half:
        connection.close()


# -- a stop -------------------------------------------------------------------------------------


def stuck_read(connection: socket.socket) -> None:
    connection.sendall(b"GET /topics/big/messages?limit=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status(connection.recv(50)) == 200


def follower(connection: socket.socket) -> None:
    connection.sendall(b"GET /topics/big/follow HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status(connection.recv(4096)) == 200


def waiting_read(connection: socket.socket) -> None:
    read = b"READ big next 1 wait=60000\r\n"
    head = b"POST /log HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(read)
    connection.sendall(head + read)


def half_a_body(connection: socket.socket) -> None:
    connection.sendall(PUSH + b"Content-Length: 100\r\n\r\nx")


def half_a_head(connection: socket.socket) -> None:
    connection.sendall(b"GET / HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "under_way", [stuck_read, follower, waiting_read, half_a_body, half_a_head]
)
def test_a_stop_waits_for_nobody_for_long(
    daemon: Daemon, under_way: Callable[[socket.socket], None]
) -> None:
    with Client(daemon.address) as client:
        for _ in range(20):
            client.push("big", [b"x" * 1_000_000])
    with dial(daemon) as connection:
        under_way(connection)
        begun_s = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - begun_s < HANG_S / 3
        rest(connection)
    assert "Traceback" not in daemon.log
    assert "stopped" in daemon.log


def test_what_was_answered_before_a_stop_is_stored(daemon: Daemon) -> None:
    """Under load every request gets an offset, a 503, or an end; and an offset means stored."""
    stored: list[int] = []
    other: list[int] = []
    started = threading.Barrier(5)

    def load(writer: int) -> None:
        body = b"writer %d\n" % writer
        request = PUSH + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        with dial(daemon) as connection:
            started.wait(HANG_S)
            while True:
                try:
                    connection.sendall(request)
                    reply = one_answer(connection)
                except OSError:
                    return
                if not reply:
                    return
                if status(reply) != 200:
                    other.append(status(reply))
                    return
                stored.append(json.loads(reply.partition(b"\r\n\r\n")[2])["offset"])

    threads = [threading.Thread(target=load, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    started.wait(HANG_S)
    while len(stored) < 200 and any(thread.is_alive() for thread in threads):
        os.sched_yield()
    assert daemon.stop() == 0
    for thread in threads:
        thread.join(HANG_S)
    assert set(other) <= {503}
    assert len(stored) >= 200
    found = messages(daemon.stored("app"))
    assert len(set(stored)) == len(stored)
    assert max(stored) < len(found)
