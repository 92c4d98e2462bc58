"""The writer when the daemon is slow, away, full of itself or forgetful; and who is told what."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

from logd.client import delivery, worker_thread
from logd.client.backoff import Backoff
from logd.client.delivery import QueueFull
from logd.client.writer import Writer
from logd.errors import (
    BadRequest,
    LogdError,
)
from logd.wire.addresses import ConnectionLost
from logd.wire.requests import Push
from tests.support.daemon import wait_until
from tests.support.listener import nobody
from tests.unit.fake_daemon import (
    HANG_UP,
    STALL,
    FakeDaemon,
    deaf,
)

NUMBERS = [b"%d" % n for n in range(30)]


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    with FakeDaemon() as started:
        yield started


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No thread of a writer and no descriptor survives a test."""
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    assert [t for t in threading.enumerate() if t.name == "logd-writer"] == []
    assert len(os.listdir("/proc/self/fd")) <= before + 2  # the daemon's own may still be closing


def once(number: int, answer: LogdError | str) -> Callable[[int, Push], LogdError | str | None]:
    """This answer to that push, and to no other."""
    return lambda n, push: answer if n == number else None


# -- faults -------------------------------------------------------------------------------------


def test_a_daemon_that_says_nothing_is_left_after_a_while(daemon: FakeDaemon) -> None:
    daemon.script = once(2, STALL)
    with Writer(daemon.address, "app", batch_bytes=1, linger_s=None, timeout_s=1.0) as writer:
        writer.write_many(NUMBERS)
        daemon.wait_for(lambda: daemon.connections >= 2)
        daemon.go_on()
    assert daemon.messages == NUMBERS


def test_a_daemon_that_restarts(daemon: FakeDaemon) -> None:
    with Writer(daemon.address, "app", batch_bytes=1, linger_s=None) as writer:
        writer.write_many(NUMBERS[:10])
        daemon.stop()
        writer.write_many(NUMBERS[10:])
        daemon.start()
    assert daemon.messages == NUMBERS


def test_two_may_close(daemon: FakeDaemon) -> None:
    writer = Writer(daemon.address, "app", linger_s=None)
    daemon.hold()
    writer.write(b"x")
    threads = [threading.Thread(target=writer.close) for _ in range(3)]
    for thread in threads:
        thread.start()
    daemon.go_on()
    for thread in threads:
        thread.join(10)
    assert daemon.messages == [b"x"]


# -- futures ------------------------------------------------------------------------------------


def test_futures_get_the_offset_of_their_message(daemon: FakeDaemon) -> None:
    daemon.script = lambda n, push: HANG_UP if n % 50 == 49 else None
    futures: list[tuple[bytes, Future[int]]] = []

    def work(name: int) -> None:
        for n in range(500):
            message = b"%d %d" % (name, n)
            if n % 5 == 0:
                writer.write(message)
            elif n % 97 == 0:
                writer.push([message, b"pushed"])
            else:
                futures.append((message, writer.submit(message)))

    with Writer(daemon.address, "app", batch_bytes=200, linger_s=0.001) as writer:
        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    stored = daemon.messages
    assert len(futures) > 1_500
    assert all(stored[future.result(10)] == message for message, future in futures)
    assert len({future.result() for _, future in futures}) == len(futures)


def test_the_same_object_twice_has_two_offsets(daemon: FakeDaemon) -> None:
    with Writer(daemon.address, "app") as writer:
        futures = [writer.submit(b"same") for _ in range(3)]
        assert [future.result(10) for future in futures] == [0, 1, 2]
        assert not futures[0].cancel()


