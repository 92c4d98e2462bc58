"""READ and TAIL at every offset, for every count, against a model that knows where batches end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.daemon import Batch, Daemon, Line, batches, dial, messages, push, running


class Log(NamedTuple):
    """A topic named app, and what is in it."""

    server: Daemon
    line: Line
    batches: list[Batch]

    @property
    def next(self) -> int:
        return self.batches[-1].header.next

    def reply(self, offset: int, count: int, max_bytes: int) -> bytes:
        """What READ must answer: whole batches, at least one, as far as asked for or allowed."""
        data, reached = b"", offset
        for batch in self.batches:
            if batch.header.next <= offset or reached >= offset + count:
                continue
            if data and len(data) + len(batch.data) > max_bytes:
                break
            data, reached = data + batch.data, batch.header.next
        return b"BATCHES %d %d %d\r\n%b" % (offset, reached - offset, len(data), data)


async def filled(server: Daemon, line: Line) -> Log:
    """Batches of one to four messages, some of them large, each later than the one before."""
    for i in range(24):
        body = (b"%d" % i * (1 + (i * 5) % 40) + b"\n") * (1 + i % 4)
        await line.send(push("app", body, f"id=p:{i}"))
        assert (await line.read_line()).startswith(b"OK ")
        await line.send(b"READ app next 1 wait=2\r\n")  # two milliseconds go by
        assert (await line.read_line()).endswith(b" 0 0")
    return Log(server, line, batches(server.stored("app")))


@pytest.fixture(params=[1, 300, 1 << 30], ids="partitions of {}".format)
async def log(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Log]:
    async with running(tmp_path, partition_bytes=request.param) as server, dial(server) as line:
        yield await filled(server, line)


Dialogue = list[tuple[bytes, bytes]]  # requests, and what each must be answered with


async def check(line: Line, dialogue: Dialogue) -> None:
    """Send all of the requests, then compare all of the replies."""
    await line.send(b"".join(request for request, _ in dialogue))
    for request, reply in dialogue:
        got = await line.read_reply()
        assert b"%b\r\n%b" % got == reply, request


async def test_every_offset_and_every_count(log: Log) -> None:
    for offset in range(log.next + 1):
        dialogue = []
        for count in range(1, log.next - offset + 2):
            for option, limit in (("", 1 << 30), ("0", 0), ("1", 1), ("200", 200), ("450", 450)):
                option = f" bytes={option}" if option else ""
                request = f"READ app {offset} {count}{option}\r\n".encode()
                dialogue.append((request, log.reply(offset, count, limit)))
        await check(log.line, dialogue)


async def test_every_limit_in_bytes(log: Log) -> None:
    total = sum(len(batch.data) for batch in log.batches)
    for offset in (0, log.batches[5].header.offset, log.batches[7].header.next - 1):
        limits = range(1, total + 2, 3)
        await check(
            log.line,
            [
                (b"READ app %d 1000 bytes=%d\r\n" % (offset, n), log.reply(offset, 1000, n))
                for n in limits
            ],
        )


def newest(log: Log) -> Dialogue:
    counts = range(1, log.next + 5)
    starts = [max(0, log.next - count) for count in counts]
    return [
        (b"TAIL app %d\r\n" % count, log.reply(start, count, 1 << 30))
        for count, start in zip(counts, starts, strict=True)
    ]


def places(log: Log) -> Dialogue:
    nothing = b"BATCHES %d 0 0\r\n" % log.next
    above = b"ERR out-of-range first=0 next=%d\r\n" % log.next
    return [
        (b"READ app first 3\r\n", log.reply(0, 3, 1 << 30)),
        (b"READ app next 3\r\n", nothing),
        (b"READ app %d 3\r\n" % log.next, nothing),
        (b"READ app %d 3\r\n" % (log.next + 1), above),
        (b"READ app 9223372036854775807 1\r\n", above),
        (b"READ app 0 9223372036854775807\r\n", log.reply(0, 1 << 62, 1 << 30)),
        (b"READ app next 1 wait=5\r\n", nothing),
        (b"READ app next 1 wait=0\r\n", nothing),
        (b"READ app 3 1 wait=60000\r\n", log.reply(3, 1, 1 << 30)),
        (b"PING\r\n", b"OK\r\n"),
    ]


def times(log: Log) -> Dialogue:
    """At the time of each batch, just before it and just after it, and far away on both sides."""
    at = {batch.header.time_ms for batch in log.batches}
    dialogue = []
    for time_ms in sorted({0, *at, *(t - 1 for t in at), *(t + 1 for t in at), 2**63 - 1}):
        later = (batch.header.offset for batch in log.batches if batch.header.time_ms >= time_ms)
        offset = next(later, log.next)
        dialogue.append((b"READ app @%d 1\r\n" % time_ms, log.reply(offset, 1, 1 << 30)))
    return dialogue


async def test_other_places(log: Log) -> None:
    assert len({batch.header.time_ms for batch in log.batches}) > 20
    await check(log.line, [*newest(log), *places(log), *times(log)])
    assert await log.line.refused(b"READ other 0 1\r\n") == "not-found"
    assert await log.line.refused(b"READ other next 1 wait=60000\r\n") == "not-found"
    assert not log.server.topic_dir("other").exists()


async def test_the_same_after_a_restart(log: Log) -> None:
    sevens = [
        (b"READ app %d 7\r\n" % offset, log.reply(offset, 7, 1 << 30)) for offset in range(log.next)
    ]
    for end in (log.server.stop, log.server.kill):
        end()
        log.server.start()
        async with dial(log.server) as line:
            assert batches(log.server.stored("app")) == log.batches
            await check(line, [*newest(log), *places(log), *times(log), *sevens])


async def test_the_servers_own_limit(tmp_path: Path) -> None:
    limits = {"partition_bytes": 500, "max_reply_bytes": 400}
    async with running(tmp_path, **limits) as server, dial(server) as line:
        log = await filled(server, line)
        for offset in range(log.next):
            await check(
                line,
                [
                    (b"READ app %d 1000\r\n" % offset, log.reply(offset, 1000, 400)),
                    (b"READ app %d 1000 bytes=1000000\r\n" % offset, log.reply(offset, 1000, 400)),
                    (b"READ app %d 1000 bytes=250\r\n" % offset, log.reply(offset, 1000, 250)),
                ],
            )


async def test_below_the_first(tmp_path: Path) -> None:
    """Where retention has taken the oldest, READ says what is left, and the connection goes on."""
    server = running(tmp_path, partition_bytes=1, max_partitions=3)
    async with server, dial(server) as line:
        for i in range(10):
            await line.send(push("app", b"%d\n" % i))
            await line.expect(b"OK %d 1\r\n" % i)
        await line.until("first", 7, "app")
        for request in (
            b"READ app 0 1\r\n",
            b"READ app 6 1\r\n",
            b"READ app 0 1 wait=60000\r\n",
        ):
            await line.send(request)
            await line.expect(b"ERR out-of-range first=7 next=10\r\n")
        for request in (b"READ app first 10\r\n", b"READ app @0 10\r\n", b"TAIL app 10\r\n"):
            reply = await line.ask(request)
            assert reply.head == b"BATCHES 7 3 %d" % len(reply.body)
            assert messages(reply.body) == [b"7", b"8", b"9"]


async def test_an_empty_topic(tmp_path: Path) -> None:
    """One whose first push was refused has nothing, and one that was never pushed to is none."""
    async with running(tmp_path) as server, dial(server) as line:
        assert await line.refused(push("app", b"x\n", "sum=0123456789abcdef")) == "checksum"
        assert await line.refused(b"READ app 0 1\r\n") == "not-found"
        assert await line.ask(b"TOPICS\r\n") == (b"TEXT 0", b"")
        assert not server.topic_dir("app").exists()


async def test_many_partitions_of_one_moment(tmp_path: Path) -> None:
    """Also where whole partitions share one millisecond."""
    async with running(tmp_path, partition_bytes=1) as server, dial(server) as line:
        await line.send(b"".join(push("app", b"x\n", f"id=p:{i}") for i in range(200)))
        for i in range(200):
            await line.expect(b"OK %d 1\r\n" % i)
        log = Log(server, line, batches(server.stored("app")))
        assert len(server.log_files("app")) == 200
        await check(line, times(log))
