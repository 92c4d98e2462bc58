"""Limits of what one client may use, and files that no client can reach."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard

from tests.support.daemon import HANG_S, Daemon, Line, dial, messages, push, running

HEAP_BYTES = 64 << 20


async def test_topics(tmp_path: Path) -> None:
    async with running(tmp_path, max_topics=2) as server:
        async with dial(server) as line:
            await line.send(
                push("a", b"x\n") + push("b", b"x\n") + push("c", b"x\n") + b"PUSH d\nx\n"
            )
            await line.expect(b"OK 0 1\r\nOK 0 1\r\n")
            for _ in range(2):
                assert (await line.read_line()).startswith(b"ERR topic-limit ")
            assert await line.refused(push("c", b"x\n", "id=p:1")) == "topic-limit"
            await line.send(push("a", b"x\n") * 3)
            await line.expect(b"OK 1 1\r\nOK 2 1\r\nOK 3 1\r\n")
        server.stop()
        server.start()
        async with dial(server) as line:
            assert await line.refused(push("c", b"x\n")) == "topic-limit"
            assert (await line.ask(push("b", b"x\n"))).head == b"OK 1 1"
        assert sorted(path.name for path in (server.data_dir / "topics").iterdir()) == ["a", "b"]


async def test_connections(tmp_path: Path) -> None:
    async with running(tmp_path, max_connections=3) as server, AsyncExitStack() as stack:
        lines = [await stack.enter_async_context(dial(server)) for _ in range(3)]
        for line in lines:
            await line.send(b"PING\r\n")
            await line.expect(b"OK\r\n")
        for _ in range(3):
            async with dial(server) as fourth:
                assert (await fourth.read_line()).startswith(b"ERR busy ")
                await fourth.expect_end()
        await lines[0].send(b"CLOSE\r\n")
        await lines[0].expect(b"OK\r\n")
        await lines[0].expect_end()
        await lines[1].until("connections", 2)
        async with dial(server) as fourth:
            await fourth.send(b"PING\r\n")
            await fourth.expect(b"OK\r\n")


async def test_unfinished_pushes_share_a_budget(tmp_path: Path) -> None:
    settings = {"max_batch_bytes": 1000, "max_unfinished_bytes": 2000}
    body = b"x" * 899 + b"\n"
    async with running(tmp_path, **settings) as server, AsyncExitStack() as stack:
        first, second, third = [await stack.enter_async_context(dial(server)) for _ in range(3)]
        for line in (first, second):
            await line.send(b"PUSH app 900 count=1\r\n" + body[:1])
        await until_busy(third, push("app", body, "count=1"))
        await third.send(b"PING\r\n")
        await third.expect(b"OK\r\n")
        assert await third.refused(b"PUSH app 900 count=1\r\n" + body) == "busy"
        await third.send(push("app", b"small enough\n", "count=1"))
        assert (await third.read_line()).startswith(b"OK ")
        await first.send(body[1:])
        assert (await first.read_line()).startswith(b"OK ")
        assert (await third.ask(push("app", body, "count=1"))).head.startswith(b"OK ")
        second.reset()
        await first.until("connections", 2)
        for _ in range(5):
            await first.send(b"PUSH app 900 count=1\r\n")
            await third.send(b"PUSH app 900 count=1\r\n")
            for line in (first, third):
                assert (await line.ask(body)).head.startswith(b"OK ")


async def until_busy(line: Line, request: bytes) -> None:
    """Others' pushes arrive when they arrive: ask until they are there."""
    async with asyncio.timeout(HANG_S):
        while (await line.ask(request)).head.startswith(b"OK "):
            pass


@pytest.mark.alone
async def test_descriptors(tmp_path: Path) -> None:
    """With none left nothing new can be opened; what is open goes on, and nothing spins."""
    async with running(tmp_path, partition_bytes=1) as server, AsyncExitStack() as stack:
        line = await stack.enter_async_context(dial(server))
        await line.send(push("app", b"x\n") + push("quiet", b"x\n"))
        await line.expect(b"OK 0 1\r\nOK 0 1\r\n")
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (40, 40))
        async with AsyncExitStack() as flood:
            for _ in range(100):
                await flood.enter_async_context(dial(server))
            assert await line.refused(push("new", b"x\n")) == "io"
            assert await line.refused(push("app", b"y\n")) == "io"
            before_s = server.cpu_s()
            await line.send(b"READ quiet next 1 wait=1000\r\n")
            await line.expect(b"BATCHES 1 0 0\r\n")
            assert server.cpu_s() - before_s < 0.3
        await line.until("connections", 1)
        await line.send(push("new", b"x\n") + push("app", b"y\n") + b"READ app 0 9\r\n")
        await line.expect(b"OK 0 1\r\nOK 1 1\r\n")
        assert messages((await line.read_reply()).body) == [b"x", b"y"]


