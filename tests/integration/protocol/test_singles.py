"""Clients that push one message per packet: logd/storage/single_push.py."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.daemon import HANG_S, Daemon, batches, dial, messages, push, running

MODES = ("never", "interval", "batches", "always")


async def one_by_one(server: Daemon, name: bytes, count: int) -> dict[int, bytes]:
    told = {}
    async with dial(server) as line:
        for n in range(count):
            message = b"%b-%04d" % (name, n)
            word, offset, one = (await line.ask(push("app", message + b"\n"))).head.split()
            assert (word, one) == (b"OK", b"1")
            told[int(offset)] = message
    return told


@pytest.mark.parametrize("fsync", MODES)
async def test_each_gets_the_offset_of_its_own_message(tmp_path: Path, fsync: str) -> None:
    async with running(tmp_path, fsync=fsync, partition_bytes=10_000) as server:
        each = await asyncio.gather(*(one_by_one(server, b"c%02d" % n, 60) for n in range(12)))
        told = {offset: message for own in each for offset, message in own.items()}
        stored = server.stored("app")
        assert [told[n] for n in range(len(told))] == messages(stored)
        assert len(told) == 12 * 60
        assert len(batches(stored)) < len(told), "those that came together share a batch"


@pytest.mark.parametrize("fsync", ["interval", "always"])
async def test_replies_stay_in_order_when_more_comes_behind(tmp_path: Path, fsync: str) -> None:
    """Pieces of one push each, not waited for, with other commands among them."""
    async with running(tmp_path, fsync=fsync) as server, dial(server) as line:
        pieces, wanted, at = [], [], 0
        for n in range(3000):
            if n % 7 == 5:
                pieces.append(b"PING\r\n")
                wanted.append(b"OK")
            elif n % 11 == 3:
                pieces.append(push("other", b"x\n"))
                wanted.append(b"OK ")
            else:
                pieces.append(push("app", b"%06d\n" % n))
                wanted.append(b"OK %d 1" % at)
                at += 1

        async def send() -> None:
            for n, piece in enumerate(pieces):
                await line.send(piece)
                if n % 3 == 0:
                    await asyncio.sleep(0)  # the reader's turn; what it was sent is still under way

        sending = asyncio.ensure_future(send())
        for head in wanted:
            assert (await line.read_line()).startswith(head)
        await sending


async def test_a_stop_answers_those_who_wait_or_stores_nothing(tmp_path: Path) -> None:
    """Every message with an OK is there afterwards, and no other."""
    async with running(tmp_path, fsync="always") as server:
        told: dict[int, bytes] = {}

        async def write(name: bytes) -> None:
            async with dial(server) as line:
                for n in range(100_000):
                    message = b"%b-%06d" % (name, n)
                    try:
                        reply = (await line.ask(push("app", message + b"\n"))).head
                    except (asyncio.IncompleteReadError, ConnectionError):
                        return
                    if not reply.startswith(b"OK "):
                        assert reply.startswith(b"ERR shutting-down")
                        return
                    told[int(reply.split()[1])] = message

        writers = [asyncio.ensure_future(write(b"w%d" % n)) for n in range(8)]
        while len(told) < 200:
            assert not any(writer.done() for writer in writers), told
            await asyncio.sleep(0)
        os.kill(server.pid, signal.SIGTERM)
        await asyncio.gather(*writers)
        assert server.process is not None
        await asyncio.to_thread(server.process.wait, HANG_S)
        stored = messages(server.stored("app"))
        assert {n: stored[n] for n in told} == told


@pytest.mark.parametrize("fsync", MODES)
async def test_those_that_come_together_share_a_write_though_it_was_quiet(
    tmp_path: Path, fsync: str
) -> None:
    """The first of them may be stored at once. None of the others may wait for one sync each.

    Where the daemon loses the processor between two of them, the second is a first one too.
    """
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running(tmp_path, fsync=fsync))
        lines = [await stack.enter_async_context(dial(server)) for _ in range(16)]
        for line in lines:  # one after the other: each comes alone
            await line.ask(push("app", b"first\n"))
        before = len(batches(server.stored("app")))
        os.kill(server.pid, signal.SIGSTOP)
        for line in lines:
            await line.send(push("app", b"other\n"))
        for line in lines:
            await line.arrived()
        os.kill(server.pid, signal.SIGCONT)
        offsets = {(await line.read_line()).split()[1] for line in lines}
        assert len(offsets) == 16
        assert len(batches(server.stored("app"))) - before <= 8


@pytest.mark.parametrize("fsync", MODES)
async def test_what_comes_behind_a_single_message_is_stored_behind_it(
    tmp_path: Path, fsync: str
) -> None:
    """Behind large pushes a connection has a buffer of 8 KiB. Filled to the last byte, it is read
    again in the same turn: the second push is there before the first is written."""
    async with running(tmp_path, fsync=fsync) as server, dial(server) as line:
        for body in (b"x" * 99_999 + b"\n", b"x" * 99_999 + b"\n", b"s\n", b"s\n"):
            await line.ask(push("app", body))
        first = push("app", b"x" * (8192 - len("PUSH app 8176\r\n") - 1) + b"\n")
        assert len(first) == 8192
        for _ in range(20):
            await line.send(first + push("app", b"y\n"))
            offsets = [int((await line.read_line()).split()[1]) for _ in range(2)]
            assert offsets == sorted(offsets)
            await line.ask(push("app", b"s\n"))
