"""HTTP connections: old clients, pipelined requests, resets, bodies in any pieces."""

from __future__ import annotations

import re
import socket
import struct

import pytest

from logd import Client
from tests.integration.web.raw_http import (
    CHUNKED,
    GET,
    LOG,
    PUSH,
    answer,
    dial,
    one_answer,
    rest,
    status,
)
from tests.support.daemon import Daemon, wait_until


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
        wait_until(lambda: client.stats()["connections"] == "1")
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


def test_head_requests(daemon: Daemon) -> None:
    with Client(daemon.address) as client:
        client.push("app", [b"one"])
    for path in ("/topics", "/topics/app/messages", "/topics/app/follow", "/stats"):
        head = f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        reply = answer(daemon, head.encode())
        assert status(reply) == 200, path
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
