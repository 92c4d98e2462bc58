"""Stops, orderly and not: what was acknowledged is there afterwards, and nothing is half there."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from logd.batch import body_sum, encode_header
from tests.support.daemon import Daemon, batches, dial, messages, push, running


async def test_a_clean_stop_after_nothing_was_written(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        async with dial(server) as line:
            await line.send(push("app", b"x\n"))
            await line.expect(b"OK 0 1\r\n")
        for how in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            assert server.stop(how) == 0
            server.start()
            assert "not clean" not in server.log
        server.kill()
        server.start()
        assert "not clean" not in server.log, "nothing was written since the clean stop"


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_times_never_go_back(tmp_path: Path, how: str) -> None:
    """A batch from an hour ahead, as a clock that was set back leaves it: none is older behind."""
    async with running(tmp_path) as server:
        async with dial(server) as line:
            await line.send(push("app", b"x\n"))
            await line.expect(b"OK 0 1\r\n")
        server.kill()
        (log,) = server.log_files("app")
        ahead_ms = batches(log.read_bytes())[0].header.time_ms + 3_600_000
        head = encode_header(1, 1, 2, ahead_ms, "lines", body_sum(b"y\n"))
        log.write_bytes(log.read_bytes() + head + b"y\n")
        for offset in (2, 3):
            server.start()
            async with dial(server) as line:
                await line.send(push("app", b"z\n"))
                await line.expect(b"OK %d 1\r\n" % offset)
                assert 3_000_000 < await line.stat("clock_behind_ms", "app") < 4_000_000
            assert batches(log.read_bytes())[-1].header.time_ms == ahead_ms
            (server.stop if how == "stop" else server.kill)()


async def test_no_new_connections_while_it_stops(tmp_path: Path) -> None:
    async with running(tmp_path) as server, dial(server) as line:
        await line.send(b"PING\r\n")
        await line.expect(b"OK\r\n")
        assert await asyncio.to_thread(server.stop) == 0
        await line.expect_end()
        with pytest.raises(ConnectionRefusedError):
            async with dial(server):
                pass


async def test_an_unfinished_push_is_not_stored_at_a_stop(tmp_path: Path) -> None:
    async with running(tmp_path) as server, dial(server) as line:
        await line.send(push("app", b"whole\n") + b"PUSH app 100\r\nhalf")
        await line.expect(b"OK 0 1\r\n")
        assert await asyncio.to_thread(server.stop) == 0
        assert messages(server.stored("app")) == [b"whole"]


async def test_a_stop_does_not_wait_for_who_does_not_read(tmp_path: Path) -> None:
    async with running(tmp_path) as server, dial(server) as line, dial(server) as other:
        await other.send(push("app", b"x" * 999_999 + b"\n") * 20)
        for i in range(20):
            await other.expect(b"OK %d 1\r\n" % i)
        await line.send(b"READ app 0 1000\r\n" * 20 + b"PING\r\n")
        await other.until("reads", 1)
        assert await asyncio.to_thread(server.stop) == 0
        assert "could not stop" not in server.log
        server.start()
        assert "not clean" not in server.log


# A daemon on a disk that hangs: in each read of what is not in memory, or in each sync of a log.
HANGING = """
import os, threading
from logd.storage import disk
from logd.__main__ import main

def not_cached(file, position, size):
    raise disk.NotCached(file, position, size)

def hanging_read(cold):
    threading.Event().wait()

def hanging_sync(fd):
    if os.readlink(f"/proc/self/fd/{fd}").endswith(".log"):
        threading.Event().wait()

