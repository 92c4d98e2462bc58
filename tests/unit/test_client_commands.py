"""The client against a peer made of canned replies: what it sends, what it makes of an answer."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from logd.batch import body_sum
from logd.client.client import Client
from logd.errors import BadRequest, BadTopic, Busy, LogdError, NotFound, OutOfRange, TooLarge
from logd.wire import commands, replies
from logd.wire.addresses import ConnectionLost, parse_address
from logd.wire.commands import CursorInfo, PartitionInfo, Pushed, TopicInfo
from logd.wire.requests import At
from tests.unit.fake_daemon import nobody

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


SAY: list[tuple[Callable[[Client], object], bytes, bytes, object]] = [
    (lambda c: c.ping(), b"PING\r\n", b"OK\r\n", None),
    (lambda c: c.help(), b"HELP\r\n", text(b"words\n"), "words\n"),
    (lambda c: c.stats(), b"STATS\r\n", text(b"a: 1\nb: x: y\n"), {"a": "1", "b": "x: y"}),
    (lambda c: c.stats("app"), b"STATS app\r\n", text(b"next: 3\n"), {"next": "3"}),
    (lambda c: c.config(), b"CONFIG\r\n", text(b"fsync: always\n"), {"fsync": "always"}),
    (lambda c: c.topics(), b"TOPICS *\r\n", text(b"app 1 2 3 4\n"), [TopicInfo("app", 1, 2, 3, 4)]),
    (lambda c: c.topics("a?"), b"TOPICS a?\r\n", text(b""), []),
    (
        lambda c: c.partitions("app"),
        b"PARTITIONS app\r\n",
        text(b"0 5 99 17 18\n5 6 7 18 19\n"),
        [PartitionInfo(0, 5, 99, 17, 18), PartitionInfo(5, 6, 7, 18, 19)],
    ),
    (lambda c: c.read("app", 7, 2), b"READ app 7 2\r\n", b"BATCHES 7 0 0\r\n", (7, 0, b"")),
    (lambda c: c.read("app", At(9), 2), b"READ app @9 2\r\n", b"BATCHES 7 1 1\r\na", (7, 1, b"a")),
    (
        lambda c: c.read("app", "first", 1, max_bytes=5, wait_ms=99_000),
        b"READ app first 1 bytes=5 wait=60000\r\n",
        b"BATCHES 0 0 0\r\n",
        (0, 0, b""),
    ),
    (lambda c: c.tail("app", 3), b"TAIL app 3\r\n", b"BATCHES 4 3 1\r\nx", (4, 3, b"x")),
    (
        lambda c: c.push("app", [b"a", b"b"]),
        b"PUSH app 4 sum=%s\r\n" % body_sum(b"a\nb\n").encode(),
        b"OK 8 2\r\n",
        Pushed(8, 2),
    ),
    (lambda c: c.cursor("app", "me"), b"CURSOR app me\r\n", b"OK 5 3\r\n", CursorInfo(5, 3)),
    (lambda c: c.commit("app", "me", 7), b"COMMIT app me 7\r\n", b"OK 7 1\r\n", CursorInfo(7, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("call", "line", "reply", "result"), SAY)
def test_each_command_is_one_line_and_one_answer(
    serve: Serve, call: Callable[[Client], object], line: bytes, reply: bytes, result: object
) -> None:
    peer = serve(reply)
    with Client(peer.address) as client:
        assert call(client) == result
    assert peer.lines.get() == line


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


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        (b"ERR not-found no topic app\r\n", NotFound, "no topic app"),
        (b"ERR out-of-range first=3 next=9\r\n", OutOfRange, "first=3 next=9"),
        (b"ERR busy later\r\n", Busy, "later"),
        (b"ERR something-new of the future\r\n", LogdError, "something-new of the future"),
    ],
)
def test_what_is_refused_raises_and_the_connection_goes_on(
    serve: Serve, line: bytes, error: type[LogdError], message: str
) -> None:
    peer = serve(line, b"OK\r\n")
    with Client(peer.address) as client:
        with pytest.raises(error, match=message):
            client.read("app")
        client.ping()


def test_an_error_that_closes_ends_the_client(serve: Serve) -> None:
    peer = serve(b"ERR too-large a batch is at most 8 bytes\r\n")
    with Client(peer.address) as client:
        with pytest.raises(TooLarge):
            client.push("app", [b"x" * 100])
        with pytest.raises(ConnectionLost, match="make a new Client"):
            client.ping()


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (HANG_UP, "closed the connection|reset"),
        (b"BATCHES 0 1 10\r\nabc", "middle of a reply|reset"),
        (b"HTTP/1.1 400 Bad Request\r\n", "is an HTTP port; give the TCP port"),
        (b"\x15\x03\x03\x00\x02\x02\x50", "speaks TLS; write tls://"),
        (b"220 mail.example ESMTP\r\n", "is not logd .*check the address"),
        (b"TEXT 5\r\nhello", "answered TEXT"),
        (b"BATCHES 0 1 1073741825\r\n", "announced a reply of 1073741825 bytes"),
        (b"x" * 9000, "no end of line"),
    ],
)
def test_a_broken_answer_names_the_address_and_ends_the_client(
    serve: Serve, reply: bytes, says: str
) -> None:
    peer = serve(reply, HANG_UP)
    with Client(peer.address) as client:
        with pytest.raises(ConnectionLost, match=says) as caught:
            client.read("app")
        assert peer.address in str(caught.value)
        with pytest.raises(ConnectionLost):
            client.ping()


def test_nobody_there() -> None:
    with nobody() as address:
        said = f"no logd answers at {address}.*logd --data-dir"
        with pytest.raises(ConnectionLost, match=said):
            Client(address)


def test_a_name_that_is_none() -> None:
    with pytest.raises(ConnectionLost, match="no logd answers"):
        Client("a..b:1774")


def test_silence_is_a_lost_connection(serve: Serve) -> None:
    peer = serve(b"")
    with (
        Client(peer.address, timeout_s=0.3) as client,  # to connect takes some of it, too
        pytest.raises(ConnectionLost, match="did not answer in time"),
    ):
        client.ping()


def test_a_large_body_arrives_whole(serve: Serve) -> None:
    body = bytes(range(256)) * 20_000
    peer = serve(b"BATCHES 0 1 %d\r\n%s" % (len(body), body), b"OK\r\n")
    with Client(peer.address) as client:
        assert client.read("app").data == body
        client.ping()


def test_a_large_body_is_sent_whole(serve: Serve) -> None:
    message = bytes(range(256)) * 20_000
    peer = serve(b"OK 0 1\r\n")
    with Client(peer.address) as client:
        client.push("app", [message])
    assert peer.bodies.get() == b"%d\n%s" % (len(message), message)


def test_ipv6(serve: Serve) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        peer = serve(b"OK\r\n", family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 address here")
    with Client(peer.address) as client:
        client.ping()


@pytest.mark.parametrize("topic", ["", "a b", "a\r\nPUSH x 1", "../x", "ä", "\udcff", "a" * 129])
def test_a_name_that_could_be_a_second_command_is_not_sent(serve: Serve, topic: str) -> None:
    peer = serve(b"OK\r\n")
    with Client(peer.address) as client:
        for call in (client.read, client.stats, client.partitions):
            with pytest.raises(BadTopic):
                call(topic)
        with pytest.raises(BadTopic):
            client.push(topic, [b"x"])
        with pytest.raises(BadTopic):
            client.tail(topic, 1)
        client.ping()
    assert peer.lines.get() == b"PING\r\n"


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