ENDS = {
    "in a large reply": b"READ big 0 1000\r\n" * 50,
    "while it waits": b"READ big next 1 wait=500\r\n",
    "in a push": b"PUSH big 5000000\r\nhalf",
    "in a line": b"PUSH big\r\nhalf",
    "in a compressed push": push("zstd", zstandard.compress(b"x\n" * 3_000_000), "enc=lines+zstd"),
    "in the first push to a topic": push("fresh", b"x\n") * 100,
    "at once": b"",
}


async def test_connections_that_break_off_leave_nothing_behind(tmp_path: Path) -> None:
    async with running(tmp_path) as server, dial(server) as other:
        for topic in ("big", "zstd", "fresh"):
            assert (await other.ask(push(topic, b"x" * 999_999 + b"\n"))).head == b"OK 0 1"
        await other.send(push("big", b"x" * 999_999 + b"\n") * 20)
        for _ in range(20):
            await other.read_line()
        before = server.descriptors()
        for request in list(ENDS.values()) * 3:
            async with dial(server) as line:
                await line.send(request)
                line.reset()
            async with dial(server) as line:
                await line.send(request)
        await other.until("connections", 1)
        async with asyncio.timeout(HANG_S):
            while server.descriptors() > before:
                await other.stat("connections")
        await other.send(push("fresh", b"y\n") + b"PING\r\n")
        assert (await other.read_line()).startswith(b"OK ")
        await other.expect(b"OK\r\n")


@pytest.mark.slow
async def test_lines_without_an_end_cost_little(tmp_path: Path) -> None:
    """A thousand connections that each send 60 KB of a message and never end it."""
    async with running(tmp_path, max_unfinished_bytes=8 << 20) as server, AsyncExitStack() as stack:
        other = await stack.enter_async_context(dial(server))
        await other.send(push("app", b"x\n"))
        await other.expect(b"OK 0 1\r\n")
        before = server.rss_bytes()
        lines = [await stack.enter_async_context(dial(server)) for _ in range(1000)]
        for line in lines:
            await line.send(b"PING\r\n")
            await line.expect(b"OK\r\n")
        connected = server.rss_bytes()
        print(f"a thousand connections: {(connected - before) / 1e6:.1f} MB")
        for line in lines:
            await line.send(b"PING\r\nPUSH app\r\n" + b"x" * 60_000)
        for line in lines:
            await line.expect(b"OK\r\n")
        for _ in range(100):
            await other.stat("connections")
        grown = server.rss_bytes() - connected
        print(f"their unfinished lines: {grown / 1e6:.1f} MB")
        assert grown < 32 << 20


async def test_threads_have_no_heaps_of_their_own(tmp_path: Path) -> None:
    """glibc would keep free memory in each. Such a heap is 64 MiB of addresses at a multiple of
    that, most of them not in use yet."""
    async with running(tmp_path) as server, dial(server) as line:
        for topic in ("a", "b", "c"):  # a thread makes their files
            assert (await line.ask(push(topic, b"x\n"))).head == b"OK 0 1"
        assert len(os.listdir(f"/proc/{server.pid}/task")) > 1
        rows = Path(f"/proc/{server.pid}/maps").read_text().splitlines()
        ranges = [[int(end, 16) for end in row.split()[0].split("-")] for row in rows]
        heaps = [
            rows[at]
            for at, ((start, _), (_, end)) in enumerate(pairwise(ranges))
            if start % HEAP_BYTES == 0 and end == start + HEAP_BYTES and "---p" in rows[at + 1]
        ]
        assert heaps == []


async def test_what_is_too_large(tmp_path: Path) -> None:
    async with running(tmp_path, max_batch_bytes=1000) as server:
        fits = b"x" * 999 + b"\n"
        async with dial(server) as line:
            await line.send(push("app", fits) + b"PUSH app\r\n" + b"y" * 65_536 + b"\r\n")
            await line.expect(b"OK 0 1\r\nOK 1 1\r\n")
        for request in (
            push("app", b"x" + fits),
            push("app", b"x" + fits, "id=p:1"),
            b"PUSH app 1099511627776\r\nx",
            b"PUSH app\r\n" + b"y" * 65_537 + b"\r\n",
        ):
            async with dial(server) as line:
                assert await line.refused(request + push("app", b"behind\n")) == "too-large"
                await line.expect_end()
        assert messages(server.stored("app")) == [fits[:-1], b"y" * 65_536]