"""
READS_HANG = "disk.File.read, disk.NotCached.warm = not_cached, hanging_read"
SYNCS_HANG = "os.fdatasync = hanging_sync"


def on_a_hanging_disk(tmp_path: Path, fault: str, stop_timeout: int) -> Daemon:
    server = running(tmp_path, stop_timeout=stop_timeout)
    server.command[1:3] = ["-c", f"{HANGING}{fault}\nmain()"]
    return server


def start_on_a_sound_disk(server: Daemon) -> None:
    server.command[1:3] = ["-m", "logd"]
    server.start()


async def test_a_stop_does_not_wait_for_a_read_that_hangs(tmp_path: Path) -> None:
    """Everything is synced and closed; who asked gets no answer."""
    server = on_a_hanging_disk(tmp_path, READS_HANG, stop_timeout=20)
    async with server, dial(server) as line:
        await line.send(push("app", b"x\n") + b"PING\r\nREAD app 0 1\r\n")
        await line.expect(b"OK 0 1\r\nOK\r\n")  # and the read has begun
        assert await asyncio.to_thread(server.stop) == 0
        start_on_a_sound_disk(server)
        assert "not clean" not in server.log


async def test_a_stop_that_the_disk_does_not_let_end_leaves_as_a_kill_would(
    tmp_path: Path,
) -> None:
    server = on_a_hanging_disk(tmp_path, SYNCS_HANG, stop_timeout=3)
    async with server, dial(server) as line:
        assert (await line.ask(push("app", b"x\n"))).head == b"OK 0 1"
        assert await asyncio.to_thread(server.stop) == 1
        assert "shutdown timed out after 3.0 s" in server.log
        start_on_a_sound_disk(server)
        assert "not clean" in server.log
        assert messages(server.stored("app")) == [b"x"]


# -- torn tails ---------------------------------------------------------------------------------

FORGED = encode_header(999, 1, 2, 9_999_999_999_999, "lines", body_sum(b"x\n")) + b"x\n"


def next_batch(data: bytes, damage: int) -> bytes:
    """The batch that would come next, with one byte of it changed."""
    last = batches(data)[-1].header
    body = b"next\n"
    head = encode_header(last.next, 1, len(body), last.time_ms, "lines", body_sum(body))
    whole = bytearray(head + body)
    whole[damage] ^= 1
    return bytes(whole)


TAILS: dict[str, Callable[[bytes], bytes]] = {
    "one zero": lambda data: data + b"\0",
    "zeros": lambda data: data + bytes(10_000),
    "garbage": lambda data: data + bytes(range(256)) * 20,
    "half a header": lambda data: data + FORGED[:20],
    "a batch of another place": lambda data: data + FORGED,
    "a damaged header": lambda data: data + next_batch(data, 8),
    "a damaged body": lambda data: data + next_batch(data, -2),
    "a batch without its body": lambda data: data + next_batch(data, -1)[:-5],
    "all of it twice": lambda data: data + data,
    "cut by one byte": lambda data: data[:-1],
    "cut in a header": lambda data: data[: batches_end(data, -1) + 5],
    "cut in the last body but one": lambda data: data[: batches_end(data, -1) - 1],
    "cut to half a header": lambda data: data[:10],
}


def batches_end(data: bytes, index: int) -> int:
    """Where the batch of this index starts."""
    return len(b"".join(batch.data for batch in batches(data)[:index]))


@pytest.mark.parametrize("tear", TAILS.values(), ids=TAILS)
async def test_a_torn_tail_is_cut_and_kept_aside(
    tmp_path: Path, tear: Callable[[bytes], bytes]
) -> None:
    """With fsync=never nothing is known to be durable, so that any suffix may have been lost."""
    async with running(tmp_path, fsync="never", partition_bytes=300) as server:
        async with dial(server) as line:
            for i in range(13):
                await line.send(push("app", b"message %d\n" % i, f"id=p:{i}"))
                assert (await line.read_line()).startswith(b"OK ")
        server.kill()
        *older, active = server.log_files("app")
        assert older
        assert len(batches(active.read_bytes())) > 1
        kept_before = b"".join(path.read_bytes() for path in older)
        torn = tear(active.read_bytes())
        active.write_bytes(torn)
        server.start()
        kept = active.read_bytes()
        assert torn.startswith(kept)
        assert len(kept) < len(torn), "something was cut"
        assert batches(kept_before + kept) == batches(kept_before) + whole_batches(torn)
        (copy,) = (server.topic_dir("app") / "quarantine").iterdir()
        assert copy.read_bytes() == torn[len(kept) :]
        assert str(len(torn) - len(kept)) in server.log
        assert copy.name in server.log
        await check_it_goes_on(server)


async def test_a_second_torn_tail_does_not_take_the_first_ones_place(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        async with dial(server) as line:
            await line.send(push("app", b"x\n"))
            await line.expect(b"OK 0 1\r\n")
        (log,) = server.log_files("app")
        for tail in (b"first tail", b"other tail"):
            server.kill()
            log.write_bytes(log.read_bytes() + tail)
            server.start()
        copies = (server.topic_dir("app") / "quarantine").iterdir()
        assert sorted(copy.read_bytes() for copy in copies) == [b"first tail", b"other tail"]


def whole_batches(data: bytes) -> list[object]:
    """The sound batches that `data` starts with, found by trying every length."""
    for end in range(len(data), -1, -1):
        with contextlib.suppress(Exception):
            return list(batches(data[:end]))
    return []


async def check_it_goes_on(server: Daemon) -> None:
    """Offsets go on where the log ends now; ids of what is there are known, others are new."""
    count = len(messages(server.stored("app")))
    async with dial(server) as line:
        for n in range(count + 3):
            body = b"message %d\n" % n if n < count else b"another %d\n" % n
            assert (await line.ask(push("app", body, f"id=p:{n}"))).head == b"OK %d 1" % n
        reply = await line.ask(b"READ app 0 1000\r\n")
    assert len(messages(server.stored("app"))) == count + 3
    assert reply.body == server.stored("app")
    assert server.stop() == 0
    server.start()
    assert " cut " not in server.log
