"""An etcd that is scripted: one answer per request, as raw bytes, or none."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.support.daemon import HANG_S
from tests.support.listener import Listener

Answer = bytes | Callable[[socket.socket], None]
CLUSTER = "17"


def reply(value: object, status: int = 200) -> bytes:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return b"HTTP/1.1 %d Any\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


def header(revision: int = 5, cluster: str = CLUSTER) -> dict[str, str]:
    return {"cluster_id": cluster, "member_id": "1", "revision": str(revision), "raft_term": "2"}


def error(code: int, message: str, status: int) -> bytes:
    return reply({"error": message, "message": message, "code": code}, status)


def closes(connection: socket.socket) -> None:
    """No answer: the connection ends."""
    connection.shutdown(socket.SHUT_RDWR)


def hangs(connection: socket.socket) -> None:
    """No answer, for as long as the client waits."""
    connection.settimeout(HANG_S)
    connection.recv(1)


def drips(connection: socket.socket) -> None:
    """A byte now and then: each arrives in time, the whole never does."""
    stopped = threading.Event()
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    with suppress(OSError):
        while not stopped.wait(0.02):
            connection.sendall(b" ")


def floods(connection: socket.socket) -> None:
    """An answer without an end."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    with suppress(OSError):
        while True:
            connection.sendall(b" " * 65536)


class FakeEtcd(Listener):
    """Gives the next answer to each request; the last one is given again and again."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.requests: list[tuple[str, dict[str, Any], str]] = []  # path, body, token
        self.connections = 0
        super().__init__()

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def paths(self) -> list[str]:
        return [path for path, _, _ in self.requests]

    def _serve(self, connection: socket.socket) -> None:
        self.connections += 1
        data = b""
        while received := connection.recv(65536):
            data += received
            head, end, body = data.partition(b"\r\n\r\n")
            length = re.search(rb"Content-Length: (\d+)", head)
            if not end or length is None or len(body) < int(length[1]):
                continue
            token = re.search(rb"Authorization: (\S+)", head)
            path = head.split()[1].decode()
            self.requests.append((path, json.loads(body), token[1].decode() if token else ""))
            data = b""
            answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
            if isinstance(answer, bytes):
                connection.sendall(answer)
            else:
                answer(connection)
                return
