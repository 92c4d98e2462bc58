"""id=: a retry is answered as the first try was, whatever happened to the daemon in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from logd.errors import LogdError
from logd.wire.replies import parse_reply
from tests.support.daemon import Daemon, batches, dial, messages, push, running

MODES = ["never", "interval", "batches", "always"]
PARTITIONS = [1, 250, 1 << 30]


def again(server: Daemon) -> None:
    """No restart at all."""


def restart(server: Daemon) -> None:
    assert server.stop() == 0
    server.start()


def killed(server: Daemon) -> None:
    server.kill()
    server.start()


def forgetful(server: Daemon) -> None:
    """Killed, and all that was saved of producers is gone: the log itself remembers."""
    server.kill()
    for path in server.topic_dir("app").glob("*.ids"):
        path.unlink()
    server.start()


def stopped_and_forgetful(server: Daemon) -> None:
    assert server.stop() == 0
    for path in server.topic_dir("app").glob("*.ids"):
        path.write_bytes(path.read_bytes()[:-1])
    server.start()


BETWEEN = [again, restart, killed, forgetful, stopped_and_forgetful]


def refusal(reply: bytes) -> str:
    error = parse_reply(reply)
    return (
        f"{error.code} {error.text.split()[0]}" if isinstance(error, LogdError) else reply.decode()
    )


@pytest.mark.parametrize("partition_bytes", PARTITIONS)
@pytest.mark.parametrize("between", BETWEEN)
async def test_retries_are_answered_as_the_first_try_was(
    tmp_path: Path, between: Callable[[Daemon], None], partition_bytes: int
) -> None:
    settings = {"partition_bytes": partition_bytes, "fsync": "always"}
    async with running(tmp_path, **settings) as server:
        bodies = [b"%d\n" % i * (1 + i % 3) for i in range(12)]
        requests = [push("app", body, f"id=p:{i}") for i, body in enumerate(bodies)]
        async with dial(server) as line:
            await line.send(b"".join(requests))
            first = [await line.read_line() for _ in requests]
            assert all(reply.startswith(b"OK ") for reply in first)
            stored = server.stored("app")
        between(server)
        async with dial(server) as line:
            for i in (11, 0, 5, 5, *range(12)):
                assert (await line.ask(requests[i])).head == first[i]
            assert server.stored("app") == stored
            for id_, expected in (
                ("p:13", "out-of-order last=11"),
                ("p:0", "conflict p:0"),
                ("p:11", "conflict p:11"),
                ("p:12", f"OK {sum(body.count(10) for body in bodies)} 1"),
            ):
                reply = await line.ask(push("app", b"another\n", f"id={id_}"))
                assert refusal(reply.head) == expected


@pytest.mark.parametrize("fsync", MODES)
async def test_retries_of_batches_that_are_still_on_their_way(tmp_path: Path, fsync: str) -> None:
    """The same pipeline from several connections at once: stored once, answered alike."""

    async def push_all(server: Daemon) -> list[bytes]:
        async with dial(server) as line:
            requests = [push("app", b"%d\n" % i, f"id=p:{i}") for i in range(200)]
            sending = asyncio.ensure_future(line.send(b"".join(requests)))
            replies = [await line.read_line() for _ in requests]
            await sending
            return replies

    async with running(tmp_path, fsync=fsync, partition_bytes=5000) as server:
        async with dial(server) as line:
            assert (await line.ask(push("app", b"0\n", "id=p:0"))).head == b"OK 0 1"
        everyones = await asyncio.gather(*(push_all(server) for _ in range(4)))
        for replies in everyones:
            wrong = [reply for reply in replies if not reply.startswith(b"OK ")]
            assert not wrong
            assert replies == [b"OK %d 1" % i for i in range(200)]
        assert messages(server.stored("app")) == [b"%d" % i for i in range(200)]


async def test_a_gap_in_a_pipeline_stops_all_that_follow(daemon: Daemon) -> None:
    """Batch 5 failed, so 6 and 7 must not get in before it is sent again."""
    async with dial(daemon) as line:
        good = [push("app", b"%d\n" % i, f"id=p:{i}") for i in range(8)]
        broken = push("app", b"5\n", "id=p:5 sum=0123456789abcdef")
        await line.send(b"".join([*good[:5], broken, *good[6:]]))
        heads = [refusal(await line.read_line()) for _ in range(8)]
        assert heads[:5] == [f"OK {i} 1" for i in range(5)]
        assert heads[5].startswith("checksum ")
        assert heads[6:] == ["out-of-order last=4"] * 2
        await line.send(b"".join(good[5:]))
        await line.expect(b"OK 5 1\r\nOK 6 1\r\nOK 7 1\r\n")


@pytest.mark.parametrize("between", [again, restart, killed])
async def test_the_last_1024_batches_are_remembered(
    tmp_path: Path, between: Callable[[Daemon], None]
) -> None:
    async with running(tmp_path, partition_bytes=20_000) as server:
        async with dial(server) as line:
            await line.send(b"".join(push("app", b"x\n", f"id=p:{i}") for i in range(1100)))
            for i in range(1100):
                await line.expect(b"OK %d 1\r\n" % i)
        between(server)
        async with dial(server) as line:
            for n, expected in (
                (1099, "OK 1099 1"),
                (76, "OK 76 1"),
                (75, "out-of-order last=1099"),
            ):
                reply = await line.ask(push("app", b"x\n", f"id=p:{n}"))
                assert refusal(reply.head) == expected


async def test_ids_stay_with_compressed_and_sized_batches(daemon: Daemon) -> None:
    async with dial(daemon) as line:
        sized = push("app", b"1 1\n\n\0", "enc=sized id=p:1")
        assert (await line.ask(sized)).head == b"OK 0 2"
        assert (await line.ask(sized)).head == b"OK 0 2"
        assert len(batches(daemon.stored("app"))) == 1
