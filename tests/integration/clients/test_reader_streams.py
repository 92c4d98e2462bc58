"""Readers that follow with FOLLOW: what they send, and how streams end, break and continue."""

# ruff: noqa: PT012

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logd
from logd import aio
from logd.errors import OutOfRange, UnknownCommand
from logd.wire import commands
from logd.wire.addresses import ConnectionLost
from logd.wire.requests import Follow
from tests.integration.clients.aio_kinds import (
    HANG_S,
    Kind,
    each,
    on_each,
    on_loops,
    on_one,
    opened,
    run,
    started,
    value,
)
from tests.integration.clients.aio_peers import UNKNOWN, Fake
from tests.support.daemon import running
from tests.support.proxy import Proxy, cuts

HEARTBEAT_S, LIMIT_S = 2.0, 0.5


def numbered(*counts: int) -> Fake:
    """Each message is its own offset."""
    peer = Fake()
    for count in counts:
        store(peer, count)
    return peer


def store(peer: Fake, count: int) -> None:
    peer.store([b"%d" % n for n in range(peer.next, peer.next + count)])


def asked(peer: Fake) -> list[bytes]:
    """The commands that came, without those about the topic as a whole."""
    return [line.rstrip() for line in peer.lines if not line.startswith((b"STATS", b"PING"))]


async def until(peer: Fake, is_so: Callable[[], bool]) -> None:
    def wait() -> bool:
        with peer.grown:
            return peer.grown.wait_for(is_so, HANG_S)

    assert await asyncio.to_thread(wait)


async def take(kind: Kind, reader: Any, count: int) -> list[int]:
    """The offsets of the next messages, which may have to be waited for."""
    if kind.name == "blocking":
        messages = iter(reader)
        found = [await asyncio.to_thread(next, messages) for _ in range(count)]
    else:
        found = [await anext(reader) for _ in range(count)]
    assert all(message.value == b"%d" % message.offset for message in found)
    return [message.offset for message in found]


# -- what is sent ---------------------------------------------------------------------------------


@on_each
def test_one_command_for_all_messages(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        async with opened(kind.Reader(peer.address, "app", follow=True)) as reader:
            assert await take(kind, reader, 3) == [0, 1, 2]
            for offset in range(3, 9):
                store(peer, 1)
                assert await take(kind, reader, 1) == [offset]
        await until(peer, lambda: not peer.streams)  # its connection has ended

    with numbered(1, 2) as peer:
        run(kind, scenario)
        assert asked(peer) == [b"FOLLOW app first bytes=1048576"]


@on_each
@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({"start": "next"}, [b"FOLLOW app next bytes=1048576"]),
        ({"start": 3, "read_bytes": 10}, [b"FOLLOW app 3 bytes=10"]),
        ({"tail": 2, "limit": 3}, [b"TAIL app 2", b"FOLLOW app 3 bytes=1048576"]),
        ({"tail": 0}, [b"FOLLOW app next bytes=1048576"]),
    ],
)
def test_where_the_stream_starts(kind: Kind, options: dict[str, Any], sent: list[bytes]) -> None:
    async def scenario(kind: Kind) -> None:
        async with opened(kind.Reader(peer.address, "app", follow=True, **options)) as reader:
            if options.get("tail"):
                assert await take(kind, reader, 2) == [1, 2]
            waiting = asyncio.create_task(take(kind, reader, 1))
            await until(peer, lambda: bool(peer.streams))
            store(peer, 1)
            assert await waiting == [3]

    with numbered(1, 2) as peer:
        run(kind, scenario)
        assert asked(peer) == sent


@on_each
@pytest.mark.parametrize("options", [{}, {"until_ms": 1 << 60}])
def test_reads_where_a_stream_cannot_be_used(kind: Kind, options: dict[str, Any]) -> None:
    """On a Client that others use too, and where a clock ends the wait."""

    async def scenario(kind: Kind) -> None:
        async with opened(kind.Client(peer.address)) as client:
            target = peer.address if options else client
            async with opened(kind.Reader(target, "app", follow=True, **options)) as reader:
                assert await take(kind, reader, 3) == [0, 1, 2]
            if not options:
                await value(client.ping())

    with numbered(1, 2) as peer:
        run(kind, scenario)
        assert {line.split()[0] for line in asked(peer)} == {b"READ"}


