"""COMMIT and CURSOR in dialogues with a real daemon, before and after a stop and a kill."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, Line, dial, push, running

MODES = ["never", "interval", "batches", "always"]


async def places(line: Line, topic: str = "app") -> dict[str, tuple[int, int]]:
    """Offset and lag of each cursor."""
    body = (await line.ask(f"CURSOR {topic}\r\n".encode())).body
    rows = [row.split() for row in body.decode().splitlines()]
    assert all(len(row) == 4 and len(row[3]) == 13 for row in rows)
    return {name: (int(offset), int(lag)) for name, offset, lag, _ in rows}


async def test_many_at_a_time_in_order(daemon: Daemon) -> None:
    """Each command sees what those before it on its connection did."""
    async with dial(daemon) as line:
        await line.send(
            b"PUSH app\r\none\r\nCOMMIT app a 1\r\nPUSH app\r\ntwo\r\nCURSOR app a\r\n"
            b"COMMIT app a 2\r\nCURSOR app a\r\nCOMMIT app a -\r\nPING\r\n"
        )
        for answer in (b"0 1", b"1 0", b"1 1", b"1 1", b"2 0", b"2 0"):
            await line.expect(b"OK %b\r\n" % answer)
        await line.expect(b"OK\r\nOK\r\n")
        await line.send(b"COMMIT app b 1\r\nCURSOR app b\r\n")
        line.send_no_more()
        await line.expect(b"OK 1 1\r\nOK 1 1\r\n")
        await line.expect_end()


@pytest.mark.parametrize("fsync", MODES)
async def test_cursors_are_there_after_a_stop_and_after_a_kill(tmp_path: Path, fsync: str) -> None:
    async with running(tmp_path, fsync=fsync) as server:
        async with dial(server) as line:
            await line.ask(push("app", b"x\n" * 10))
            for offset in range(5):
                for name in ("a", "b", "gone"):
                    await line.ask(f"COMMIT app {name} {offset}\r\n".encode())
            await line.ask(b"COMMIT app gone -\r\n")
            before = await line.ask(b"CURSOR app\r\n")
            assert await places(line) == {"a": (4, 6), "b": (4, 6)}
        assert server.stop() == 0
        server.start()
        async with dial(server) as line:
            assert await line.ask(b"CURSOR app\r\n") == before
            await line.ask(b"COMMIT app a 9\r\n")
            await line.ask(b"COMMIT app a 8\r\n")
            before = await line.ask(b"CURSOR app\r\n")
        server.kill()
        server.start()
        async with dial(server) as line:
            assert await line.ask(b"CURSOR app\r\n") == before
            assert await places(line) == {"a": (8, 2), "b": (4, 6)}
        assert not list(server.topic_dir("app").glob("quarantine/*"))


async def test_commits_alone_do_not_make_a_stop_unclean(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        async with dial(server) as line:
            await line.ask(push("app", b"x\n"))
        assert server.stop() == 0
        server.start()
        async with dial(server) as line:
            await line.ask(b"COMMIT app a 1\r\n")
        server.kill()
        server.start()
        async with dial(server) as line:
            assert await line.stat("epoch", "app") == 1
            assert await places(line) == {"a": (1, 0)}


async def test_a_cursor_below_first(tmp_path: Path) -> None:
    """Retention has moved on: the place is kept as it was told, and READ says where first is."""
    async with running(tmp_path, partition_bytes=1, max_partitions=1) as server:
        async with dial(server) as line:
            await line.ask(push("app", b"x\n"))
            assert (await line.ask(b"COMMIT app slow 0\r\n")).head == b"OK 0 1"
            for _ in range(3):
                await line.ask(push("app", b"x\n"))
            await line.until("first", 3, "app")
            assert (await line.ask(b"CURSOR app slow\r\n")).head == b"OK 0 4"
            assert (await line.ask(b"COMMIT app slow 1\r\n")).head == b"OK 1 3"
            reply = await line.ask(b"READ app 1 1\r\n")
            assert reply.head == b"ERR out-of-range first=3 next=4"
        assert server.stop() == 0
        server.start()
        async with dial(server) as line:
            assert await places(line) == {"slow": (1, 3)}


async def test_no_more_cursors_than_allowed(tmp_path: Path) -> None:
    async with running(tmp_path, max_cursors=3) as server, dial(server) as line:
        for topic in ("app", "web"):
            await line.ask(push(topic, b"x\n"))
            for name in ("a", "b", "c"):
                assert (await line.ask(f"COMMIT {topic} {name} 1\r\n".encode())).head == b"OK 1 0"
        reply = await line.ask(b"COMMIT app d 1\r\n")
        assert reply.head.startswith(b"ERR topic-limit the topic already has 3 cursors")
        assert (await line.ask(b"COMMIT app a 0\r\n")).head == b"OK 0 1"
        assert (await line.ask(b"COMMIT app b -\r\n")).head == b"OK"
        assert (await line.ask(b"COMMIT app d 1\r\n")).head == b"OK 1 0"
        assert sorted(await places(line)) == ["a", "c", "d"]
        assert sorted(await places(line, "web")) == ["a", "b", "c"]


async def test_stats_name_each_cursor(daemon: Daemon) -> None:
    async with dial(daemon) as line:
        await line.ask(push("app", b"x\n" * 10))
        assert await line.stat("cursors", "app") == 0
        await line.ask(b"COMMIT app billing 4\r\n")
        values = await line.values(b"STATS app")
        assert values["cursor.billing"] == "4 lag=6"
        assert values["cursors"] == "1"
        assert values["cursors_lost"] == "0"
        assert "cursors_not_shown" not in values


@pytest.mark.parametrize("fsync", MODES)
async def test_many_connections_commit_to_one_topic(tmp_path: Path, fsync: str) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running(tmp_path, fsync=fsync))
        lines = [await stack.enter_async_context(dial(server)) for _ in range(20)]
        await lines[0].ask(push("app", b"x\n" * 100))

        async def commit(number: int, line: Line) -> None:
            for offset in range(1, 51):
                reply = await line.ask(b"COMMIT app c%d %d\r\n" % (number, offset))
                assert reply.head == b"OK %d %d" % (offset, 100 - offset)
                assert (await line.ask(b"CURSOR app c%d\r\n" % number)) == reply

        await asyncio.gather(*(commit(n, line) for n, line in enumerate(lines)))
        wanted = {f"c{n}": (50, 50) for n in range(20)}
        assert await places(lines[0]) == wanted
        server.kill()
        server.start()
        async with dial(server) as line:
            assert await places(line) == wanted


async def test_the_file_of_many_moves_stays_small(tmp_path: Path) -> None:
    async with running(tmp_path, fsync="never") as server, dial(server) as line:
        await line.ask(push("app", b"x\n" * 1000))
        moves = b"".join(b"COMMIT app a %d\r\n" % (n % 1000) for n in range(5000))
        answers = b"".join(b"OK %d %d\r\n" % (n % 1000, 1000 - n % 1000) for n in range(5000))
        sending = asyncio.create_task(line.send(moves))
        await line.expect(answers)
        await sending
        path = server.topic_dir("app") / "cursors"
        assert path.stat().st_size < 70_000
        assert path.stat().st_mode & 0o777 == 0o600
        assert await places(line) == {"a": (999, 1)}
