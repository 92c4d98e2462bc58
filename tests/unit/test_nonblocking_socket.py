"""A connection that never waits: what it takes and gives when the other side does its worst."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from logd.client.nonblocking_socket import NonblockingSocket
from logd.errors import Busy
from logd.wire import commands
from logd.wire.addresses import ConnectionLost
from logd.wire.commands import Pushed
from logd.wire.requests import Push


@pytest.fixture
def ends() -> Iterator[tuple[NonblockingSocket, socket.socket]]:
    """A link, and the socket at its other end."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
    far.settimeout(10)
    link = NonblockingSocket(near, "the other end", 10.0)
    with far:
        yield link, far
    link.close()


def push(body: bytes) -> commands.Command[Pushed]:
    return commands.push(Push("app", body))


def taken(link: NonblockingSocket) -> list[object]:
    """What the next bytes to arrive make; waits for them, or for the end."""
    link._socket.settimeout(10)
    link._socket.recv(1, socket.MSG_PEEK)
    link._socket.setblocking(False)
    return link.take_in()


def test_answers_and_errors_in_order(ends: tuple[NonblockingSocket, socket.socket]) -> None:
    link, far = ends
    for n in range(3):
        link.send(push(b"%d\n" % n))
    assert link._out
    link.push_out()
    assert not link._out
    link.push_out()
    assert far.recv(1000) == b"PUSH app 2\r\n0\nPUSH app 2\r\n1\nPUSH app 2\r\n2\n"
    assert link.take_in() == []
    far.sendall(b"OK 0 1\r\nERR busy wait\r\nOK")
    answers = taken(link)
    while len(answers) < 2:
        answers += taken(link)
    first, second = answers
    assert first == Pushed(0, 1)
    assert isinstance(second, Busy)
    assert link.take_in() == []
    far.sendall(b" 1 1\r\n")
    assert taken(link) == [Pushed(1, 1)]


def test_a_socket_that_takes_little_at_a_time(
    ends: tuple[NonblockingSocket, socket.socket],
) -> None:
    link, far = ends
    bodies = [bytes([65 + n]) * 999_999 + b"\n" for n in range(20)]
    for body in bodies:
        link.send(push(body))
    wanted = b"".join(b"PUSH app 1000000\r\n" + body for body in bodies)
    got = bytearray()
    link.push_out()
    assert link._out
    while len(got) < len(wanted):
        got += far.recv(70_001)
        link.push_out()
    assert got == wanted
    assert not link._out


def test_what_was_said_before_the_end_comes_first(
    ends: tuple[NonblockingSocket, socket.socket],
) -> None:
    link, far = ends
    link.send(push(b"a\n"))
    link.send(push(b"b\n"))
    link.push_out()
    far.recv(1000)
    far.sendall(b"OK 0 1\r\nOK 1")
    far.shutdown(socket.SHUT_WR)
    assert taken(link) == [Pushed(0, 1)]
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="it closed the connection"):
            taken(link)


def test_a_reset(ends: tuple[NonblockingSocket, socket.socket]) -> None:
    link, far = ends
    link.send(push(b"a\n"))
    link.push_out()
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()

    def send_more() -> None:
        while True:  # the first to be sent may not notice yet
            link.send(push(b"b\n"))
            link.push_out()
            link.take_in()

    with pytest.raises(ConnectionLost, match="the other end"):
        send_more()
    assert not link._out


def test_a_send_that_fails_leaves_what_was_said(
    ends: tuple[NonblockingSocket, socket.socket],
) -> None:
    link, far = ends
    link.send(push(b"a\n"))
    link.push_out()
    far.recv(1000)
    far.sendall(b"ERR busy go away\r\n")
    link._socket.shutdown(socket.SHUT_WR)
    link.send(push(b"b\n"))
    link.push_out()
    assert not link._out
    (answer,) = taken(link)
    assert isinstance(answer, Busy)
    with pytest.raises(ConnectionLost):
        link.take_in()


@pytest.mark.parametrize(
    "garbage", [b"HTTP/1.1 400\r\n", b"OK\r\n", b"TEXT 0\r\n", b"x" * 5000, b"OK 7 1\r\nOK 8 1\r\n"]
)
def test_nothing_is_believed_behind_garbage(
    ends: tuple[NonblockingSocket, socket.socket], garbage: bytes
) -> None:
    """An answer too many would be taken for that of another command."""
    link, far = ends
    link.send(push(b"a\n"))
    link.push_out()
    far.sendall(garbage)
    answers: list[object] = []

    def take_all() -> None:
        while not link.has_ended:
            answers.extend(taken(link))
        link.take_in()

    with pytest.raises(ConnectionLost, match="it does not speak"):
        take_all()
    assert len(answers) <= 1
    link.send(push(b"b\n"))
    far.sendall(b"OK 9 1\r\n")
    with pytest.raises(ConnectionLost, match="it does not speak"):
        taken(link)
