"""The same scenarios for the blocking and the asyncio writer: losses, spools, full disks, closing.

`test_aio_parity` has the scenarios without a spool, and those of the other clients.
"""

# ruff: noqa: PT012

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from logd.client import spool as spool_module
from logd.client.delivery import QueueFull
from logd.client.spool import Spool
from logd.errors import BadRequest, LogdError
from logd.wire.addresses import ConnectionLost, Endpoint
from tests.integration.clients.aio_kinds import HANG_S, Kind, on_each, opened, run, started, value
from tests.integration.clients.aio_peers import Fake
from tests.support.listener import nobody

NUMBERS = [b"%d" % n for n in range(30)]
REFUSAL = [(b"PUSH", b"ERR bad-request no way\r\n")]


@contextmanager
def stepping() -> Iterator[Any]:
    """A daemon that stores a push only when `peer.steps` is released for it."""

    class Stepping(Fake):
        steps = threading.Semaphore(0)

        def _push(self, words: list[bytes], body: bytes) -> bytes:
            assert self.steps.acquire(timeout=HANG_S)
            return super()._push(words, body)

    with Stepping() as peer:
        try:
            yield peer
        finally:
            peer.steps.release(1000)


def no_space(*_: object) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logd.client.delivery.DISK_RETRY_S", 0.01)
    for module in ("logd.client.writer", "logd.client.aio.writer"):
        monkeypatch.setattr(f"{module}.CLOSE_S", 0.05)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_S):
        while not is_so():
            await asyncio.sleep(0.001)


def is_waited_for(writer: Any) -> bool:
    """Does a call wait for the sender of this writer to make progress?"""
    sender = writer._sender
    if hasattr(sender, "_worker"):
        return sender._is_watched or bool(sender._worker._waiters)
    return bool(sender._waiters)


# -- losses ---------------------------------------------------------------------------------------


@on_each
def test_a_topic_that_was_deleted_is_reported_once(kind: Kind) -> None:
    losses: list[str] = []

    async def scenario(kind: Kind) -> None:
        writer = kind.Writer(peer.address, "app", on_loss=lambda loss: losses.append(str(loss)))
        async with opened(writer):
            for message in NUMBERS[:3]:
                await value(writer.push([message]))
            await value(writer.flush())
            peer.forget_topic()
            for message in NUMBERS[3:6]:
                peer.cut()
                await value(writer.push([message]))
                await value(writer.flush())

    with Fake([b"there"]) as peer:
        run(kind, scenario)
        assert peer.messages == NUMBERS[3:6]
    assert len(losses) == 1


# -- patience and time limits ---------------------------------------------------------------------


@on_each
@pytest.mark.parametrize("wrap", [list, Endpoint])
def test_the_end_of_patience_names_the_address_and_the_newest_reason(kind: Kind, wrap: Any) -> None:
    for patience_s in (0.5, 2.0, 8.0):
        with stepping() as peer:
            text = end_of_patience(kind, wrap, peer, patience_s)
            if any(line.startswith(b"PUSH") for line in peer.lines):
                assert f"to {peer.address}: it did not answer in time" in text
                return
        # This machine was too busy for so little patience.
    raise AssertionError(f"nothing was sent: {text}")


def end_of_patience(kind: Kind, wrap: Any, peer: Fake, patience_s: float) -> str:
    """The error of a writer whose daemon is busy, then takes the connection, but never answers."""

    async def scenario(kind: Kind) -> str:
        target = [peer.address] if wrap is list else Endpoint(peer.address, token=None)
        with pytest.raises(ConnectionLost) as caught:
            async with opened(
                kind.Writer(target, "app", connect="later", patience_s=patience_s)
            ) as writer:
                await value(writer.push([b"x"]))
                await value(writer.flush())
        return str(caught.value)

    peer.wrong = [(b"STATS", b"ERR busy wait\r\n")]
    return run(kind, scenario)