@on_each
def test_a_server_without_streams_is_read_from_as_before(kind: Kind) -> None:
    troubles: list[Exception] = []

    async def scenario(kind: Kind) -> None:
        options: dict[str, Any] = {"follow": True, "on_trouble": troubles.append}
        async with opened(kind.Reader(peer.address, "app", **options)) as reader:
            assert await take(kind, reader, 3) == [0, 1, 2]
            assert not troubles
            peer.cut()
            store(peer, 1)
            assert await take(kind, reader, 1) == [3]

    with numbered(1, 2) as peer:
        peer.wrong = [(b"FOLLOW", UNKNOWN)]
        run(kind, scenario)
        assert [line.split()[0] for line in asked(peer)][:2] == [b"FOLLOW", b"READ"]
        assert sum(line.startswith(b"FOLLOW") for line in peer.lines) == 1
    assert not any(isinstance(trouble, UnknownCommand) for trouble in troubles)


# -- how it ends, breaks and continues ------------------------------------------------------------


@on_each
@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"limit": 5}, range(5)),
        ({"start": 1, "limit": 3}, range(1, 4)),
        ({"until": 4}, range(4)),
        ({"until": 7, "limit": 9, "start": 2}, range(2, 7)),
        ({"tail": 4, "limit": 2}, range(8, 10)),
    ],
)
def test_the_end_is_where_it_was_asked_for(
    kind: Kind, options: dict[str, Any], wanted: range
) -> None:
    async def scenario(kind: Kind) -> None:
        async with opened(kind.Reader(peer.address, "app", follow=True, **options)) as reader:
            assert [message.offset async for message in each(reader)] == list(wanted)
            assert await value(reader.next_batch()) is None
            await until(peer, lambda: not peer.streams)  # before it is closed

    with numbered(1, 2, 3, 1, 5) as peer:
        run(kind, scenario)


@on_each
@pytest.mark.parametrize("size", range(0, 330, 37))
def test_following_over_a_cut_at_any_byte(kind: Kind, size: int) -> None:
    async def scenario(kind: Kind) -> list[int]:
        reader = kind.Reader(proxy.address, "app", follow=True, until=12)
        async with opened(reader):
            return [message.offset async for message in each(reader)]

    with numbered(1, 2, 3, 1, 5) as peer, Proxy(peer.address, cuts(200, size, size)) as proxy:
        assert run(kind, scenario) == list(range(12))


@on_each
def test_the_end_of_a_stream_is_a_lost_connection(kind: Kind) -> None:
    troubles: list[Exception] = []

    async def scenario(kind: Kind) -> None:
        options: dict[str, Any] = {"follow": True, "on_trouble": troubles.append}
        async with opened(kind.Reader(peer.address, "app", **options)) as reader:
            assert await take(kind, reader, 3) == [0, 1, 2]
            for offset in range(3, 6):
                peer.end_streams()
                store(peer, 1)
                assert await take(kind, reader, 1) == [offset]

    with numbered(1, 2) as peer:
        run(kind, scenario)
        assert sum(line.startswith(b"STATS") for line in peer.lines) == 4
    assert [type(trouble) for trouble in troubles] == [ConnectionLost] * 3
    assert all("it ended the stream" in str(trouble) for trouble in troubles)


@on_each
@pytest.mark.parametrize("or_first", [False, True])
def test_messages_that_expire_before_they_were_sent(kind: Kind, or_first: bool) -> None:
    gaps: list[Any] = []

    async def scenario(kind: Kind) -> None:
        options: dict[str, Any] = {"follow": True, "or_first": or_first, "on_gap": gaps.append}
        async with opened(kind.Reader(peer.address, "app", **options)) as reader:
            assert await take(kind, reader, 3) == [0, 1, 2]
            with peer.grown:
                peer.first = peer.next = 7
                store(peer, 2)
            if or_first:
                assert await take(kind, reader, 2) == [7, 8]
            else:
                for _ in range(2):
                    with pytest.raises(OutOfRange, match="first=7 next=9"):
                        await value(reader.next_batch())

    with numbered(1, 2) as peer:
        run(kind, scenario)
        assert sum(line.startswith(b"STATS") for line in peer.lines) == 1  # the same connection
    assert [gap[:2] for gap in gaps] == ([(3, 4)] if or_first else [])


# -- silence --------------------------------------------------------------------------------------


