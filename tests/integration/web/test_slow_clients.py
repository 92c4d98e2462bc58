"""Clients that are slow, stuck or too many are disconnected or refused; others are not delayed."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

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
    topics,
)
from tests.support.daemon import HANG_S, Daemon, messages, running, wait_until

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


def test_a_client_that_does_not_read_is_cut_off(tmp_path: Path) -> None:
    flags = ("--http-host", "127.0.0.1:0", "--idle-timeout", "1.5s")
    with running(tmp_path, *flags) as daemon:
        with Client(daemon.address) as client:
            for _ in range(30):
                client.push("big", [b"x" * 1_000_000])
        with dial(daemon) as connection:
            stuck_read(connection)
            wait_until(lambda: open_connections(daemon) == 1)


def open_connections(daemon: Daemon) -> int:
    """With the one that asks, which is new each time: it could be cut off as well."""
    with Client(daemon.address) as client:
        return int(client.stats()["connections"])


# -- greedy ones --------------------------------------------------------------------------------


def test_connections_past_the_limit(tmp_path: Path) -> None:
    flags = ("--http-host", "127.0.0.1:0", "--max-connections", "20")
    with running(tmp_path, *flags) as daemon:
        held = [dial(daemon) for _ in range(20)]
        for connection in held:
            connection.sendall(GET)
            assert status(one_answer(connection)) == 200
        refused = answer(daemon, GET)
        assert status(refused) == 503
        assert b"retry-after" in refused
        for connection in held:
            connection.close()
        closing = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        wait_until(lambda: status(answer(daemon, closing)) == 200)


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


# -- shutdown -----------------------------------------------------------------------------------


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