@on_each
@pytest.mark.parametrize("spooling", ["memory", "spool", "synced spool"])
def test_flush_waits_for_what_was_written_before_it(
    kind: Kind, spooling: str, tmp_path: Path
) -> None:
    async def scenario(kind: Kind) -> None:
        options = {} if spooling == "memory" else {"spool": tmp_path}
        async with opened(
            kind.Writer(
                peer.address, "app", max_in_flight=1, spool_fsync=spooling[:6] == "synced",
                connect="now", **options,
            )
        ) as writer:  # fmt: skip
            await value(writer.push([b"before"]))
            flushing = started(kind, writer.flush)
            await until(lambda: is_waited_for(writer))
            await value(writer.push([b"after"]))
            peer.steps.release()
            await flushing
            assert peer.messages == [b"before"]
            peer.steps.release()

    with stepping() as peer:
        run(kind, scenario)


@on_each
def test_what_a_time_limit_of_flush_says(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        async with opened(kind.Writer(peer.address, "app", linger_s=None)) as writer:
            await value(writer.write(b"12345"))
            with pytest.raises(TimeoutError, match="6 bytes are waiting to be stored in app"):
                await value(writer.flush(0.01))
            peer.steps.release()

    with stepping() as peer:
        run(kind, scenario)


# -- the end --------------------------------------------------------------------------------------


@on_each
def test_what_ended_a_writer_is_raised_after_it_was_closed_too(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        writer = kind.Writer(peer.address, "app", linger_s=None)
        with pytest.raises(BadRequest):
            async with opened(writer):
                await value(writer.write(b"x"))
        for call in (lambda: writer.write(b"x"), writer.flush, lambda: writer.push([b"x"])):
            with pytest.raises(BadRequest, match="no way"):
                await value(call())
        await value(writer.close())

    with Fake(wrong=list(REFUSAL)) as peer:
        run(kind, scenario)


@on_each
def test_those_who_wait_while_another_closes_are_told(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        made = kind.Writer(peer.address, "app", linger_s=None, batch_bytes=10, queue_bytes=10)
        writer = await value(made.open()) if hasattr(made, "open") else made
        submitted = started(kind, lambda: writer.submit(b"12345678901"))
        await until(lambda: len(peer.lines) == 2)
        waiting = [
            started(kind, call)
            for call in (writer.flush, lambda: writer.push([b"x"]), writer.flush)
        ]
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await value(writer.close(0.1))
        for task in waiting:
            with pytest.raises(ValueError, match="this writer is closed"):
                await task
        with pytest.raises(ConnectionLost, match="closed before this was stored"):
            await submitted
        with pytest.raises(ValueError, match="this writer is closed"):
            await value(writer.write(b"late"))

    with stepping() as peer:
        run(kind, scenario)


# -- with a spool ---------------------------------------------------------------------------------


@on_each
def test_a_machine_that_forgot_its_newest_batches(kind: Kind, tmp_path: Path) -> None:
    """Without fsync a power cut takes the end of the spool; its numbers are used again."""
    losses: list[str] = []

    async def life(kind: Kind, part: list[bytes]) -> None:
        async with opened(
            kind.Writer(
                peer.address, "app", batch_bytes=1, spool=tmp_path, linger_s=None,
                on_loss=lambda loss: losses.append(str(loss)),
            )
        ) as writer:  # fmt: skip
            await value(writer.write_many(part))

    async def scenario(kind: Kind) -> None:
        await life(kind, NUMBERS[:5])
        state = (tmp_path / "state").read_bytes()
        await life(kind, NUMBERS[5:10])
        (tmp_path / "state").write_bytes(state)
        segment = max(tmp_path.glob("*.spool"))
        lines = segment.read_bytes().splitlines(keepends=True)
        segment.write_bytes(b"".join(lines[:14]))  # batches of a header and a body: 7 of 10
        await life(kind, NUMBERS[10:])

    with Fake() as peer:
        run(kind, scenario)
        assert peer.messages == NUMBERS
    assert len(losses) == 1
    assert "lost part of its spool" in losses[0]


def size_of(spool: Path) -> int:
    with suppress(FileNotFoundError):  # removed since it was listed
        return sum(path.stat().st_size for path in spool.glob("*.spool"))
    return size_of(spool)


@on_each
def test_a_small_spool_has_small_files(kind: Kind, tmp_path: Path) -> None:
    async def scenario(kind: Kind) -> None:
        async with opened(
            kind.Writer(
                peer.address, "app", batch_bytes=100, spool=tmp_path, spool_bytes=1000,
                spool_fsync=True,
            )
        ) as writer:  # fmt: skip
            await value(writer.write_many([b"y" * 50] * 100))
            await value(writer.flush())
            await until(lambda: size_of(tmp_path) < 1000)

    with Fake() as peer:
        run(kind, scenario)
        assert len(peer.messages) == 100


@on_each
@pytest.mark.parametrize("fsync", [False, True])
@pytest.mark.parametrize("full", ["wait", "raise", "drop"])
def test_a_full_disk_is_a_lack_of_room(
    kind: Kind, fsync: bool, full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    short_waits: None,
) -> None:  # fmt: skip
    """What is accepted before that is noticed, by a writer that syncs in a thread, is not lost."""
    accepted: list[bytes] = []

    async def write_all(kind: Kind, writer: Any) -> None:
        for message in NUMBERS:
            await value(writer.write(message))
            if not writer.dropped:
                accepted.append(message)

    async def scenario(kind: Kind) -> None:
        writer = kind.Writer(
            peer.address, "app", batch_bytes=1, spool=tmp_path, spool_fsync=fsync, full=full,
            queue_bytes=20, linger_s=None,
        )  # fmt: skip
        async with opened(writer):
            await value(writer.write(b"before"))
            monkeypatch.setattr(spool_module, "_write", no_space)
            with pytest.raises(OSError, match="No space left"):
                await value(writer.push([b"not taken"]))
            if full == "raise":
                with pytest.raises(QueueFull, match=r"are waiting .* in app, and .*No space left"):
                    await write_all(kind, writer)
            elif full == "drop":
                await write_all(kind, writer)
                assert writer.dropped == len(NUMBERS) - len(accepted)
            else:
                writing = started(kind, lambda: writer.write_many(NUMBERS))
                await asyncio.wait([writing], timeout=0.1)
                assert not writing.done()
                accepted.extend(NUMBERS)
            monkeypatch.undo()
            if full == "wait":
                await writing
            await value(writer.flush())
            await value(writer.write(b"after"))
        assert full == "wait" or len(accepted) < 20

    with Fake() as peer:
        run(kind, scenario)
        assert peer.messages == [b"before", *accepted, b"after"]


@on_each
@pytest.mark.parametrize("fsync", [False, True])
def test_what_lingers_is_kept_when_the_disk_has_room_again(
    kind: Kind, fsync: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_waits: None
) -> None:
    tries: list[object] = []

    def fail(*words: object) -> None:
        tries.append(words)
        no_space()

    async def scenario(kind: Kind) -> None:
        async with opened(
            kind.Writer(peer.address, "app", spool=tmp_path, spool_fsync=fsync, linger_s=0.001)
        ) as writer:
            with monkeypatch.context() as patch:
                patch.setattr(spool_module, "_write", fail)
                await value(writer.write(b"one"))
                await until(lambda: len(tries) > 10)
                with pytest.raises(TimeoutError, match=r"in app, and .*No space left"):
                    await value(writer.flush(0.05))
            await until(lambda: writer.acknowledged == 1)

    with Fake() as peer:
        run(kind, scenario)
        assert peer.messages == [b"one"]


@on_each
@pytest.mark.parametrize("fsync", [False, True])
def test_closing_on_a_full_disk_tells_everybody_whose_message_is_lost(
    kind: Kind, fsync: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_waits: None
) -> None:
    async def scenario(kind: Kind) -> None:
        made = kind.Writer(
            peer.address, "app", spool=tmp_path, spool_fsync=fsync, linger_s=None, batch_bytes=100
        )
        writer = await value(made.open()) if hasattr(made, "open") else made
        monkeypatch.setattr(spool_module, "_write", no_space)
        submitted = started(kind, lambda: writer.submit(b"cannot be kept"))
        await until(lambda: bool(writer._buffer))
        with pytest.raises(TimeoutError, match="No space left"):
            await value(writer.close())
        with pytest.raises(ConnectionLost, match="closed before this was stored"):
            await submitted

    with Fake() as peer:
        run(kind, scenario)
        assert peer.messages == []


@on_each
@pytest.mark.parametrize("fsync", [False, True])
def test_a_spool_that_fails_when_all_is_sent_ends_the_writer(
    kind: Kind, fsync: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_waits: None
) -> None:
    def cannot(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def scenario(kind: Kind) -> None:
        writer = kind.Writer(
            peer.address, "app", spool=tmp_path, spool_fsync=fsync, linger_s=None, batch_bytes=1
        )
        with pytest.raises(KeyError) as caught:
            async with opened(writer):
                await value(writer.write(b"one"))
                for _ in range(2):
                    with pytest.raises(OSError, match="Input/output error"):
                        while True:
                            await value(writer.write(b"more"))
                            await value(writer.flush())
                raise KeyError("mine")
        assert "and the writer of app failed: [Errno 5]" in caught.value.__notes__[0]

    monkeypatch.setattr(Spool, "forget", cannot)
    with Fake() as peer:
        run(kind, scenario)


@on_each
@pytest.mark.parametrize("fsync", [False, True])
def test_a_state_that_cannot_be_saved_at_the_end_is_a_warning(
    kind: Kind, fsync: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """It may lag behind: the daemon knows what it has stored."""

    async def scenario(kind: Kind) -> None:
        async with opened(
            kind.Writer(peer.address, "app", spool=tmp_path, spool_fsync=fsync)
        ) as writer:
            await value(writer.push([b"one"]))
            await value(writer.flush())
            monkeypatch.setattr(Spool, "_save_state", no_space)

    with Fake() as peer:
        run(kind, scenario)
        assert peer.messages == [b"one"]
    assert "state could not be written" in caplog.text
    monkeypatch.undo()
    Spool(tmp_path).close()  # nobody holds its lock any more


@on_each
def test_refusals_and_the_numbers_behind_them(kind: Kind, tmp_path: Path) -> None:
    """A refused batch leaves the spool, and is the next life's no more."""
    refused: list[int] = []

    def hear(messages: int, error: LogdError) -> None:
        refused.append(messages)

    async def scenario(kind: Kind) -> None:
        for part in (NUMBERS[:5], NUMBERS[5:10]):
            async with opened(
                kind.Writer(peer.address, "app", spool=tmp_path, batch_bytes=1, on_refused=hear)
            ) as writer:
                await value(writer.write_many(part))
                await value(writer.flush())
                assert writer.spool.acknowledged == writer.spool.last

    with Fake(wrong=REFUSAL * 2) as peer:
        run(kind, scenario)
        assert peer.messages == NUMBERS[2:10]
    assert refused == [1, 1]


@on_each
def test_nobody_there_is_no_error_with_a_spool(
    kind: Kind, tmp_path: Path, short_waits: None
) -> None:
    async def scenario(kind: Kind) -> None:
        async with opened(kind.Writer(empty, "app", spool=tmp_path, batch_bytes=1)) as writer:
            await value(writer.write_many(NUMBERS))
        async with opened(kind.Writer(peer.address, "app", spool=tmp_path)) as writer:
            await value(writer.flush())
            assert writer.acknowledged == len(NUMBERS)

    with nobody() as empty, Fake() as peer:
        run(kind, scenario)
        assert peer.messages == NUMBERS
