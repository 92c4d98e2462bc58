"""The client against a peer made of canned replies: what it sends, what it makes of an answer."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from logd.client.client import Client
from logd.errors import BadRequest
from logd.wire import commands, replies
from logd.wire.addresses import parse_address

HANG_UP = b"hang up"


class Peer:
    """Answers each command line it receives with the next of its replies, in a thread."""

    def __init__(self, *replies: bytes, family: socket.AddressFamily = socket.AF_INET) -> None:
        host = "127.0.0.1" if family == socket.AF_INET else "::1"
        self._listener = socket.create_server((host, 0), family=family)
        port = self._listener.getsockname()[1]
        self.address = f"{host}:{port}" if family == socket.AF_INET else f"[{host}]:{port}"
        self.lines: queue.Queue[bytes] = queue.Queue()
        self.bodies: queue.Queue[bytes] = queue.Queue()
        self._replies = list(replies)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        with suppress(OSError):  # a client that goes away, or never came
            self._talk(self._listener.accept()[0])

    def _talk(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as commands:
            for reply in self._replies:
                if reply == HANG_UP:
                    return
                line = commands.readline()
                if not line:
                    return
                self.lines.put(line)
                if line.startswith(b"PUSH "):
                    self.bodies.put(commands.read(int(line.split()[2])))
                connection.sendall(reply)
            commands.read()  # until the client ends it


Serve = Callable[..., Peer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    peers: list[Peer] = []

    def start(*replies: bytes, family: socket.AddressFamily = socket.AF_INET) -> Peer:
        peers.append(Peer(*replies, family=family))
        return peers[-1]

    yield start
    for peer in peers:
        peer.close()


def text(body: bytes) -> bytes:
    return b"TEXT %d\r\n%s" % (len(body), body)


def test_pushes_carry_any_bytes_and_their_sum(serve: Serve) -> None:
    peer = serve(b"OK 0 1\r\n", b"OK 1 2\r\n")
    with Client(peer.address) as client:
        client.push("app", [b"plain"])
        client.push("app", [b"two\nlines", b""])
    assert (peer.bodies.get(), peer.bodies.get()) == (b"plain\n", b"9 0\ntwo\nlines")
    assert b"sum=" in peer.lines.get()
    assert b"enc=sized" in peer.lines.get()


def test_replies_can_be_taken_later_and_come_in_order(serve: Serve) -> None:
    peer = serve(b"", b"", b"BATCHES 1 0 0\r\nBATCHES 2 0 0\r\nBATCHES 3 2 5\r\nhello")
    with Client(peer.address) as client:
        for offset in (1, 2, 3):
            client.send(commands.tail("app", offset))
        assert client.in_flight == 3
        assert [client.receive().offset for _ in range(3)] == [1, 2, 3]
        assert client.in_flight == 0


def test_a_command_does_not_take_a_reply_that_is_due_to_another(serve: Serve) -> None:
    peer = serve(b"BATCHES 1 0 0\r\n")
    with Client(peer.address) as client:
        client.send(commands.tail("app", 1))
        with pytest.raises(RuntimeError, match="1 reply still due"):
            client.ping()


def test_ipv6(serve: Serve) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        peer = serve(b"OK\r\n", family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 address here")
    with Client(peer.address) as client:
        client.ping()


def test_other_words_are_checked_too(serve: Serve) -> None:
    peer = serve(b"OK\r\n")
    with Client(peer.address) as client:
        with pytest.raises(BadRequest):
            client.read("app", "first 1\r\nPING")
        with pytest.raises(BadRequest):
            client.read("app", "\udcff")
        with pytest.raises(BadRequest):
            client.topics("* \r\nPING")
        with pytest.raises(BadRequest, match="at least one message"):
            client.push("app", [])
        client.ping()
    assert peer.lines.get() == b"PING\r\n"


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("127.0.0.1:1774", ("127.0.0.1", 1774)),
        ("[::1]:99", ("::1", 99)),
        ("[::1]", ("::1", 1774)),
        ("logs.example", ("logs.example", 1774)),
    ],
)
def test_addresses(address: str, parsed: tuple[str, int]) -> None:
    assert parse_address(address) == parsed


@pytest.mark.parametrize(
    "address", ["", ":1", "::1", "a:b", "a:", "a:0", "a:65536", "a b:1", "[a:1"]
)
def test_no_addresses(address: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        parse_address(address)


def test_the_largest_reply_is_stated() -> None:
    assert replies.MAX_REPLY_BYTES == 1 << 30