@on_one
def test_a_cursor_is_saved_while_nothing_comes(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logd.client.read_progress.SAVE_S", 0.0)
    consumed: list[int] = [0]

    async def scenario(kind: Kind) -> None:
        options: dict[str, Any] = {"cursor": "me", "consumed": lambda: consumed[0]}
        async with opened(kind.Reader(peer.address, "app", follow=True, **options)) as reader:
            assert await take(kind, reader, 3) == [0, 1, 2]
            waiting = started(kind, reader.next_batch)
            await until(peer, lambda: peer.heartbeats > 1)
            consumed[0] = 2
            await until(peer, lambda: peer.cursors == {b"me": 2})
            store(peer, 1)
            assert (await waiting).offset == 3

    with numbered(1, 2) as peer:
        peer.heartbeat_s = 0.02
        run(kind, scenario)


async def next_reply(kind: Kind, client: Any, reply: Any) -> tuple[Any, Any]:
    """The next reply of a stream, and the future of the one after it."""
    if kind.name == "blocking":
        return await asyncio.to_thread(client.receive), None
    return await reply, client.receive()


@on_each
def test_a_stream_without_heartbeats_is_a_lost_connection(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "HEARTBEAT_MS", 1000 * HEARTBEAT_S)

    async def scenario(kind: Kind) -> None:
        async with opened(kind.Client(peer.address, timeout_s=LIMIT_S)) as client:
            sent = client.send(commands.follow(Follow("app", "first")))
            reply, sent = await next_reply(kind, client, sent)
            assert (reply.offset, reply.messages) == (0, 1)
            for _ in range(3):  # longer than the limit, all together
                reply, sent = await next_reply(kind, client, sent)
                assert reply == (1, 0, b"")
            peer.heartbeat_s = None
            with pytest.raises(ConnectionLost, match="did not answer in time"):
                while True:
                    _, sent = await next_reply(kind, client, sent)

    with numbered(1) as peer:
        peer.heartbeat_s = HEARTBEAT_S / 2
        run(kind, scenario)


# -- asyncio: bounded memory ----------------------------------------------------------------------


def connection(reader: aio.Reader) -> Any:
    assert reader._client is not None
    return reader._client._connection


@on_loops
def test_a_slow_program_holds_two_replies(kind: Kind, tmp_path: Path) -> None:
    size, count = 400_000, 150

    async def scenario(kind: Kind) -> None:
        async with aio.Reader(daemon.address, "app", follow=True, read_bytes=size) as reader:
            tracemalloc.start()
            assert (await anext(reader)).offset == 0
            for _ in range(2):
                while not connection(reader)._is_paused:
                    await asyncio.sleep(0.001)
                for _ in range(100):
                    await asyncio.sleep(0)
                assert tracemalloc.get_traced_memory()[1] < 6 * size
                connection(reader)._heard_at_s = 0.0
                for _ in range(2):
                    connection(reader)._look()  # the time limit does not apply
                assert connection(reader).is_open
                await anext(reader)
            tracemalloc.stop()
            assert [(await anext(reader)).offset for _ in range(count - 3)] == [*range(3, count)]

    with running(tmp_path, fsync="never") as daemon:
        with logd.Client(daemon.address) as client:
            for n in range(count):
                client.push("app", [bytes([n % 10]) * size])
        run(kind, scenario)


@on_loops
@pytest.mark.parametrize("turns", [0, 1, 2, 5])
def test_many_small_replies_and_a_slow_program(kind: Kind, turns: int) -> None:
    """More than fits the buffer for reply lines, in pieces of any size."""

    async def scenario(kind: Kind) -> None:
        async with aio.Reader(peer.address, "app", follow=True, until=500) as reader:
            found = []
            async for batch in reader.batches():
                found += batch.messages
                for _ in range(turns):
                    await asyncio.sleep(0)
            assert found == [b"%d" % n for n in range(500)]

    with numbered(*[1] * 500) as peer:
        run(kind, scenario)


@on_loops
def test_a_reply_that_was_not_taken_survives_the_end_of_the_connection(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        troubles: list[Exception] = []
        options: dict[str, Any] = {"follow": True, "on_trouble": troubles.append}
        async with aio.Reader(peer.address, "app", **options) as reader:
            assert (await anext(reader)).offset == 0
            while not reader._reply or not reader._reply.done():
                await asyncio.sleep(0.001)
            await asyncio.to_thread(peer.cut)
            while connection(reader).is_open:
                await asyncio.sleep(0.001)
            assert (await anext(reader)).offset == 1
            assert not troubles
            store(peer, 1)
            assert [(await anext(reader)).offset for _ in range(2)] == [2, 3]
            assert len(troubles) == 1

    with numbered(1, 2) as peer:
        run(kind, scenario)


@on_loops
def test_a_lost_stream_of_a_reader_that_is_closed_is_not_reported(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        async with aio.Reader(peer.address, "app", follow=True) as reader:
            assert [(await anext(reader)).offset for _ in range(3)] == [0, 1, 2]
            await asyncio.to_thread(peer.cut)
            while connection(reader).is_open:
                await asyncio.sleep(0.001)

    with numbered(1, 2) as peer:
        run(kind, scenario)
