"""Small reads that are answered without the parser: no reply depends on how the bytes are divided.

Real connections on an event loop that runs one turn at a time, so that each piece is received by
itself.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterable
from pathlib import Path

import pytest

from logd.access.access_file import Access, Grant, token_sum
from logd.net.connection import Connection
from logd.storage import single_read
from tests.unit.following import Scene

READ = b"READ app 0 1\r\n"  # as long as a body of 14 bytes
SESSIONS = {
    "a one-line message": READ + b"PUSH app\r\n" + READ + READ + b"PING\r\n",
    "a body": READ + b"PUSH app 14\r\n" + READ + READ + b"PING\r\n",
    "a body with options": READ + b"PUSH app 14 id=p:0\r\n" + READ + READ,
    "a body that is dropped": READ + b"PUSH app 14 enc=none\r\n" + READ + READ,
    "a line that is dropped": READ + b"PUSH ..\r\n" + READ + READ,
    "a command line": READ + b"READ app 0 1 " + b"wait=0\r\n" + READ,
    "an invalid command": READ + READ[:-2] + READ + READ,
    "pushes": READ + b"PUSH app 2\r\nx\n" * 2 + READ + b"PUSH app 2\r\ny\n" + READ,
}


def replies(directory: Path, pieces: Iterable[bytes], **tokens: list[str]) -> bytes:
    """What a new daemon sends, if it receives one piece at a time."""
    with Scene(directory, tokens=bool(tokens)) as scene:
        if tokens:
            grants = {
                token_sum(name.encode()): Grant(
                    name, tuple(topics), (), (), token_sum(name.encode())
                )
                for name, topics in tokens.items()
            }
            scene.service.access = Access(grants, {})
        theirs, ours = socket.socketpair()
        ours.setblocking(False)
        with ours:
            theirs.setblocking(False)
            connection = scene.loop.connect_accepted_socket(
                lambda: Connection(scene.connections), theirs
            )
            scene.loop.run_until_complete(connection)
            got = b""
            for piece in pieces:
                ours.send(piece)
                scene.settle()
                got += _received(ours)
        scene.settle()
    return got


def _received(connection: socket.socket) -> bytes:
    got = b""
    try:
        while piece := connection.recv(1 << 16):
            got += piece
    except BlockingIOError:
        pass
    return got


@pytest.mark.parametrize("name", SESSIONS)
def test_every_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    session = SESSIONS[name]
    with monkeypatch.context() as patch:
        patch.setattr(single_read, "IS_AVAILABLE", False)
        expected = replies(tmp_path / "usual", [session])
    assert expected.count(b"BATCHES ") >= 2
    lines = session.splitlines(keepends=True)
    assert replies(tmp_path / "lines", lines) == expected
    for at in range(len(READ), len(session)):
        pieces = [session[: len(READ)], session[len(READ) : at], session[at:]]
        assert replies(tmp_path / str(at), filter(None, pieces)) == expected, pieces


def test_the_fast_path_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not single_read.IS_AVAILABLE:
        pytest.skip("no compiler where this was installed")
    found = []

    def one_read(data: bytes, prefix: bytes) -> None:
        found.append(data)

    monkeypatch.setattr(single_read, "one_read", one_read)
    assert replies(tmp_path, [READ] * 3).count(b"BATCHES ") == 3
    assert found == [READ] * 2


@pytest.mark.parametrize(
    "pieces",
    [
        [b"AUTH all\r\n", READ, b"AUTH none\r\n", READ],
        [b"AUTH all\r\n", READ + b"AUTH none\r\n", READ],
        [b"AUTH all\r\n", READ, READ + b"AUTH none\r\n" + READ, READ],
        [b"AUTH all\r\n" + READ + b"AUTH none\r\nREAD other 0 1\r\n", READ],
        [b"AUTH none\r\n", READ, READ],
    ],
)
def test_another_token_has_its_own_rights(tmp_path: Path, pieces: list[bytes]) -> None:
    got = replies(tmp_path, pieces, all=["*"], none=["other"])
    assert got.rpartition(b"ERR ")[2].startswith(b"forbidden ")
    for before, after in itertools.pairwise(got.split(b"ERR forbidden ")):
        assert b"BATCHES " not in after, before


def test_the_limit_of_a_reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Scene(tmp_path, max_reply_bytes=100) as scene:
        connection = Connection(scene.connections)
        connection.socket_fd = 1
        assert connection._reads_of("app") is None
    with Scene(tmp_path / "large") as scene:
        connection = Connection(scene.connections)
        connection.socket_fd = 1
        assert (connection._reads_of("app") is not None) == single_read.IS_AVAILABLE
