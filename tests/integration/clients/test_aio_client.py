"""What only an asyncio client can do: many calls at once, and calls that are cancelled."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress

import pytest

from logd.aio import Client
from logd.errors import LogdError, NotFound, TooLarge
from logd.wire.addresses import ConnectionLost
from logd.wire.commands import PING
from tests.integration.clients.aio_kinds import Kind, on_loops, run
from tests.integration.clients.aio_peers import HANG_UP, Fake
from tests.support.listener import Listener


class Deaf(Listener):
    """Says the given words once so many bytes have come, and then closes without reading more."""

    def __init__(self, after_bytes: int, words: bytes) -> None:
        self._after_bytes, self._words = after_bytes, words
        self.has_closed = threading.Event()  # the first connection
        super().__init__()

    def _serve(self, connection: socket.socket) -> None:
        left = self._after_bytes
        while left > 0:
            left -= len(connection.recv(left))
        connection.sendall(self._words)

    def _serve_and_close(self, connection: socket.socket) -> None:
        super()._serve_and_close(connection)
        self.has_closed.set()


async def until(peer: Fake, lines: int) -> None:
    """Until so many commands have come in: each look is a turn of the loop."""
    while len(peer.lines) < lines:
        await asyncio.sleep(0.001)


@on_loops
def test_calls_of_many_tasks_share_the_connection_and_get_their_own_answers(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        async with Client(peer.address) as client:
            pushes = [client.push("app", [b"%d" % n]) for n in range(50)]
            assert [pushed.offset for pushed in await asyncio.gather(*pushes)] == list(range(50))
            answers = await asyncio.gather(
                client.ping(), client.read("app", 99, 1), client.stats("app"), client.ping(),
                return_exceptions=True,
            )  # fmt: skip
            assert isinstance(answers[1], LogdError)
            assert answers[0] is answers[3] is None
            assert client.in_flight == 0

    with Fake() as peer:
        run(kind, scenario)


@on_loops
def test_what_is_called_behind_a_read_that_waits_is_sent_at_once_and_answered_later(
    kind: Kind,
) -> None:
    async def scenario(kind: Kind) -> None:
        async with Client(peer.address) as client:
            order: list[str] = []
            waiting = asyncio.create_task(client.read("app", 1, 1, wait_ms=60_000))
            waiting.add_done_callback(lambda _: order.append("read"))
            await until(peer, 1)
            ping = asyncio.create_task(client.ping())
            ping.add_done_callback(lambda _: order.append("ping"))
            await asyncio.sleep(0)
            assert client.in_flight == 2
            peer.store([b"new"])
            await asyncio.gather(waiting, ping)
            assert order == ["read", "ping"]

    with Fake([b"there"]) as peer:
        run(kind, scenario)


@on_loops
def test_a_cancelled_call_keeps_its_place_and_its_answer_is_thrown_away(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        async with Client(peer.address) as client:
            for _ in range(3):
                waiting = asyncio.create_task(client.read("app", 1, 1, wait_ms=60_000))
                refused = asyncio.create_task(client.cursor("app", "nobody"))
                other = asyncio.create_task(client.stats("app"))
                await asyncio.sleep(0)
                assert client.in_flight == 3
                for task in (waiting, refused):
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                peer.store([b"new"])
                assert (await other)["epoch"] == "1"
                del peer.batches[1:]
                peer.next = 1
            with pytest.raises(NotFound):
                await client.cursor("app", "nobody")

    with Fake([b"there"]) as peer:
        run(kind, scenario)


@on_loops
def test_a_lost_connection_is_told_to_everybody_who_waits(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        async with Client(peer.address) as client:
            calls = [client.ping() for _ in range(3)]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(answer) for answer in answers] == [type(None), *[ConnectionLost] * 2]
            assert answers[1] is not answers[2]  # each has its own traceback
            assert not client.is_open

    with Fake(wrong=[(b"PING", b"OK\r\n"), (b"PING", HANG_UP)]) as peer:
        run(kind, scenario)


@on_loops
def test_closing_wakes_whoever_waits_and_is_final(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        client = await Client(peer.address).open()
        waiting = asyncio.create_task(client.read("app", 1, 1, wait_ms=60_000))
        await until(peer, 1)
        await client.close()
        await client.close()
        with pytest.raises(ConnectionLost, match="this client closed it"):
            await waiting
        with pytest.raises(ConnectionLost, match="make a new Client"):
            await client.ping()
        with pytest.raises(RuntimeError, match="opened before"):
            await client.open()
        with pytest.raises(RuntimeError, match="async with"):
            await Client(peer.address).ping()

    with Fake([b"there"]) as peer:
        run(kind, scenario)


@on_loops
def test_the_limit_of_silence_is_that_of_the_oldest_that_waits(kind: Kind) -> None:
    """Behind a long wait that has ended early the short limit counts again."""

    async def scenario(kind: Kind) -> None:
        async with Client(peer.address, timeout_s=0.5) as client:
            waiting = asyncio.create_task(client.read("app", 1, 1, wait_ms=50_000))
            await until(peer, 1)
            silent = asyncio.create_task(client.topics())
            await asyncio.sleep(0.75)
            assert not silent.done()
            peer.store([b"new"])
            await waiting
            with pytest.raises(ConnectionLost, match="in time"):
                await silent

    with Fake([b"there"], wrong=[(b"TOPICS", b"TEXT")]) as peer:
        run(kind, scenario)


@on_loops
def test_what_the_daemon_said_explains_more_than_that_it_takes_no_more(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        for _ in range(5):
            async with Client(peer.address) as client:
                with pytest.raises(TooLarge, match="at most 8"):
                    await client.push("app", [b"x" * 5_000_000])

    with Deaf(1000, b"ERR too-large at most 8 bytes\r\n") as peer:
        run(kind, scenario)


@on_loops
def test_what_is_left_in_a_socket_that_takes_no_more_is_read(kind: Kind) -> None:
    """The loop notices that sending fails before it looks for something to read."""

    async def scenario(kind: Kind) -> None:
        async with Client(peer.address) as client:
            connection = client._connection
            assert connection is not None
            assert connection._transport is not None
            connection._transport.pause_reading()
            pushed = asyncio.create_task(client.push("app", [b"x" * 50]))
            assert await asyncio.to_thread(peer.has_closed.wait, 30)  # behind its answer
            for _ in range(100):
                with suppress(ConnectionLost):
                    client.send(PING).add_done_callback(lambda ping: ping.exception())
                await asyncio.sleep(0.001)
                if not client.is_open:
                    break
            with pytest.raises(TooLarge):
                await pushed

    with Deaf(60, b"ERR too-large at most 8 bytes\r\n") as peer:
        run(kind, scenario)


@on_loops
def test_small_commands_do_not_wait_for_more(kind: Kind) -> None:
    async def scenario(kind: Kind) -> int:
        async with Client(peer.address) as client:
            assert client._connection is not None
            assert client._connection._transport is not None
            there = client._connection._transport.get_extra_info("socket")
            return int(there.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    with Fake() as peer:
        assert run(kind, scenario)


def test_it_can_be_made_without_a_loop() -> None:
    client = Client("127.0.0.1:1774")
    assert not client.is_open
    asyncio.run(client.close())
