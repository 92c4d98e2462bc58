"""Large raw responses, which are sent from the files of a topic."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from logd import Client
from tests.support.daemon import HANG_S, Daemon, running, wait_until

PUSHES, MESSAGES = 200, [b"x" * 9_999] * 10
RAW = "/topics/app/messages?limit=0&format=raw"


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Daemon]:
    """With 20 MB in many partitions, more than one response."""
    settings = {"partition_bytes": 500_000, "idle_timeout": "2s"}
    with running(tmp_path, "--http-host", "127.0.0.1:0", **settings) as daemon:
        with Client(daemon.address) as client:
            for _ in range(PUSHES):
                client.push("app", MESSAGES)
        yield daemon


def stored(daemon: Daemon) -> bytes:
    return b"".join(path.read_bytes() for path in daemon.log_files("app"))


def send(daemon: Daemon, request: bytes) -> socket.socket:
    host, _, port = daemon.http.rpartition(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(HANG_S)
    connection.connect((host, int(port)))
    connection.sendall(request)
    return connection


def wait_for_connections(daemon: Daemon, count: int) -> None:
    with Client(daemon.address) as client:
        wait_until(lambda: client.stats()["connections"] == str(count + 1))


def test_the_whole_topic_on_one_connection(filled: Daemon) -> None:
    connection = http.client.HTTPConnection(filled.http, timeout=HANG_S)
    got, offset = b"", 0
    while offset < PUSHES * len(MESSAGES):
        connection.request("GET", f"{RAW}&from={offset}")
        response = connection.getresponse()
        body = response.read()
        assert (response.status, response.length) == (200, 0)
        assert int(response.headers["logd-offset"]) == offset
        offset += int(response.headers["logd-messages"])
        got += body
        connection.request("GET", "/topics/app")  # and other requests in between
        assert connection.getresponse().read().startswith(b'{"topic":"app"')
    assert got == stored(filled)
    connection.close()


def test_pipelined_requests_are_answered_in_order(filled: Daemon) -> None:
    asked = b"".join(
        b"GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n" % (path, extra)
        for path, extra in [
            (RAW.encode(), b""),
            (b"/readyz", b""),
            (RAW.encode() + b"&from=1000", b"Connection: close\r\n"),
        ]
    )
    with send(filled, asked) as connection:
        got = b"".join(iter(lambda: connection.recv(1 << 20), b""))
    whole = stored(filled)
    first, _, rest = got.partition(b"\r\n\r\n")
    size = int(first.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    assert size > 4 << 20
    assert rest[:size] == whole[:size]
    assert rest[size:].startswith(b"HTTP/1.1 200 OK\r\n")
    last = rest[size:].rpartition(b"\r\n\r\n")[2]
    assert len(last) > 4 << 20
    assert last in whole


def test_http_1_0(filled: Daemon) -> None:
    with send(filled, b"GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n" % RAW.encode()) as connection:
        got = b"".join(iter(lambda: connection.recv(1 << 20), b""))
    body = got.partition(b"\r\n\r\n")[2]
    assert len(body) > 4 << 20
    assert stored(filled).startswith(body)


def test_head_sends_no_body(filled: Daemon) -> None:
    request = b"HEAD %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % RAW.encode()
    with send(filled, request) as connection:
        got = b"".join(iter(lambda: connection.recv(1 << 20), b""))
    assert got.startswith(b"HTTP/1.1 200 OK\r\n")
    assert got.endswith(b"\r\n\r\n")


def test_a_client_that_reads_nothing_costs_no_memory_and_is_disconnected(filled: Daemon) -> None:
    before = filled.rss_bytes()
    request = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % RAW.encode()
    stalled = [send(filled, request) for _ in range(20)]
    for connection in stalled:
        assert connection.recv(1000)
    assert filled.rss_bytes() - before < 4 << 20
    wait_for_connections(filled, 0)  # after idle-timeout
    for connection in stalled:
        connection.close()
    again = http.client.HTTPConnection(filled.http, timeout=HANG_S)
    again.request("GET", RAW)
    assert len(again.getresponse().read()) > 4 << 20
    again.close()


def test_a_client_that_leaves_is_forgotten(filled: Daemon) -> None:
    request = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % RAW.encode()
    with send(filled, request) as connection:
        assert connection.recv(1000)
        wait_for_connections(filled, 1)
    wait_for_connections(filled, 0)
    assert "Traceback" not in filled.log


def test_a_stop_does_not_wait_for_one_that_stalls(filled: Daemon) -> None:
    request = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % RAW.encode()
    with send(filled, request) as connection:
        assert connection.recv(1000)
        assert filled.stop() == 0
    assert "Traceback" not in filled.log
