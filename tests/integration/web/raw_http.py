"""HTTP requests and responses as bytes: no client library would send what the tests send."""

from __future__ import annotations

import re
import socket
import time
from contextlib import suppress

import pytest

from logd import Client
from tests.support.daemon import HANG_S, Daemon

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
PUSH = b"POST /topics/app HTTP/1.1\r\nHost: localhost\r\n"
LOG = b"POST /log HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def dial(daemon: Daemon) -> socket.socket:
    host, _, port = daemon.http.rpartition(":")
    return socket.create_connection((host, int(port)), HANG_S)


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


def send_until_cut(connection: socket.socket, piece: bytes) -> None:
    give_up_s = time.monotonic() + HANG_S
    while time.monotonic() < give_up_s:
        try:
            connection.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            return
    pytest.fail("it may go on for ever")