def test_callbacks_may_call_the_writer(daemon: FakeDaemon) -> None:
    done = threading.Event()
    writer = Writer(daemon.address, "app", linger_s=0.001, queue_bytes=1)

    def second(future: Future[int]) -> None:
        writer.write(b"second")
        writer.flush()
        writer.submit(b"third")
        writer.push([b"fourth"])
        writer.flush()
        writer.close()
        done.set()

    writer.submit(b"first").add_done_callback(second)
    assert done.wait(20)
    assert daemon.messages == [b"first", b"second", b"third", b"fourth"]
    for thread in threading.enumerate():
        if thread.name == "logd-writer":
            thread.join(10)


def test_a_callback_that_fails_is_logged_and_harms_nothing(
    daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(messages: int, error: LogdError) -> None:
        raise KeyError("mine")

    daemon.script = once(0, BadRequest("no"))
    with Writer(daemon.address, "app", batch_bytes=1, on_refused=broken) as writer:
        writer.write_many(NUMBERS[:3])
    assert daemon.messages == NUMBERS[1:3]
    assert "KeyError: 'mine'" in caplog.text


# -- too much -----------------------------------------------------------------------------------


def test_a_full_queue_makes_the_program_wait(daemon: FakeDaemon) -> None:
    daemon.hold()
    written: list[int] = []

    def write() -> None:
        for n in range(30):
            writer.write(NUMBERS[n])
            written.append(n)

    # The daemon answers nobody: connected later, or even that would wait.
    with Writer(daemon.address, "app", batch_bytes=1, queue_bytes=20, connect="later") as writer:
        thread = threading.Thread(target=write)
        thread.start()
        wait_until(lambda: len(written) > 5)
        thread.join(0.2)
        assert thread.is_alive()
        assert len(written) < 15
        daemon.go_on()
        thread.join(10)
    assert daemon.messages == NUMBERS
    assert writer.dropped == 0


def test_or_raises_and_goes_on_when_there_is_room(daemon: FakeDaemon) -> None:
    daemon.hold()
    taken = []
    with Writer(
        daemon.address, "app", batch_bytes=1, queue_bytes=20, full="raise", connect="later"
    ) as writer:
        for message in NUMBERS:
            try:
                writer.write(message)
                taken.append(message)
            except QueueFull as error:
                assert "bytes are waiting" in str(error)  # noqa: PT017
        with pytest.raises(QueueFull):
            writer.push([b"more"])
        with pytest.raises(QueueFull):
            writer.submit(b"more")
        daemon.go_on()
        writer.flush()
        writer.write(b"again")
    assert 5 < len(taken) < 15
    assert daemon.messages == [*taken, b"again"]
    assert writer.dropped == 0


def test_or_drops_and_counts(daemon: FakeDaemon) -> None:
    daemon.hold()
    with Writer(
        daemon.address, "app", batch_bytes=1, queue_bytes=20, full="drop", connect="later"
    ) as writer:
        futures = [writer.submit(message) for message in NUMBERS]
        writer.push([b"two", b"more"])
        daemon.go_on()
        writer.flush()
        kept = [m for m, future in zip(NUMBERS, futures, strict=True) if not future.exception(10)]
        assert writer.dropped == 30 - len(kept) + 2
    assert daemon.messages == kept
    assert 5 < len(kept) < 15


def test_threads_that_drop(daemon: FakeDaemon) -> None:
    def work(name: int) -> None:
        for n in range(2_000):
            writer.write(b"%d %d" % (name, n))

    with Writer(daemon.address, "app", batch_bytes=50, queue_bytes=100, full="drop") as writer:
        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(daemon.messages) + writer.dropped == 8_000
    assert len(set(daemon.messages)) == len(daemon.messages)


# -- refusals and losses ------------------------------------------------------------------------


def test_a_batch_that_is_really_too_large() -> None:
    refused: list[int] = []
    with (
        FakeDaemon(max_batch_bytes=1000) as daemon,
        Writer(
            daemon.address, "app", batch_bytes=100, linger_s=None,
            on_refused=lambda messages, why: refused.append(messages),
        ) as writer,
    ):  # fmt: skip
        writer.write_many(NUMBERS)
        writer.write(b"x" * 3_000_000)
        writer.write_many(NUMBERS)
        writer.flush()
        assert daemon.messages == NUMBERS * 2
        assert refused == [1]


# -- signals ------------------------------------------------------------------------------------


class Interrupt(Exception):
    pass


class SignalInterrupt(BaseException):
    """Like KeyboardInterrupt. For an Exception at the end of `Thread.start`, Python removes the
    thread from its tables although it is running, and the thread ends with a KeyError; the writer
    starts another one, but pytest reports the first."""


def interrupted_at(place: int, call: Callable[[], object]) -> bool:
    """Raise Interrupt in the middle of a call, where a signal may: when a function begins, or a
    built-in one has returned. False if it was over before the place was reached."""
    left, logd = place, str(Path(delivery.__file__).parent)

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal left
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(logd):
            left -= 1
            if not left:
                raise Interrupt

    sys.setprofile(count)
    try:
        call()
    except Interrupt:
        pass
    finally:
        sys.setprofile(None)
    return left <= 0


@pytest.mark.parametrize("what", ["write", "submit", "push", "flush", "two batches"])
def test_a_signal_at_each_place(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(delivery, "Backoff", lambda: Backoff(0.001, 0.001))
    place, is_reached = 0, True
    while is_reached:
        place += 1
        with FakeDaemon() as daemon:  # a new one: what is on its way to another is lost with it
            is_reached = check_a_signal(daemon, what, place)
    assert place > 20


def check_a_signal(daemon: FakeDaemon, what: str, place: int) -> bool:
    """False if the call was over before the place was reached."""
    writer = Writer(daemon.address, "app", batch_bytes=5, linger_s=None, max_in_flight=1)
    writer.write(b"first")
    writer.flush()
    writer.write(b"second")  # so that there is an answer to take
    daemon.wait_for(lambda: daemon.next == 2)
    if what == "flush":
        writer.write(b"x")
    calls: dict[str, Callable[[], object]] = {
        "write": partial(writer.write, b"third"),
        "submit": partial(writer.submit, b"third"),
        "push": partial(writer.push, [b"third"]),
        "flush": writer.flush,
        "two batches": partial(writer.write_many, [b"x", b"third"]),
    }
    is_reached = interrupted_at(place, calls[what])
    future = writer.submit(b"fourth")
    writer.write(b"fifth")
    writer.close(20)
    stored = daemon.messages
    sure = [b"first", b"second", *[b"x"] * (what == "flush"), b"fourth", b"fifth"]
    unsure = [] if what == "flush" else [b"x", b"third"]
    assert [m for m in stored if m not in unsure] == sure, f"interrupted at {place}"
    assert len(set(stored)) == len(stored), f"interrupted at {place}"
    assert writer.acknowledged == len(stored), f"interrupted at {place}"
    assert future.result(10) == stored.index(b"fourth")
    return is_reached


def test_a_signal_anywhere_loses_and_doubles_nothing(daemon: FakeDaemon) -> None:
    """Signals hit the main thread at random; a message whose write was interrupted may be there
    or not, all others exactly once."""

    def interrupt(number: int, frame: object) -> None:
        raise SignalInterrupt

    sure: list[bytes] = []
    unsure: set[bytes] = set()
    gc.disable()  # what a signal raises in a callback of the collector gets lost
    before = signal.signal(signal.SIGALRM, interrupt)
    writer = Writer(daemon.address, "app", batch_bytes=60, linger_s=None)
    try:
        n = 0
        while len(unsure) < 300:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0001 + n % 97 * 1e-5)
                while True:
                    message = b"%d" % n
                    n += 1
                    unsure.add(message)
                    writer.write(message)
                    sure.append(message)
                    unsure.discard(message)
            except SignalInterrupt:
                pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    writer.close()
    stored = daemon.messages
    assert len(set(stored)) == len(stored)
    sure = [message for message in sure if message not in unsure]
    assert [message for message in stored if message not in unsure] == sure
    assert writer.acknowledged == len(stored)


# -- quiet --------------------------------------------------------------------------------------


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Each time the thread of a writer goes to sleep."""
    pauses: list[float] = []
    sleep = worker_thread.WorkerThread._sleep

    def counted(self: worker_thread.WorkerThread, pause_s: float) -> None:
        pauses.append(pause_s)
        sleep(self, pause_s)

    monkeypatch.setattr(worker_thread.WorkerThread, "_sleep", counted)
    return pauses


def test_no_spinning_while_the_daemon_is_away(sleeps: list[float]) -> None:
    with nobody() as address:
        writer = Writer(address, "app", batch_bytes=1, linger_s=0.01, connect="later")
        writer.write_many(NUMBERS * 10)
        with pytest.raises(TimeoutError):
            writer.flush(1.5)
        with pytest.raises(TimeoutError):
            writer.close(0)
    assert 2 <= len(sleeps) < 40  # a handful of tries, and one look per flush


def test_no_spinning_while_the_socket_is_full(sleeps: list[float]) -> None:
    with FakeDaemon() as daemon:
        writer = Writer(daemon.address, "app", linger_s=None, batch_bytes=1 << 20)
        daemon.hold()
        for _ in range(20):
            writer.write(b"x" * (1 << 20))
        with pytest.raises(TimeoutError):
            writer.flush(0.5)
        with pytest.raises(TimeoutError):
            writer.close(0)
    assert len(sleeps) < 60


def test_a_writer_with_nothing_to_do_sleeps(daemon: FakeDaemon, sleeps: list[float]) -> None:
    with Writer(daemon.address, "app", linger_s=0.001) as writer:
        writer.write(b"x")
        daemon.wait_for(lambda: daemon.next == 1)
        writer.flush()
        with writer._lock:
            for _ in range(100):
                if sleeps[-1] > 50:
                    break
                writer._sender._worker.wait(0.2)
        assert sleeps[-1] > 50
        assert len(sleeps) < 20


def test_constructors_that_fail_leave_nothing_open(tmp_path: Path) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    with nobody() as address:
        for _ in range(3):
            with pytest.raises(ConnectionLost):
                Writer(address, "app")
            with pytest.raises(ConnectionLost):
                Writer(address, "app", spool=tmp_path / "spool", connect="now")
            with pytest.raises(ValueError, match="max_in_flight"):
                Writer(address, "app", spool=tmp_path / "spool", max_in_flight=0)
    with deaf() as address, pytest.raises(ConnectionLost, match="did not answer in time"):
        Writer(address, "app", timeout_s=0.3)
    gc.collect()
    assert sorted(os.listdir("/proc/self/fd")) == before


# -- with a spool -------------------------------------------------------------------------------


def test_a_spool_is_delivered_without_a_call(daemon: FakeDaemon, tmp_path: Path) -> None:
    with nobody() as address:
        writer = Writer(address, "app", batch_bytes=1, spool=tmp_path / "spool")
        writer.write_many(NUMBERS)
        writer.close(0)
    with Writer(daemon.address, "app", spool=tmp_path / "spool", connect="now"):
        daemon.wait_for(lambda: daemon.next == 30)


def test_what_is_written_during_a_connect_is_kept_after_it(
    daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not only when the thread looks again for another reason."""
    monkeypatch.setattr(delivery, "Backoff", lambda: Backoff(500, 500))
    daemon.hold()
    writer = Writer(daemon.address, "app", linger_s=0.001, timeout_s=500, spool=tmp_path)
    assert writer.spool is not None
    writer.write(b"one")
    daemon.wait_for(lambda: daemon.connections == 1)
    writer.write(b"two")
    daemon.cut()
    for _ in range(200):
        with writer._lock:
            if writer.spool.last == 2:
                break
            writer._sender._worker.wait(0.1)
    assert writer.spool.last == 2
    writer.close(0)
