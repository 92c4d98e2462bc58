"""The asyncio writer: how it cuts, when it waits, what a cancellation leaves, and its spool."""

# ruff: noqa: PT012

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from logd.aio import Writer
from logd.batch import split_body
from logd.client.delivery import QueueFull
from logd.client.spool import Spool
from logd.errors import BadRequest, Internal, LogdError
from logd.wire.addresses import ConnectionLost
from logd.wire.requests import Push
from tests.integration.clients.aio_kinds import HANG_S, Kind, on_loops, run
from tests.integration.clients.aio_peers import LOSE, Fake
from tests.support.listener import nobody
from tests.support.proxy import Proxy, cuts

MESSAGES = [b"message %d" % n for n in range(60)]
PROMPT_S = 10.0  # far above what it takes


def sizes(peer: Fake) -> list[list[int]]:
    bodies = [data.partition(b"\r\n")[2] for _, _, data in peer.batches]
    return [[len(message) for message in split_body(body, "lines")] for body in bodies]


@contextmanager
def frozen() -> Iterator[Fake]:
    """A daemon that answers no push until `answers` is set."""
    answers = threading.Event()

    class Frozen(Fake):
        def _push(self, words: list[bytes], body: bytes) -> bytes:
            assert answers.wait(30)
            return super()._push(words, body)

    with Frozen() as peer:
        peer.answers = answers  # type: ignore[attr-defined]
        yield peer
        answers.set()


@on_loops
@pytest.mark.parametrize(
    ("written", "batches"),
    [
        ([1], [[1]]),
        ([4, 4], [[4, 4]]),
        ([4, 5], [[4], [5]]),
        ([9], [[9]]),
        ([10], [[10]]),
        ([1, 50, 1], [[1], [50], [1]]),
        ([50, 50], [[50], [50]]),
        ([0] * 12, [[0] * 10, [0] * 2]),
        ([3, 3, 3, 3, 3], [[3, 3], [3, 3], [3]]),
    ],
)
@pytest.mark.parametrize("how", ["write", "write_nowait", "write_many"])
def test_a_batch_has_what_fits_and_a_larger_message_is_alone(
    kind: Kind, written: list[int], batches: list[list[int]], how: str
) -> None:
    async def scenario(kind: Kind) -> None:
        async with Writer(peer.address, "app", batch_bytes=10, linger_s=None) as writer:
            if how == "write_many":
                await writer.write_many(b"x" * size for size in written)
            for size in [] if how == "write_many" else written:
                done = getattr(writer, how)(b"x" * size)
                if how == "write":
                    await done

    with Fake() as peer:
        run(kind, scenario)
        assert sizes(peer) == batches


def test_a_write_that_neither_begins_nor_ends_a_batch_does_not_wait() -> None:
    async def scenario() -> None:
        async with Writer(peer.address, "app") as writer:
            await writer.write(b"begins")
            for _ in range(100):
                with pytest.raises(StopIteration):  # without ever giving up control
                    writer.write(b"another").send(None)

    with Fake() as peer:
        asyncio.run(scenario())
        assert len(peer.messages) == 101


