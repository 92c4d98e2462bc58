"""Sixteen connections push to one topic at once: offsets, order, and who gets which answer."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
import zstandard

from logd.batch import body_sum
from tests.support.daemon import HANG_S, Daemon, batches, dial, messages, push, running

CONNECTIONS = 16
PUSHES = 150


class Sent(NamedTuple):
    data: bytes
    messages: list[bytes]


def pushed(connection: int, i: int) -> Sent:
    """The i-th push of a connection: four in a row of each kind, and each says whose it is."""
    name = b"%d/%d" % (connection, i)
    kind = (i // 4 + connection) % 8
    if kind == 0:
        return Sent(b"PUSH app\r\n%b\r\n" % name, [name])
    if kind == 1:
        large = name + b"x" * (20_000 + 1000 * (i % 50))
        return Sent(push("app", large + b"\n"), [large])
    if kind == 2:
        several = [b"%b/%d" % (name, k) for k in range(5)]
        return Sent(push("app", b"\n".join(several) + b"\n", "count=5"), several)
    if kind == 3:
        body = b"%d 1\n%b\n" % (len(name), name)
        return Sent(push("app", body, f"enc=sized sum={body_sum(body)}"), [name, b"\n"])
    if kind == 4:
        return Sent(push("app", name + b"\n", f"id=c{connection}-{i}:0"), [name])
    if kind == 5:
        return Sent(push("app", zstandard.compress(name + b"\n"), "enc=lines+zstd"), [name])
    if kind == 6:
        several = [b"%b/%d" % (name, k) for k in range(3)]
        return Sent(push("app", b"\n".join(several) + b"\n"), several)
    return Sent(push("app", name + b"\n"), [name])


async def push_all(server: Daemon, connection: int) -> list[tuple[int, list[bytes]]]:
    """Everything of one connection, pipelined; where each push ended up, in the order sent."""
    sent = [pushed(connection, i) for i in range(PUSHES)]
    async with dial(server) as line:
        sending = asyncio.ensure_future(line.send(b"".join(one.data for one in sent)))
        placed = []
        for one in sent:
            word, offset, count = (await line.read_line()).split()
            assert (word, int(count)) == (b"OK", len(one.messages))
            placed.append((int(offset), one.messages))
        await sending
    return placed


@pytest.mark.parametrize("partition_bytes", [100_000, 1 << 30], ids=["rolling", "one partition"])
@pytest.mark.parametrize("fsync", ["never", "interval", "batches", "always"])
async def test_sixteen_connections(tmp_path: Path, fsync: str, partition_bytes: int) -> None:
    flags = {"fsync": fsync, "fsync_batches": 20, "partition_bytes": partition_bytes}
    async with running(tmp_path, **flags) as server:
        placed = await asyncio.gather(*(push_all(server, c) for c in range(CONNECTIONS)))
        stored = messages(server.stored("app"))
        taken = set[int]()
        for own in placed:
            offsets = [offset for offset, _ in own]
            assert offsets == sorted(offsets), "each connection's own order is kept"
            for offset, some in own:
                assert stored[offset : offset + len(some)] == some
                taken.update(range(offset, offset + len(some)))
        assert taken == set(range(len(stored))), "no offset twice, none missing"
        assert (len(server.log_files("app")) > 5) == (partition_bytes == 100_000)
        await read_some(server, stored)


async def read_some(server: Daemon, stored: list[bytes]) -> None:
    """Single messages, wherever they lie in the batches that were made of them."""
    async with dial(server) as line:
        offsets = range(0, len(stored), 37)
        await line.send(b"".join(b"READ app %d 1\r\n" % offset for offset in offsets))
        for offset in offsets:
            reply = await line.read_reply()
            (first, *_) = batches(reply.body)
            assert first.messages[offset - first.header.offset] == stored[offset]
            assert reply.head == b"BATCHES %d %d %d" % (
                offset, first.header.next - offset, len(first.data)
            )  # fmt: skip


async def test_sixteen_connections_and_topics_of_their_own(tmp_path: Path) -> None:
    """Made at the same moment by the first push of each; one pushes to all of them as well."""

    async def push_to(server: Daemon, topics: list[str]) -> None:
        async with dial(server) as line:
            await line.send(b"".join(push(topic, topic.encode() + b"\n") for topic in topics * 50))
            for _ in topics * 50:
                assert (await line.read_line()).startswith(b"OK ")

    async with running(tmp_path) as server:
        names = [f"topic{i}" for i in range(CONNECTIONS)]
        await asyncio.gather(*(push_to(server, [name]) for name in names), push_to(server, names))
        for name in names:
            assert messages(server.stored(name)) == [name.encode()] * 100


def connected(server: Daemon) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    connection = socket.create_connection((host, int(port)), HANG_S)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 21)
    return connection


def answers(connection: socket.socket, count: int) -> int:
    """Takes so many lines from the server, or fewer if it ends; how many of them say OK."""
    with connection.makefile("rb") as lines:
        return sum(line.startswith(b"OK ") for line in islice(lines, count))


@pytest.fixture
def quick_directory() -> Iterator[Path]:
    """In memory, if there is such a place: a sync takes no time there."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def test_two_hundred_thousand_pushes_in_one_turn(quick_directory: Path) -> None:
    """They gather in the sockets while the daemon stands still; then it finds them all at once."""
    each = 7000
    with running(quick_directory, fsync="always") as server, ExitStack() as stack:
        lines = [stack.enter_context(connected(server)) for _ in range(30)]
        for _ in range(300):
            lines[0].sendall(push("app", b"x\n"))
            assert answers(lines[0], 1) == 1
        os.kill(server.pid, signal.SIGSTOP)
        for line in lines:
            line.sendall(push("app", b"x\n", "count=1") * each)
        os.kill(server.pid, signal.SIGCONT)
        for line in lines:
            assert answers(line, each) == each
        assert len(messages(server.stored("app"))) == 300 + each * len(lines)


async def test_one_connection_pushes_to_several_topics_without_end(tmp_path: Path) -> None:
    """Whichever topic answers last, what was on its way is forgotten once all is answered: the
    connection would stop being read from for good when 2 MiB had come to be remembered."""
    async with running(tmp_path) as server, dial(server) as line:
        body = b"x" * 999 + b"\n"
        once = b"".join(push(f"topic-{n % 3}", body) for n in range(40))  # ends in the first topic
        for turn in range(120):
            await line.send(once)
            offsets = [int((await line.read_line()).split()[1]) for _ in range(40)]
            assert offsets == [turn * len(range(n % 3, 40, 3)) + n // 3 for n in range(40)]
