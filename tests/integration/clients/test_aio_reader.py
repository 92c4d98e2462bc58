"""The asyncio reader: cancelled and asked again, used twice, and left at any place."""

# ruff: noqa: PT012

from __future__ import annotations

import asyncio

import pytest

from logd.aio import Client, Reader
from logd.errors import LogdError, NotFound
from tests.integration.clients.aio_kinds import Kind, on_loops, run
from tests.integration.clients.aio_peers import Fake
from tests.support.proxy import Proxy, cuts


def numbered(*counts: int) -> Fake:
    """Each message is its own offset."""
    peer = Fake()
    for count in counts:
        peer.store([b"%d" % n for n in range(peer.next, peer.next + count)])
    return peer


@on_loops
@pytest.mark.parametrize("on_client", [False, True])
def test_a_cancelled_wait_loses_nothing(kind: Kind, on_client: bool) -> None:
    async def scenario(kind: Kind) -> None:
        async with Client(peer.address) as client:
            found: list[int] = []
            async with Reader(client if on_client else peer.address, "app", follow=True) as reader:
                for n in range(20):
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.01):
                            async for message in reader:
                                found.append(message.offset)
                    peer.store([b"%d" % (6 + n)])
                while len(found) < 26:
                    found.append((await anext(reader)).offset)
            assert found == list(range(26))
            await asyncio.wait_for(client.ping(), 60)

    with numbered(1, 2, 3) as peer:
        run(kind, scenario)


@on_loops
@pytest.mark.parametrize("follow", [False, True])
def test_cancelled_at_any_turn_of_the_loop(kind: Kind, follow: bool) -> None:
    """While it connects, asks, waits or pauses: what is read in the end is all, once."""

    async def read_on(reader: Reader, found: list[int]) -> None:
        async for message in reader:
            found.append(message.offset)

    async def scenario(kind: Kind) -> None:
        for turns in range(0, 40, 3):
            proxy.plan = cuts(60, 90, 40, 300)
            async with Reader(proxy.address, "app", follow=follow, until=12) as reader:
                found: list[int] = []
                for _ in range(5):
                    task = asyncio.create_task(read_on(reader, found))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.wait([task])
                await read_on(reader, found)
                assert found == list(range(12))

    with numbered(1, 2, 3, 1, 5) as peer, Proxy(peer.address) as proxy:
        run(kind, scenario)


@on_loops
def test_breaking_off_and_going_on(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        async with Reader(peer.address, "app") as reader:
            async for message in reader:
                if message.offset == 1:
                    break
            assert [message.offset async for message in reader] == [2, 3, 4, 5]
            assert [message async for message in reader] == []
        async with Reader(peer.address, "app") as reader:
            async for batch in reader.batches():
                if batch.offset == 1:
                    break
            assert [batch.messages async for batch in reader.batches()] == [[b"3", b"4", b"5"]]
            assert await reader.next_batch() is None
            assert reader.next_offset == 6

    with numbered(1, 2, 3) as peer:
        run(kind, scenario)


@on_loops
def test_two_tasks_at_once_are_told(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        async with Reader(peer.address, "app", start=6, follow=True) as reader:
            waiting = asyncio.create_task(reader.next_batch())
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="another task"):
                await anext(reader)
            peer.store([b"6"])
            batch = await waiting
            assert batch is not None
            assert batch.messages == [b"6"]

    with numbered(1, 2, 3) as peer:
        run(kind, scenario)


@on_loops
def test_an_error_stays(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        async with Reader(peer.address, "app") as reader:
            for _ in range(3):
                with pytest.raises(NotFound):
                    await anext(reader)
        with pytest.raises(NotFound):
            await anext(reader)
        offset, count, data = peer.batches[0]
        peer.is_there, peer.batches[0] = True, (offset, count, data[:-2] + b"?\n")
        async with Reader(peer.address, "app") as reader:
            for _ in range(3):
                with pytest.raises(LogdError, match="checksum"):
                    await anext(reader)

    with numbered(1, 2) as peer:
        peer.is_there = False
        run(kind, scenario)


@on_loops
def test_closed_is_closed_and_unopened_is_told(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        reader = await Reader(peer.address, "app").open()
        await anext(reader)
        await reader.close()
        await reader.close()
        with pytest.raises(ValueError, match="closed"):
            await reader.next_batch()

    with numbered(1, 2) as peer:
        run(kind, scenario)


@on_loops
def test_a_follower_that_is_left_while_it_waits_ends_at_once(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        async def follow() -> None:
            async with Reader(peer.address, "app", follow=True, cursor="me") as reader:
                async for message in reader:
                    found.append(message.offset)

        found: list[int] = []
        task = asyncio.create_task(follow())
        while len(found) < 3:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert peer.cursors == {b"me": 3}  # it had asked for the one behind the last

    with numbered(1, 2) as peer:
        run(kind, scenario)