@on_loops
def test_a_message_that_waits_is_sent_without_a_call(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        async with Writer(peer.address, "app", linger_s=0.001) as writer:
            for n in range(3):
                writer.write_nowait(MESSAGES[n])
                while writer.acknowledged <= n:
                    await asyncio.sleep(0.001)

    with Fake() as peer:
        run(kind, scenario)
        assert sizes(peer) == [[9], [9], [9]]


@on_loops
def test_a_program_that_never_pauses_does_not_hold_up_its_own_connection(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        writer = Writer(
            peer.address, "app", batch_bytes=100, linger_s=None, queue_bytes=1 << 40
        )  # it never waits for room
        async with writer:
            end_s = monotonic() + PROMPT_S
            while not writer.acknowledged:
                assert monotonic() < end_s
                await writer.write(b"0123456789")

    with Fake() as peer:
        run(kind, scenario)


@on_loops
def test_many_tasks_share_batches_and_each_learns_its_offset(kind: Kind) -> None:
    async def scenario(kind: Kind) -> list[int]:
        async with Writer(peer.address, "app") as writer:
            return await asyncio.gather(*(writer.submit(message) for message in MESSAGES))

    with Fake(wrong=[(b"PUSH", LOSE)]) as peer:
        assert run(kind, scenario) == list(range(60))
        assert len(peer.batches) == 1


@on_loops
def test_without_room_nothing_is_taken_from_whoever_cannot_wait(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        writer = Writer(peer.address, "app", batch_bytes=10, queue_bytes=20, linger_s=None)
        async with writer:
            written = 0
            with pytest.raises(QueueFull):
                while True:
                    writer.write_nowait(b"12345678")
                    written += 1
            waiting = asyncio.create_task(writer.write(b"cancelled"))
            submitted = asyncio.create_task(writer.submit(b"cancelled"))
            pushed = asyncio.create_task(writer.push([b"cancelled"]))
            await asyncio.sleep(0.01)
            for task in (waiting, submitted, pushed):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            peer.answers.set()  # type: ignore[attr-defined]
            await writer.flush()
            assert writer.acknowledged == written
            assert set(peer.messages) == {b"12345678"}

    with frozen() as peer:
        run(kind, scenario)


@on_loops
def test_what_lingers_while_there_is_no_room_goes_when_there_is(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        writer = Writer(peer.address, "app", batch_bytes=10, queue_bytes=9, linger_s=0.01)
        async with writer:
            for _ in range(2):
                writer.write_nowait(b"12345678")
            await asyncio.sleep(0.05)
            peer.answers.set()  # type: ignore[attr-defined]
            while writer.acknowledged < 2:
                await asyncio.sleep(0.001)

    with frozen() as peer:
        run(kind, scenario)


@on_loops
@pytest.mark.parametrize("full", ["raise", "drop"])
def test_a_push_without_room(kind: Kind, full: Any) -> None:
    async def scenario(kind: Kind) -> None:
        async with Writer(peer.address, "app", queue_bytes=5, full=full) as writer:
            await writer.push([b"first"])
            if full == "raise":
                with pytest.raises(QueueFull):
                    await writer.push([b"second", b"third"])
                with pytest.raises(QueueFull):
                    writer.write_nowait(b"x" * 99_999)
            else:
                await writer.push([b"second", b"third"])
                with pytest.raises(QueueFull):
                    await writer.submit(b"x" * 99_999)
                writer.write_nowait(b"x" * 99_999)
                assert writer.dropped == 4
            peer.answers.set()  # type: ignore[attr-defined]

    with frozen() as peer:
        run(kind, scenario)
        assert peer.messages == [b"first"]


@on_loops
def test_a_failure_reaches_everybody_who_waits(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        writer = await Writer(peer.address, "app", linger_s=None).open()
        calls = [writer.submit(b"x"), writer.submit(b"y"), writer.flush(), writer.flush()]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(answer) for answer in answers} == {BadRequest}
        for call in (writer.write(b"x"), writer.submit(b"x"), writer.flush(), writer.close()):
            with pytest.raises(BadRequest):
                await call
        with pytest.raises(BadRequest):
            writer.write_nowait(b"x")
        await writer.close()

    with Fake(wrong=[(b"PUSH", b"ERR bad-request no\r\n")]) as peer:
        run(kind, scenario)


@on_loops
def test_a_callback_that_raises_is_the_loops_and_ends_nothing(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        def fail(count: int, error: LogdError) -> None:
            raise KeyError("mine")

        heard: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, about: heard.append(about))
        async with Writer(peer.address, "app", on_refused=fail) as writer:
            await writer.push([b"bad"])
            await writer.push([b"good"])
        assert [type(about["exception"]) for about in heard] == [KeyError]

    with Fake(wrong=[(b"PUSH", b"ERR bad-request no\r\n")]) as peer:
        run(kind, scenario)
        assert peer.messages == [b"good"]


@on_loops
def test_leaving_by_a_cancellation_stores_what_was_written_and_stays_a_cancellation(
    kind: Kind,
) -> None:
    async def scenario(kind: Kind) -> None:
        started = asyncio.Event()

        async def work() -> None:
            async with Writer(peer.address, "app", linger_s=None) as writer:
                await writer.write(b"written")
                started.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert peer.messages == [b"written"]

    with Fake() as peer:
        run(kind, scenario)


@on_loops
def test_leaving_by_a_cancellation_does_not_wait_for_a_daemon_that_is_not_there(
    kind: Kind, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("logd.client.aio.writer.CLOSE_S", 0.01)

    async def scenario(kind: Kind) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as limit:
                async with Writer(empty, "app", connect="later") as writer:
                    await writer.write(b"written")
                    limit.reschedule(asyncio.get_running_loop().time() + 0.05)
                    await writer.flush()

    with nobody() as empty:
        run(kind, scenario)
    assert "cancelled before everything was stored" in caplog.text


def test_a_loop_that_ends_with_a_writer_open_leaves_no_complaint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> Writer:
        writer = await Writer(peer.address, "app").open()
        await writer.write(b"never sent")
        return writer

    with frozen() as peer:
        writer = asyncio.run(scenario())
    assert writer.acknowledged == 0
    assert caplog.text == ""


@on_loops
def test_only_bytes_and_only_when_open(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        writer = Writer(peer.address, "app")
        with pytest.raises(RuntimeError, match="async with"):
            await writer.write(b"x")
        async with writer:
            for call in (writer.write, writer.submit):
                with pytest.raises(TypeError):
                    await call("text")  # type: ignore[arg-type]
            with pytest.raises(TypeError):
                writer.write_nowait(bytearray(b"x"))  # type: ignore[arg-type]
            with pytest.raises(BadRequest):
                await writer.push([])
        with pytest.raises(RuntimeError, match="opened before"):
            await writer.open()

    with Fake() as peer:
        run(kind, scenario)
        assert peer.messages == []


# -- with a spool ---------------------------------------------------------------------------------


@on_loops
@pytest.mark.parametrize("fsync", [False, True])
def test_what_one_life_could_not_send_the_next_one_does(
    kind: Kind, fsync: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logd.client.aio.writer.CLOSE_S", 0.05)

    async def scenario(kind: Kind) -> None:
        async with Writer(empty, "app", spool=tmp_path / "spool", spool_fsync=fsync) as writer:
            await writer.push(MESSAGES[:20], "a-note")
            for message in MESSAGES[20:40]:
                await writer.write(message)
        async with Writer(
            proxy.address, "app", spool=tmp_path / "spool", spool_fsync=fsync, batch_bytes=100
        ) as writer:
            offsets = [writer.submit(message) for message in MESSAGES[40:]]
            assert await asyncio.gather(*offsets) == list(range(40, 60))
            await writer.flush()
            assert writer.acknowledged == 60
        assert writer.spool is not None
        assert writer.spool.acknowledged == writer.spool.last

    with nobody() as empty, Fake() as peer, Proxy(peer.address, cuts(75, 90)) as proxy:
        run(kind, scenario)
        assert peer.messages == MESSAGES


def test_a_batch_is_synced_off_the_loop_and_kept_when_push_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced_by: list[threading.Thread] = []
    real = os.fdatasync

    def fdatasync(file: int) -> None:
        synced_by.append(threading.current_thread())
        real(file)

    async def scenario() -> None:
        monkeypatch.setattr("logd.client.aio.writer.CLOSE_S", 0.01)
        async with Writer(empty, "app", spool=tmp_path, spool_fsync=True) as writer:
            monkeypatch.setattr(os, "fdatasync", fdatasync)
            await writer.push([b"kept"])
            assert len(synced_by) == 1
            assert synced_by[0] is not threading.main_thread()

    with nobody() as empty:
        asyncio.run(scenario())
    spool = Spool(tmp_path)
    found = spool.read("app")
    assert found is not None
    assert found[1].body == b"kept\n"
    spool.close()


@on_loops
@pytest.mark.parametrize("has_room", [True, False])
def test_a_close_while_the_spool_is_busy_keeps_what_came_last_or_says_that_it_cannot(
    kind: Kind, has_room: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_busy, may_go_on = threading.Event(), threading.Event()
    real = Spool.forget

    def forget(spool: Spool, number: int) -> None:
        is_busy.set()
        assert may_go_on.wait(HANG_S)
        real(spool, number)

    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    async def scenario(kind: Kind) -> None:
        writer = await Writer(peer.address, "app", spool=tmp_path, spool_fsync=True).open()
        await writer.push([b"first"])
        assert await asyncio.to_thread(is_busy.wait, HANG_S)
        await writer.write(b"last")
        closing = asyncio.create_task(writer.close(0))
        while not writer._closed:
            await asyncio.sleep(0)
        if not has_room:
            monkeypatch.setattr(Spool, "append", no_room)
        may_go_on.set()
        if not has_room:
            with pytest.raises(OSError, match="no space"):
                await closing
            return
        await closing
        async with Writer(peer.address, "app", spool=tmp_path) as again:
            await again.flush()

    monkeypatch.setattr(Spool, "forget", forget)
    with Fake() as peer:
        run(kind, scenario)
        assert peer.messages == ([b"first", b"last"] if has_room else [b"first"])


@contextmanager
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, list[bytes]]]:
    """A spool that keeps nothing before the event is set; and the bodies it was asked to keep."""
    may_go_on, bodies = threading.Event(), list[bytes]()
    real = Spool.append

    def append(spool: Spool, push: Push, messages: int, note: str = "-") -> int:
        bodies.append(bytes(push.body))
        assert may_go_on.wait(HANG_S)
        return real(spool, push, messages, note)

    with monkeypatch.context() as patch:
        patch.setattr(Spool, "append", append)
        try:
            yield may_go_on, bodies
        finally:
            may_go_on.set()


@on_loops
def test_what_waits_for_a_slow_disk_is_bounded(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(kind: Kind) -> None:
        writer = Writer(
            peer.address, "app", spool=tmp_path, spool_fsync=True, batch_bytes=10,
            queue_bytes=100, linger_s=None,
        )  # fmt: skip
        async with writer:
            with slow_disk(monkeypatch) as (may_go_on, _):
                with pytest.raises(QueueFull, match="bytes are waiting"):
                    for _ in range(1000):
                        writer.write_nowait(b"12345678")
                may_go_on.set()
                await writer.flush()
            assert 100 <= sum(len(message) + 1 for message in peer.messages) < 130

    with Fake() as peer:
        run(kind, scenario)


@on_loops
def test_batches_are_sent_while_others_are_synced(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(kind: Kind) -> None:
        async with Writer(
            peer.address, "app", spool=tmp_path, spool_fsync=True, batch_bytes=10, linger_s=None
        ) as writer:
            real = Spool.append

            def append(spool: Spool, *words: Any) -> int:
                """There is always one more batch to keep when one was kept."""
                if not writer.acknowledged and spool.last < 1000:
                    loop.call_soon_threadsafe(writer.write_nowait, b"12345678")
                return real(spool, *words)

            loop = asyncio.get_running_loop()
            monkeypatch.setattr(Spool, "append", append)
            for _ in range(2):
                writer.write_nowait(b"12345678")
            while not writer.acknowledged:
                await asyncio.sleep(0.001)
            assert writer.spool is not None
            assert writer.spool.last < 1000

    with Fake() as peer:
        run(kind, scenario)


def test_a_push_gives_other_tasks_a_turn() -> None:
    async def scenario() -> None:
        turns: list[int] = []
        async with Writer(peer.address, "app") as writer:
            asyncio.get_running_loop().call_soon(turns.append, 1)
            await writer.push([b"x"])
            assert turns == [1]

    with Fake() as peer:
        asyncio.run(scenario())


@on_loops
def test_an_open_that_is_cancelled_gives_the_spool_back(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier life has left is checked in a thread: that may take long."""
    checks, may_go_on = threading.Event(), threading.Event()
    real = Spool._open_segments

    def check(spool: Spool) -> None:
        checks.set()
        assert may_go_on.wait(HANG_S)
        real(spool)

    async def scenario(kind: Kind) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Spool, "_open_segments", check)
            opening = asyncio.create_task(Writer(peer.address, "app", spool=tmp_path).open())
            while not checks.is_set():
                await asyncio.sleep(0.001)
            opening.cancel()
            may_go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await opening
        async with Writer(peer.address, "app", spool=tmp_path):
            pass

    with Fake() as peer:
        run(kind, scenario)


@on_loops
def test_a_mistake_in_the_code_ends_the_writer_with_an_error_of_logd(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(kind: Kind) -> None:
        writer = await Writer(peer.address, "app", spool=tmp_path).open()
        monkeypatch.setattr(Spool, "forget", None)
        with pytest.raises(Internal, match="a bug in the writer: TypeError") as caught:
            while True:
                await writer.push([b"x"])
        assert isinstance(caught.value.__cause__, TypeError)
        with pytest.raises(Internal):
            await writer.close()

    with Fake() as peer:
        run(kind, scenario)


@on_loops
def test_a_spool_in_use_and_a_daemon_that_is_not_there_leave_nothing_open(
    kind: Kind, tmp_path: Path
) -> None:
    async def scenario(kind: Kind) -> None:
        async with Writer(peer.address, "app", spool=tmp_path):
            with pytest.raises(OSError, match="another writer uses the spool"):
                await Writer(peer.address, "app", spool=tmp_path).open()
        with pytest.raises(ConnectionLost):
            await Writer(empty, "app", spool=tmp_path, connect="now").open()
        async with Writer(peer.address, "app", spool=tmp_path, connect="now"):
            pass

    with Fake() as peer, nobody() as empty:
        run(kind, scenario)