# -- time ---------------------------------------------------------------------------------------


async def ended_after_s(line: Line, started_s: float) -> float:
    """How long after `started_s` the server ends this connection, cleanly or not."""
    try:
        await line.expect_end()
    except ConnectionResetError:
        pass
    return time.monotonic() - started_s


@pytest.mark.slow
async def test_connections_that_do_nothing_or_too_little(tmp_path: Path) -> None:
    """An idle one and one that dribbles are closed; one that waits for messages is not."""
    settings = {"idle_timeout": "2s", "request_timeout": "2s"}
    async with running(tmp_path, **settings) as server, AsyncExitStack() as stack:
        follower = await stack.enter_async_context(dial(server))
        await follower.send(push("app", b"x\n") + b"READ app 1 1 wait=60000\r\nPING\r\n")
        await follower.expect(b"OK 0 1\r\n")
        waiting = asyncio.create_task(follower.read_reply())
        started_s = time.monotonic()
        idle, dribbling = [await stack.enter_async_context(dial(server)) for _ in range(2)]
        times = asyncio.gather(*(ended_after_s(line, started_s) for line in (idle, dribbling)))
        await dribbling.send(b"PUSH app 1000\r\n")
        dribble = asyncio.create_task(dribble_into(server, dribbling))
        for seconds in await times:
            assert 1 < seconds < 30
        dribble.cancel()
        other = await stack.enter_async_context(dial(server))
        await other.send(b"READ app next 1 wait=4000\r\n")  # twice as long again
        await other.expect(b"BATCHES 1 0 0\r\n")
        assert not waiting.done()
        assert (await other.ask(push("app", b"y\n"))).head == b"OK 1 1"
        assert messages((await waiting).body) == [b"y"]
        await follower.expect(b"OK\r\n")


async def dribble_into(server: Daemon, line: Line) -> None:
    """A byte every fifth of a second, as the daemon's own clock has it."""
    async with dial(server) as clock:
        while True:
            await clock.send(b"READ app next 1 wait=200\r\n")
            await clock.read_line()
            await line.send(b"x")


# -- access -------------------------------------------------------------------------------------


async def test_files_are_private(daemon: Daemon) -> None:
    async with dial(daemon) as line:
        await line.send(push("app", b"x\n", "id=p:1"))
        await line.expect(b"OK 0 1\r\n")
    daemon.kill()
    (log,) = daemon.log_files("app")
    log.write_bytes(log.read_bytes() + b"torn")
    daemon.start()
    daemon.stop()
    found = [path for path in daemon.data_dir.rglob("*") if path.name != "topics"]
    assert len(found) >= 8
    for path in found:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


async def test_links_in_the_data_directory_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    server = running(tmp_path)
    (server.data_dir / "topics").mkdir(parents=True)
    (server.data_dir / "topics" / "app").symlink_to(outside)
    async with server, dial(server) as line:
        assert (await line.ask(push("app", b"x\n"))).head.startswith(b"ERR ")
        assert list(outside.iterdir()) == []
        assert (await line.ask(push("other", b"x\n"))).head == b"OK 0 1"


async def test_a_link_to_a_topic_is_no_second_way_into_it(daemon: Daemon) -> None:
    """Two writers of the same files would destroy them."""
    async with dial(daemon) as line:
        assert (await line.ask(push("app", b"x\n"))).head == b"OK 0 1"
    daemon.stop()
    daemon.start()
    async with dial(daemon) as line:
        daemon.topic_dir("alias").symlink_to(daemon.topic_dir("app"))
        assert await line.refused(push("alias", b"y\n")) == "io"
        assert (await line.ask(push("app", b"z\n"))).head == b"OK 1 1"
    daemon.kill()
    daemon.start()
    async with dial(daemon) as line:
        assert (await line.ask(b"READ app 0 9\r\n")).head.startswith(b"BATCHES 0 2 ")


async def test_what_clients_send_cannot_forge_the_log(daemon: Daemon) -> None:
    async with dial(daemon) as line:
        await line.send(b"\x1b[31mready tcp=evil:1\r\n")
        reply = await line.read_line()
        assert reply.startswith(b"ERR unknown-command ")
        assert b"\x1b" not in reply
    daemon.stop()
    assert "\x1b" not in daemon.log
    assert "evil" not in daemon.log
