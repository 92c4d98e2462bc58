"""READ with wait=: how followers follow, a thousand of them, and what a slow one costs.

The figures that are measured on the way are printed: `pytest -rP` shows them.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.support.daemon import HANG_S, Daemon, Line, dial, messages, push, running

FOLLOWERS = 1000


async def push_one(line: Line, topic: str = "app", body: bytes = b"x\n") -> None:
    assert (await line.ask(push(topic, body))).head.startswith(b"OK ")


# -- one follower -------------------------------------------------------------------------------


@pytest.mark.parametrize("fsync", ["never", "interval", "batches", "always"])
async def test_a_push_wakes_who_waits(tmp_path: Path, fsync: str) -> None:
    server = running(tmp_path, fsync=fsync)
    async with server, dial(server) as line, dial(server) as other:
        await push_one(other)
        for offset in range(1, 10):
            await line.send(b"READ app %d 5 wait=60000\r\n" % offset)
            await other.until("waiting_reads", 1, "app")
            await push_one(other, body=b"%d\n" % offset)
            reply = await line.read_reply()
            assert reply.head == b"BATCHES %d 1 %d" % (offset, len(reply.body))
            assert messages(reply.body) == [b"%d" % offset]


@pytest.mark.parametrize(
    "limits", ["1", "2", "5", "1000000", "1000000 bytes=1", "1000000 bytes=150"]
)
async def test_what_a_wait_gives_is_what_a_read_gives(daemon: Daemon, limits: str) -> None:
    """Who waits is sent what was just written, past the file: the same bytes, within the limits."""
    group = b"".join(
        [
            push("app", b"one\ntwo\n"),  # with these, one write of several batches
            push("app", b"3\n", "id=p:0"),
            push("app", b"x" * 20_000 + b"\n"),
            push("app", b"four\n"),
        ]
    )
    async with dial(daemon) as line, dial(daemon) as other:
        await push_one(other)
        for pushed in (push("app", b"alone\n"), group, push("app", b"y" * 100_000 + b"\n")):
            start = await other.stat("next", "app")
            await line.send(b"READ app %d %b wait=60000\r\n" % (start, limits.encode()))
            await other.until("waiting_reads", 1, "app")
            await other.send(pushed)
            waited = await line.read_reply()
            for _ in range(pushed.count(b"PUSH ")):
                assert (await other.read_reply()).head.startswith(b"OK ")
            read = await other.ask(b"READ app %d %b\r\n" % (start, limits.encode()))
            count = int(waited.head.split(b" ")[2])
            assert count > 0
            assert read.body.startswith(waited.body)  # a group may have been written in two
            again = await other.ask(b"READ app %d %d\r\n" % (start, count))
            assert (waited.head, waited.body) == (again.head, again.body)


async def test_next_means_next_when_the_wait_began(daemon: Daemon) -> None:
    async with dial(daemon) as line, dial(daemon) as other:
        await push_one(other)
        for where in (b"next", b"@9223372036854775807"):
            await line.send(b"READ app %b 5 wait=60000\r\n" % where)
            await other.until("waiting_reads", 1, "app")
            await push_one(other, body=b"%b\n" % where)
            assert messages((await line.read_reply()).body) == [where]


async def test_a_wait_ends_with_nothing(daemon: Daemon) -> None:
    async with dial(daemon) as line:
        await push_one(line)
        started_s = time.monotonic()
        await line.send(b"READ app next 1 wait=300\r\n")
        await line.expect(b"BATCHES 1 0 0\r\n")
        assert time.monotonic() - started_s > 0.25


async def test_a_push_elsewhere_wakes_nobody(daemon: Daemon) -> None:
    async with dial(daemon) as line, dial(daemon) as other:
        await push_one(other)
        await line.send(b"READ app next 1 wait=60000\r\n")
        await other.until("waiting_reads", 1, "app")
        await push_one(other, "elsewhere")
        assert await other.stat("waiting_reads", "app") == 1
        await push_one(other, body=b"here\n")
        assert messages((await line.read_reply()).body) == [b"here"]


async def test_what_follows_a_waiting_read_sees_it_counted(daemon: Daemon) -> None:
    async with dial(daemon) as line, dial(daemon) as other:
        await push_one(other)
        await line.send(b"READ app 1 1 wait=60000\r\nSTATS\r\n")
        await other.until("waiting_reads", 1, "app")
        await push_one(other)
        size = len((await line.read_reply()).body)
        stats = (await line.read_reply()).body.split(b"\n")
        assert {b"reads 1", b"read_bytes %d" % size} <= {line.replace(b":", b"") for line in stats}


async def test_what_follows_a_waiting_read_waits_with_it(daemon: Daemon) -> None:
    async with dial(daemon) as line, dial(daemon) as other:
        await push_one(other)
        await line.send(b"READ app 1 1 wait=60000\r\n" + push("app", b"mine\n") + b"PING\r\n")
        await other.until("waiting_reads", 1, "app")
        assert await other.stat("next", "app") == 1, "the push behind it has not been stored"
        await push_one(other, body=b"theirs\n")
        assert messages((await line.read_reply()).body) == [b"theirs"]
        await line.expect(b"OK 2 1\r\nOK\r\n")


async def test_a_half_closed_follower_is_still_answered(daemon: Daemon) -> None:
    async with dial(daemon) as line, dial(daemon) as other:
        await push_one(other)
        await line.send(b"READ app 1 1 wait=60000\r\nPING\r\n")
        line.send_no_more()
        await other.until("waiting_reads", 1, "app")
        await push_one(other)
        assert messages((await line.read_reply()).body) == [b"x"]
        await line.expect(b"OK\r\n")
        await line.expect_end()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_answers_those_who_wait(tmp_path: Path, how: signal.Signals) -> None:
    async with running(tmp_path) as server, AsyncExitStack() as stack:
        lines = [await stack.enter_async_context(dial(server)) for _ in range(20)]
        other = await stack.enter_async_context(dial(server))
        await push_one(other)
        for line in lines:
            await line.send(b"READ app next 1 wait=60000\r\n")
        await other.until("waiting_reads", len(lines), "app")
        stopping = asyncio.create_task(asyncio.to_thread(server.stop, how))
        for line in lines:
            await line.expect(b"BATCHES 1 0 0\r\n")
            await line.expect_end()
        assert await stopping == 0


async def test_what_waits_behind_a_follower_is_refused_at_a_stop(tmp_path: Path) -> None:
    async with running(tmp_path) as server, dial(server) as line, dial(server) as other:
        await push_one(other)
        await line.send(b"READ app next 1 wait=60000\r\n" + push("app", b"late\n"))
        await other.until("waiting_reads", 1, "app")
        stopping = asyncio.create_task(asyncio.to_thread(server.stop))
        await line.expect(b"BATCHES 1 0 0\r\n")
        assert (await line.read_line()).startswith(b"ERR shutting-down ")
        await line.expect_end()
        assert await stopping == 0
        assert messages(server.stored("app")) == [b"x"]


# -- a thousand of them -------------------------------------------------------------------------


@pytest.mark.alone
@pytest.mark.slow
async def test_a_thousand_followers(tmp_path: Path) -> None:
    async with running(tmp_path) as server, AsyncExitStack() as stack:
        other = await stack.enter_async_context(dial(server))
        await push_one(other)
        await push_one(other, "quiet")
        lines = [await stack.enter_async_context(dial(server)) for _ in range(FOLLOWERS)]
        for line in lines:
            await line.send(b"READ app next 1 wait=60000\r\n")
        await other.until("waiting_reads", FOLLOWERS, "app")

        before_s = server.cpu_s()
        await other.send(b"READ quiet next 1 wait=2000\r\n")
        await other.expect(b"BATCHES 1 0 0\r\n")
        idle_cpu_s = server.cpu_s() - before_s
        print(f"cpu s of two idle seconds: {idle_cpu_s:.4g}")
        assert idle_cpu_s < 0.2

        started_s = time.monotonic()
        await push_one(other, body=b"news\n")
        for line in lines:
            assert messages((await line.read_reply()).body) == [b"news"]
        all_have_it_s = time.monotonic() - started_s
        print(f"all followers have it s: {all_have_it_s:.4g}")
        assert all_have_it_s < 2


# -- readers that do not read -------------------------------------------------------------------

MEGABYTE = b"x" * 999_999 + b"\n"


async def filled_with(server: Daemon, megabytes: int) -> None:
    async with dial(server) as line:
        for _ in range(megabytes // 16):
            await line.send(push("big", MEGABYTE) * 16)
            for _ in range(16):
                assert (await line.read_line()).startswith(b"OK ")


ROUNDS, READS = 5, 100


async def pace_s(line: Line) -> float:
    """How long a hundred pushes and reads take, one at a time: the best of a few rounds."""
    best_s = HANG_S
    for _ in range(ROUNDS):
        started_s = time.monotonic()
        for _ in range(READS):
            await push_one(line)
            assert (await line.ask(b"TAIL app 1\r\n")).head.startswith(b"BATCHES ")
        best_s = min(best_s, time.monotonic() - started_s)
    return best_s


@asynccontextmanager
async def reading_in_bulk(server: Daemon) -> AsyncIterator[None]:
    """Meanwhile a thread takes all of it, over and over, as fast as it comes."""
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port))) as bulk:
        bulk.sendall(b"READ big 0 1000000\r\n" * 1000)
        taking = asyncio.create_task(asyncio.to_thread(drain, bulk))
        yield
        assert not taking.done()
        bulk.shutdown(socket.SHUT_RDWR)
        assert await taking > 64_000_000


def drain(bulk: socket.socket) -> int:
    room, taken = bytearray(1 << 20), 0
    with contextlib.suppress(ConnectionResetError):
        while size := bulk.recv_into(room):
            taken += size
    return taken


@pytest.mark.alone
@pytest.mark.slow
async def test_readers_that_stop_reading_cost_nothing(tmp_path: Path) -> None:
    """Ten of them ask for gigabytes each and take nothing: memory stays, others keep their pace."""
    async with running(tmp_path, fsync="never") as server, AsyncExitStack() as stack:
        await filled_with(server, 256)
        other = await stack.enter_async_context(dial(server))
        await pace_s(other)
        alone_s, alone_bytes = await pace_s(other), server.rss_bytes()
        reads = await other.stat("reads")
        stalled = [await stack.enter_async_context(dial(server)) for _ in range(10)]
        for line in stalled:
            await line.send(b"READ big 0 1000000\r\n" * 100)
        await other.until("reads", reads + 10)
        before_s = server.cpu_s()
        await other.send(b"READ app next 1 wait=500\r\n")
        assert (await other.read_line()).endswith(b" 0 0")
        assert server.cpu_s() - before_s < 0.2, "nobody looks again and again"
        reads += 1
        crowded_s = await pace_s(other)
        grown_bytes = server.rss_bytes() - alone_bytes
        assert await other.stat("reads") == reads + 10 + ROUNDS * READS, (
            "the stalled ones got no further"
        )
        print(f"rss grown bytes: {grown_bytes:.4g}")
        print(f"pace ratio: {crowded_s / alone_s:.4g}")
        assert grown_bytes < 8 << 20
        assert crowded_s < 3 * alone_s + 0.2
        (first, *_) = stalled
        assert len((await first.read_reply()).body) > 60_000_000, "it can still go on"
    shutil.rmtree(server.data_dir)


@pytest.mark.slow
async def test_a_writer_that_never_reads_its_answers(tmp_path: Path) -> None:
    """It is not read from any more, until it takes them; then all of them come, in order."""
    pushes = push("app", b"x\n") * 1_000_000
    async with running(tmp_path) as server, dial(server) as line, dial(server) as other:
        await push_one(other, "quiet")
        before = server.rss_bytes()
        sending = asyncio.create_task(line.send(pushes))
        await until_it_rests(other)
        stored = await other.stat("next", "app")
        assert stored < 1_000_000
        assert not sending.done()
        grown = server.rss_bytes() - before
        print(f"rss grown bytes: {grown}, with {stored} stored")
        assert grown < 24 << 20
        await line.expect(b"".join(b"OK %d 1\r\n" % i for i in range(1_000_000)))
        await sending


async def until_it_rests(line: Line) -> None:
    """Until a quarter of a second goes by in which the topic gets nothing."""
    async with asyncio.timeout(HANG_S):
        while not (await line.ask(b"READ app next 1 wait=250\r\n")).head.endswith(b" 0 0"):
            pass


@pytest.mark.alone
@pytest.mark.slow
async def test_a_reader_at_full_speed_leaves_room_for_others(tmp_path: Path) -> None:
    async with running(tmp_path, fsync="never") as server, dial(server) as other:
        await filled_with(server, 64)
        await pace_s(other)
        alone_s = await pace_s(other)
        async with reading_in_bulk(server):
            crowded_s = await pace_s(other)
        print(f"pace ratio: {crowded_s / alone_s:.4g}")
        assert crowded_s < 20 * alone_s + 1
    shutil.rmtree(server.data_dir)
