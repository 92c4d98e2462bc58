"""Client, Writer and Reader against a real daemon."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from logd import Client, Message, Reader, Writer
from logd.errors import ChecksumMismatch, NotFound, OutOfRange, TooLarge
from logd.wire import commands
from logd.wire.commands import Pushed
from logd.wire.requests import At, Push
from tests.support.daemon import Daemon, running

ANY_BYTES = [b"", b"a", b"two\nlines", b"\r\nPUSH app 5\r\n", bytes(range(256)), b"x" * 300_000]


def test_every_command(daemon: Daemon) -> None:
    with Client(daemon.address) as client:
        client.ping()
        assert client.topics() == []
        assert client.push("app", [b"one", b"two"]) == Pushed(0, 2)
        assert client.push("app", [b"three"]) == Pushed(2, 1)
        read = client.read("app", 1, 1)
        assert (read.offset, read.messages) == (1, 1)
        assert read.data.startswith(b"BATCH 0 2 8 ")
        assert client.tail("app", 1).offset == 2
        assert client.read("app", "next") == (3, 0, bytearray())
        (topic,) = client.topics("a*")
        assert (topic.topic, topic.first, topic.next, topic.partitions) == ("app", 0, 3, 1)
        (partition,) = client.partitions("app")
        assert (partition.first, partition.next, partition.bytes) == (0, 3, topic.bytes)
        assert client.stats("app")["next"] == "3"
        assert client.stats()["topics"] == "1"
        assert client.config()["fsync"]
        assert "PUSH" in client.help()


def test_what_is_refused_leaves_the_connection_usable(daemon: Daemon) -> None:
    with Client(daemon.address) as client:
        with pytest.raises(NotFound):
            client.read("app")
        with pytest.raises(ChecksumMismatch):
            client.push_batch(Push("app", b"body\n", sum="0" * 16))
        client.push("app", [b"x"])
        with pytest.raises(OutOfRange, match="first=0 next=1"):
            client.read("app", 2)
        client.ping()


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("batch_bytes", [1, 1000, 1 << 20])
def test_any_bytes_come_back(daemon: Daemon, batch_bytes: int, compress: bool) -> None:
    messages = ANY_BYTES * 3
    with Writer(daemon.address, "app", batch_bytes=batch_bytes, compress=compress) as writer:
        writer.write_many(messages)
    with Reader(daemon.address, "app") as reader:
        assert [(m.offset, m.value) for m in reader] == list(enumerate(messages))


def test_many_messages_in_many_replies(daemon: Daemon) -> None:
    messages = [b"message %d" % n for n in range(100_000)]
    with Writer(daemon.address, "app", batch_bytes=4096) as writer:
        for message in messages:
            writer.write(message)
    assert (writer.acknowledged, writer.next_offset) == (100_000, 100_000)
    with Reader(daemon.address, "app", start=77, limit=90_000, read_bytes=100_000) as reader:
        assert [m.value for m in reader] == messages[77:90_077]
    with Reader(daemon.address, "app", tail=5, read_bytes=1) as reader:
        assert [m.value for m in reader] == messages[-5:]
    with Reader(daemon.address, "app", start=99_000, until=99_003) as reader:
        assert [m.offset for m in reader] == [99_000, 99_001, 99_002]


def test_starting_at_a_time(daemon: Daemon) -> None:
    with Client(daemon.address) as client:
        client.push("app", [b"x"])
        (message,) = Reader(client, "app")
        assert list(Reader(client, "app", start=At(message.time_ms))) == [message]
        assert list(Reader(client, "app", start=At(message.time_ms + 1_000_000))) == []


def test_a_follower_gets_what_is_written_later(daemon: Daemon) -> None:
    with Client(daemon.address) as client:
        client.push("app", [b"early"])
        with Reader(daemon.address, "app", follow=True) as reader:
            following = iter(reader)
            assert next(following).value == b"early"
            for n in range(5):
                client.push("app", [b"late %d" % n])
                message: Message = next(following)
                assert (message.offset, message.value) == (n + 1, b"late %d" % n)


def test_a_message_above_the_limit_is_refused_with_the_reason(daemon: Daemon) -> None:
    with Client(daemon.address) as client:
        limit = int(client.config()["max-batch-bytes"])
    writer = Writer(daemon.address, "app", linger_s=None)
    writer.write(b"small")
    writer.write(b"x" * (limit + 1))
    with pytest.raises(TooLarge):
        writer.close()
    assert writer.acknowledged == 1


def test_replies_can_be_taken_later_and_come_in_order(daemon: Daemon) -> None:
    with Client(daemon.address) as client:
        client.push("app", [b"0", b"1", b"2"])
        for messages in (1, 2, 3):
            client.send(commands.tail("app", messages))
        assert client.in_flight == 3
        with pytest.raises(RuntimeError, match="3 replies still due"):
            client.ping()
        assert [client.receive().offset for _ in range(3)] == [2, 1, 0]
        assert client.in_flight == 0


def test_ipv6(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 address here")
    with running(tmp_path, host="[::1]:0") as daemon, Client(daemon.address) as client:
        client.ping()
