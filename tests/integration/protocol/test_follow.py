"""FOLLOW: streams beside pushes, commands that end them, slow clients, revoked rights and stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, Line, dial, messages, push, running

SLOW_MESSAGE = b"x" * 20_000 + b"\n"


async def push_one(line: Line, topic: str = "app", body: bytes = b"x\n") -> None:
    assert (await line.ask(push(topic, body))).head.startswith(b"OK ")


async def read_until(line: Line, next_offset: int, offset: int = 0) -> list[bytes]:
    """The messages of a stream from `offset` on, which must have no gap."""
    found = list[bytes]()
    while offset < next_offset:
        reply = await line.read_reply()
        word, start, count, size = reply.head.split(b" ")
        assert (word, int(start), int(size)) == (b"BATCHES", offset, len(reply.body)), reply.head
        found += messages(reply.body)
        offset += int(count)
    assert offset == next_offset
    return found


@asynccontextmanager
async def following(server: Daemon, where: bytes = b"next") -> AsyncIterator[Line]:
    async with dial(server) as line, dial(server) as other:
        before = await other.stat("followers", "app")
        await line.send(b"FOLLOW app %b\r\n" % where)
        await other.until("followers", before + 1, "app")
        yield line


@pytest.mark.parametrize("fsync", ["never", "interval", "batches", "always"])
async def test_messages_arrive_as_they_are_stored(tmp_path: Path, fsync: str) -> None:
    server = running(tmp_path, fsync=fsync)
    async with server, dial(server) as other:
        await push_one(other)
        async with following(server) as line:
            for offset in range(1, 20):
                await push_one(other, body=b"%d\n" % offset)
                assert await read_until(line, offset + 1, offset) == [b"%d" % offset]
            await line.send(b"PING\r\n")
            await line.expect(b"END 20\r\nOK\r\n")


async def test_the_bytes_are_those_of_a_read(daemon: Daemon) -> None:
    group = push("app", b"one\ntwo\n") + push("app", b"3\n", "id=p:0") + push("app", SLOW_MESSAGE)
    async with dial(daemon) as other:
        await push_one(other)
        async with following(daemon) as line:
            for pushed in (push("app", b"alone\n"), group, push("app", b"y" * 100_000 + b"\n")):
                start = await other.stat("next", "app")
                await other.send(pushed)
                for _ in range(pushed.count(b"PUSH ")):
                    assert (await other.read_reply()).head.startswith(b"OK ")
                end = await other.stat("next", "app")
                while start < end:
                    reply = await line.read_reply()
                    count = int(reply.head.split(b" ")[2])
                    read = await other.ask(b"READ app %d %d\r\n" % (start, count))
                    assert (reply.head, reply.body) == (read.head, read.body)
                    start += count


@pytest.mark.parametrize("limit", [b"", b" bytes=1", b" bytes=200", b" bytes=100000000"])
async def test_from_the_first_message_over_many_partitions(tmp_path: Path, limit: bytes) -> None:
    async with running(tmp_path, partition_bytes=4096) as server, dial(server) as other:
        for n in range(200):
            await push_one(other, body=b"%d\n" % n)
        async with following(server, b"first" + limit) as line:
            assert await read_until(line, 200) == [b"%d" % n for n in range(200)]
            for n in range(200, 400):  # and rolls while it follows
                await push_one(other, body=b"%d\n" % n)
            assert await read_until(line, 400, 200) == [b"%d" % n for n in range(200, 400)]


async def test_any_command_ends_the_stream(daemon: Daemon) -> None:
    async with dial(daemon) as other:
        await push_one(other)
        async with following(daemon) as line:
            await line.send(push("app", b"mine\n"))
            await line.expect(b"END 1\r\nOK 1 1\r\n")
            await line.send(b"FOLLOW app 2\r\nFOLLOW app 2\r\nNONSENSE\r\n")
            await line.expect(b"END 2\r\nEND 2\r\n")
            assert (await line.read_line()).startswith(b"ERR unknown-command ")
            await line.expect_end()


async def test_hundreds_of_streams_in_one_piece(daemon: Daemon) -> None:
    async with dial(daemon) as line:
        await push_one(line)
        await line.send(b"FOLLOW app next\r\n" * 2000 + b"PING\r\n")
        await line.expect(b"END 1\r\n" * 2000 + b"OK\r\n")
        assert await line.stat("followers", "app") == 0


async def test_every_split_of_a_session(daemon: Daemon) -> None:
    async with dial(daemon) as other:
        await push_one(other)
        session = b"FOLLOW app next\r\nPING\r\nFOLLOW nope 0\r\nFOLLOW app 1\r\nCLOSE\r\n"
        for at in range(1, len(session)):
            async with dial(daemon) as line:
                await line.send(session[:at])
                await other.ask(b"PING\r\n")
                await line.send(session[at:])
                await line.expect(b"END 1\r\nOK\r\n")
                assert (await line.read_line()).startswith(b"ERR not-found ")
                await line.expect(b"END 1\r\nOK\r\n")
                await line.expect_end()
        async with dial(daemon) as line:
            for i in range(len(session)):
                await line.send(session[i : i + 1])
                await other.ask(b"PING\r\n")
            await line.expect(b"END 1\r\nOK\r\n")


async def test_a_half_closed_connection_still_follows(daemon: Daemon) -> None:
    async with dial(daemon) as other:
        await push_one(other)
        async with following(daemon) as line:
            line.send_no_more()
            await push_one(other, body=b"news\n")
            assert await read_until(line, 2, 1) == [b"news"]


async def test_a_client_that_leaves_is_forgotten(daemon: Daemon) -> None:
    async with dial(daemon) as other:
        await push_one(other)
        async with following(daemon) as first, following(daemon) as second:
            assert await other.stat("followers", "app") == 2
            assert await other.stat("waiting_reads", "app") == 0
            first.reset()
            await other.until("followers", 1, "app")
            second.reset()
        await other.until("followers", 0, "app")
        await push_one(other)


async def test_a_stop_ends_streams(tmp_path: Path) -> None:
    async with running(tmp_path) as server, AsyncExitStack() as stack:
        other = await stack.enter_async_context(dial(server))
        await push_one(other)
        lines = [await stack.enter_async_context(following(server)) for _ in range(20)]
        stopping = asyncio.create_task(asyncio.to_thread(server.stop))
        for line in lines:
            await line.expect(b"END 1\r\n")
            await line.expect_end()
        assert await stopping == 0


async def test_a_follower_that_begins_while_a_message_is_announced_does_not_get_it(
    daemon: Daemon,
) -> None:
    """The reply to its READ has it already, and the other followers get it right after that."""
    async with dial(daemon) as other, dial(daemon) as line:
        await push_one(other)
        await line.send(b"READ app next 1 wait=60000\r\nFOLLOW app next\r\n")
        await other.until("waiting_reads", 1, "app")
        async with following(daemon) as first:
            await push_one(other, body=b"news\n")
            assert await read_until(line, 2, 1) == [b"news"]
            await push_one(other, body=b"more\n")
            assert await read_until(line, 3, 2) == [b"more"]
            assert await read_until(first, 3, 1) == [b"news", b"more"]


async def test_a_roll_wakes_nobody(tmp_path: Path) -> None:
    server = running(tmp_path, fsync="always", partition_bytes=1000)
    async with server, dial(server) as other, dial(server) as waiting:
        await push_one(other)
        async with following(server) as line:
            for n in range(1, 20):
                await waiting.send(b"READ app next 1 wait=60000\r\n")
                await other.until("waiting_reads", 1, "app")
                await push_one(other, body=b"x" * 600 + b"\n")
                for reply in (await waiting.read_reply(), await line.read_reply()):
                    assert reply.head.startswith(b"BATCHES %d 1 " % n)


async def test_each_kind_of_command_ends_the_stream(daemon: Daemon) -> None:
    """It is executed after the last line of the stream, which tells where it ended."""
    commands = [
        (push("app", b"mine\n"), b"OK "),
        (push("app", b"mine\n", "count=1"), b"OK "),
        (b"PUSH app\r\nmine\r\n", b"OK "),
        (push("new", b"mine\n"), b"OK "),
        (push("app", b"mine\n", "count=2"), b"ERR bad-request "),
        (b"READ app first 1\r\n", b"BATCHES 0 1 "),
        (b"READ app next 1 wait=1\r\n", b"BATCHES "),
        (b"TAIL app 1\r\n", b"BATCHES "),
        (b"COMMIT app reader 1\r\n", b"OK 1 "),
        (b"CURSOR app\r\n", b"TEXT "),
        (b"STATS app\r\n", b"TEXT "),
        (b"TOPICS\r\n", b"TEXT "),
        (b"PARTITIONS app\r\n", b"TEXT "),
        (b"CONFIG\r\n", b"TEXT "),
        (b"HELP\r\n", b"TEXT "),
        (b"AUTH any-token-will-do\r\n", b"OK"),
        (b"FOLLOW nope first\r\n", b"ERR not-found "),
        (b"FOLLOW app\r\n", b"ERR bad-request "),
    ]
    async with dial(daemon) as line, dial(daemon) as other:
        await push_one(other)
        for command, reply in commands:
            next_ = await other.stat("next", "app")
            await line.send(b"FOLLOW app next\r\n")
            await other.until("followers", 1, "app")
            await line.send(command)
            await line.expect(b"END %d\r\n" % next_)
            assert (await line.read_reply()).head.startswith(reply)
            assert await other.stat("followers", "app") == 0
            await line.send(b"FOLLOW app next\r\n" + command)  # the same in one piece
            assert (await line.read_line()).startswith(b"END ")
            assert (await line.read_reply()).head.startswith(reply)


@pytest.mark.parametrize(
    "garbage", [b"\r\n", b"\x16\x03\x01\n", b"x" * 3000, b"GET / HTTP/1.1\r\n"]
)
async def test_garbage_ends_the_stream_and_the_connection(daemon: Daemon, garbage: bytes) -> None:
    async with dial(daemon) as other:
        await push_one(other)
        async with following(daemon) as line:
            await line.send(garbage)
            await line.expect(b"END 1\r\n")
            assert (await line.read_line()).startswith(b"ERR ")
            await line.expect_end()
        await other.until("followers", 0, "app")


async def test_a_command_during_a_long_reply_waits_for_its_end(tmp_path: Path) -> None:
    """Only for the reply that is being sent, not for the rest of the topic."""
    async with running(tmp_path) as server, dial(server) as other, dial(server) as line:
        for _ in range(1000):
            await push_one(other, body=SLOW_MESSAGE)
        await line.send(b"FOLLOW app first\r\n")
        await other.until("followers", 1, "app")
        await line.send(b"PING\r\n")
        await line.arrived()
        offset = 0
        while not (reply := await line.read_reply()).head.startswith(b"END "):
            _, start, count, _ = reply.head.split(b" ")
            assert int(start) == offset
            offset += int(count)
        assert reply.head == b"END %d" % offset
        assert offset < 1000
        await line.expect(b"OK\r\n")


# -- damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [b"", b" bytes=1"])
@pytest.mark.parametrize("when", ["before the start", "while it runs"])
async def test_damage_ends_the_stream_with_the_error_of_a_read(
    tmp_path: Path, when: str, limit: bytes
) -> None:
    async with running(tmp_path, partition_bytes=4096) as server:
        async with dial(server) as other:
            for n in range(200):
                await push_one(other, body=b"%d\n" % n)
        lost = server.log_files("app")[1]
        first, next_ = (int(path.stem) for path in server.log_files("app")[1:3])
        if when == "while it runs":
            lost.unlink()
            server.wait_said("topic app is faulted")
        else:
            server.stop()
            lost.unlink()
            server.start()
        async with dial(server) as line, dial(server) as other:
            refused = await other.ask(b"READ app %d 1\r\n" % first)
            assert refused.head.startswith(b"ERR faulted first=%d next=%d " % (first, next_))
            await line.send(b"FOLLOW app first%b\r\n" % limit)
            assert await read_until(line, first) == [b"%d" % n for n in range(first)]
            assert await line.read_reply() == refused
            await other.until("followers", 0, "app")
            await line.send(b"FOLLOW app %d\r\n" % (next_ - 1))
            assert await line.read_reply() == refused
            await line.send(b"FOLLOW app %d%b\r\n" % (next_, limit))
            found = await read_until(line, 200, next_)
            assert found == [b"%d" % n for n in range(next_, 200)]
            await line.send(b"PING\r\n")
            await line.expect(b"END 200\r\nOK\r\n")


async def test_a_header_that_is_damaged_is_the_error_of_a_read(tmp_path: Path) -> None:
    """Found when a batch is looked up, and not at the start."""
    async with running(tmp_path, partition_bytes=100_000) as server:
        async with dial(server) as other:
            for n in range(3000):
                await push_one(other, body=b"%d\n" % n)
        server.stop()
        sealed = server.log_files("app")[0]
        data = bytearray(sealed.read_bytes())
        at = data.index(b"BATCH 700 ")
        data[at : at + 5] = b"XXXXX"
        sealed.write_bytes(data)
        server.start()
        async with dial(server) as line, dial(server) as other:
            await line.send(b"FOLLOW app 690 bytes=1\r\n")
            for offset in range(690, 720):
                read = await other.ask(b"READ app %d 1 bytes=1\r\n" % offset)
                assert await line.read_reply() == read
                if read.head.startswith(b"ERR "):
                    break
            assert read.head.startswith(b"ERR faulted ")
            assert (await line.ask(b"PING\r\n")).head == b"OK"


# -- slow followers -----------------------------------------------------------------------------


async def test_a_stalled_follower_gets_everything_later(tmp_path: Path) -> None:
    count = 1000
    async with running(tmp_path, partition_bytes=1 << 20) as server, AsyncExitStack() as stack:
        other = await stack.enter_async_context(dial(server))
        await push_one(other)
        stalled = [await stack.enter_async_context(following(server)) for _ in range(10)]
        reading = await stack.enter_async_context(following(server))
        before = server.rss_bytes()
        for n in range(1, count):
            await push_one(other, body=b"%d " % n + SLOW_MESSAGE)
            assert len(await read_until(reading, n + 1, n)) == 1
        grown = server.rss_bytes() - before
        print(f"bytes stored: {count * len(SLOW_MESSAGE)}, memory grown by: {grown}")
        assert grown < 8 << 20
        for line in stalled:
            found = await read_until(line, count, 1)
            assert [message.split(b" ")[0] for message in found] == [
                b"%d" % n for n in range(1, count)
            ]
            await line.send(b"PING\r\n")
            await line.expect(b"END %d\r\nOK\r\n" % count)


async def test_a_position_that_expires_ends_the_stream(tmp_path: Path) -> None:
    settings = {"partition_bytes": 100_000, "max_bytes": 200_000}
    async with running(tmp_path, **settings) as server, dial(server) as other:
        await push_one(other)
        async with following(server) as line:
            for _ in range(1000):
                await push_one(other, body=SLOW_MESSAGE)
            while await other.stat("first", "app") < 900:
                await push_one(other, body=SLOW_MESSAGE)
            reply = await line.read_reply()
            while reply.head.startswith(b"BATCHES "):
                reply = await line.read_reply()
            assert reply.head.startswith(b"ERR out-of-range first=")
            assert (await line.ask(b"PING\r\n")).head == b"OK"


@pytest.mark.slow
async def test_a_follower_that_reads_nothing_is_disconnected(tmp_path: Path) -> None:
    """After the idle timeout. One that waits for messages is not idle."""
    async with running(tmp_path, idle_timeout="2s") as server, AsyncExitStack() as stack:
        other = await stack.enter_async_context(dial(server))
        await push_one(other)
        waiting = await stack.enter_async_context(following(server))
        stalled = await stack.enter_async_context(following(server))
        for n in range(1, 500):
            await push_one(other, body=SLOW_MESSAGE)
            await read_until(waiting, n + 1, n)
        await other.until("followers", 1, "app")
        for _ in range(3):  # as long again
            await other.send(b"READ app next 1 wait=1000\r\n")
            assert (await other.read_reply()).head == b"BATCHES 500 0 0"
        await push_one(other, body=b"last\n")
        assert await read_until(waiting, 501, 500) == [b"last"]
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await read_until(stalled, 501, 1)
