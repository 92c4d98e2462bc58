"""Many commands in one piece: they are carried out in turns, in order, and none is left out."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.support.daemon import HANG_S, dial, running

COUNT = 5_000


async def test_all_of_many_commands_are_answered_in_order(tmp_path: Path) -> None:
    """Single pushes, refusals and questions, in pieces as large as the kernel makes them."""
    one = b"PUSH a\r\n\r\nPING\r\nPUSH a 1\r\nxREAD nothing 0 1\r\nPUSH a 2\r\ny\nCURSOR a c\r\n"
    async with running(tmp_path, fsync="never") as daemon, dial(daemon) as line:
        sending = asyncio.ensure_future(line.send(one * COUNT))
        for number in range(COUNT):
            await line.expect(b"OK %d 1\r\nOK\r\n" % (2 * number))
            await line.expect(b"ERR bad-request a body of lines must end in LF\r\n")
            assert (await line.read_reply()).head.startswith(b"ERR not-found no topic nothing")
            await line.expect(b"OK %d 1\r\n" % (2 * number + 1))
            assert (await line.read_reply()).head.startswith(b"ERR not-found")
        await sending


async def test_the_end_of_a_connection_waits_for_its_commands(tmp_path: Path) -> None:
    async with running(tmp_path, fsync="never") as daemon, dial(daemon) as line:
        await line.send(b"PING\r\n" * 5_000 + b"PUSH a\r\nlast\r\n")
        line.send_no_more()
        for _ in range(5_000):
            await line.expect(b"OK\r\n")
        await line.expect(b"OK 0 1\r\n")


@pytest.mark.parametrize(
    ("command", "changed"), [(b"STATS", b"stored_messages: 202\n"), (b"TOPICS", b"probe 0 2 ")]
)
async def test_others_are_served_meanwhile(tmp_path: Path, command: bytes, changed: bytes) -> None:
    """A push that came with many commands of another connection is stored before most of them are
    carried out: their replies show it. The daemon is stopped until all of it has arrived."""
    async with (
        running(tmp_path, fsync="never") as daemon,
        dial(daemon) as busy,
        dial(daemon) as other,
    ):
        for topic in (b"probe", *[b"topic-%d" % number for number in range(200)]):
            await busy.send(b"PUSH %s\r\nx\r\n" % topic)
            await busy.expect(b"OK 0 1\r\n")
        await other.ask(b"PING\r\n")
        os.kill(daemon.pid, signal.SIGSTOP)
        await busy.send((command + b"\r\n") * COUNT)
        await busy.arrived()
        await other.send(b"PUSH probe\r\nx\r\n")
        await other.arrived()
        os.kill(daemon.pid, signal.SIGCONT)
        before = 0
        for _ in range(COUNT):
            before += changed not in (await busy.read_reply()).body
        assert before < 400  # 500 are parsed at a time, and a turn of 5 ms ends before that
        await other.expect(b"OK 1 1\r\n")


async def test_a_stop_does_not_wait_for_them(tmp_path: Path) -> None:
    async with running(tmp_path, fsync="never") as daemon, dial(daemon) as line:
        await line.send(b"STATS\r\n" * COUNT)
        await line.read_reply()
        assert await asyncio.to_thread(daemon.stop) == 0, daemon.log


async def test_pipelined_http_requests_are_answered_in_order(tmp_path: Path) -> None:
    """Bodies among them: the parser is fed in pieces that end anywhere."""
    head = b"POST /topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    requests = [head % size + b"x" * size for size in (1, 100, 10_000, 100_000)]
    requests.append(b"GET /topics/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with running(tmp_path, "--http-host", "127.0.0.1:0", fsync="never") as daemon:
        host, _, port = daemon.http.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"".join(requests) * 100)
        async with asyncio.timeout(HANG_S):
            for number in range(100):
                for stored in range(4):
                    body = await response(reader)
                    assert body == b'{"offset":%d,"messages":1}' % (4 * number + stored)
                assert b'"next":%d,' % (4 * number + 4) in await response(reader)
        writer.close()


async def response(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    return await reader.readexactly(size)
