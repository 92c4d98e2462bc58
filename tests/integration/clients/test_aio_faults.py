"""Asyncio clients on a real daemon that is killed, behind a proxy that cuts: each message once.

`LOGD_LONG` makes it many rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

from logd.aio import Client, Reader, Writer
from logd.wire.addresses import ConnectionLost
from tests.integration.clients.aio_kinds import Kind, on_loops, run
from tests.support.daemon import Daemon, running
from tests.support.long_run import LONG
from tests.support.proxy import Proxy, cuts

ROUNDS = 40 if LONG else 1
MESSAGES, FAULTS = 3000, 15


async def write(address: str, chance: random.Random, spool: Path | None) -> None:
    writer = Writer(
        address, "app", batch_bytes=chance.choice([100, 1000]), queue_bytes=10_000, spool=spool,
        connect="later", patience_s=None if spool else 60.0,
    )  # fmt: skip
    async with writer:
        for n in range(1, MESSAGES):
            await writer.write(b"%d" % n)
            if chance.random() < 0.01:
                await asyncio.sleep(0.002)
            if chance.random() < 0.003:
                await writer.flush()
        await writer.flush()
    assert writer.acknowledged == MESSAGES - 1


async def read(address: str, cursor: Path, found: list[bytes]) -> None:
    """Reader after reader, each from where the last one stopped."""
    while len(found) < MESSAGES:
        left = MESSAGES - len(found)
        reader = Reader(address, "app", follow=True, limit=min(left, 1000), cursor=cursor)
        try:
            await reader.open()
        except ConnectionLost:
            continue  # it wants somebody to be there when it begins
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(reader.close)
            async for batch in reader.batches():
                assert batch.offset == len(found)
                found.extend(batch.messages)


async def disturb(daemon: Daemon, proxy: Proxy, chance: random.Random) -> None:
    for _ in range(FAULTS):
        await asyncio.sleep(chance.uniform(0.01, 0.2))
        if chance.random() < 0.7:
            proxy.plan = cuts(*(chance.randrange(3000) for _ in range(chance.randrange(3))))
            proxy.cut()
        else:
            await asyncio.to_thread(daemon.kill)
            await asyncio.to_thread(daemon.start)
            proxy.target = daemon.address
            proxy.cut()


@on_loops
@pytest.mark.slow
@pytest.mark.parametrize("spooled", [False, True])
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_killed_and_cut_at_random(kind: Kind, seed: int, spooled: bool, tmp_path: Path) -> None:
    chance, found = random.Random(seed), list[bytes]()

    async def scenario(kind: Kind) -> None:
        async with Client(daemon.address) as client:
            await client.push("app", [b"0"])  # readers want the topic to be there
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(disturb(daemon, proxy, chance))
            tasks.create_task(write(proxy.address, chance, tmp_path / "spool" if spooled else None))
            tasks.create_task(read(proxy.address, tmp_path / "cursor", found))

    with running(tmp_path) as daemon, Proxy(daemon.address) as proxy:
        run(kind, scenario)
        assert found == [b"%d" % n for n in range(MESSAGES)]
