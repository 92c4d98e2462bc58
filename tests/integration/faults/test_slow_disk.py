"""A daemon that stands still, and a disk that takes its time: no damage, and no one else waits."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest

from logd import Client
from tests.integration.faults.calls import SYNCS, WRITES, read_calls, trace
from tests.integration.faults.ledger import Ledger
from tests.integration.faults.traced_daemon import TracedDaemon
from tests.support.daemon import wait_until
from tests.support.long_run import LONG

Make = Callable[..., TracedDaemon]
_DELAY_S = 2.0
_SLOW_SYNC = ("-e", f"inject=fdatasync:delay_enter={int(_DELAY_S * 1e6)}")


@pytest.mark.slow
@pytest.mark.parametrize("fsync", ["interval", "always"])
def test_a_daemon_that_stands_still_goes_on(
    tmp_path: Path, make_daemon: Make, survived: Counter[str], fsync: str
) -> None:
    daemon = make_daemon(
        tmp_path / "data", fsync=fsync, fsync_interval="100ms", partition_bytes=20_000
    ).start()
    ledger = Ledger(random.Random(1))
    assert daemon.process is not None
    with ledger.load(daemon):
        ledger.wait_answers(100)
        daemon.process.send_signal(signal.SIGSTOP)
        _stand_still(30 if LONG else 2)
        daemon.process.send_signal(signal.SIGCONT)
        ledger.wait_stored(20)
    ledger.verify(daemon)
    daemon.kill()
    daemon.start()
    ledger.verify(daemon)
    survived[f"SIGSTOP under load, fsync={fsync}"] += 1


def _stand_still(seconds: float) -> None:
    """The fault itself is that time passes."""
    threading.Event().wait(seconds)


@pytest.mark.slow
@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize("fsync", ["interval", "batches", "always"])
@pytest.mark.parametrize(
    "slow",
    ["fdatasync:delay_enter=50000", "fdatasync:delay_exit=50000", "pwritev2:delay_enter=5000"],
)
def test_kill_on_a_slow_disk(
    tmp_path: Path, make_daemon: Make, survived: Counter[str], fsync: str, slow: str
) -> None:
    """Pushes wait longer, and nothing is lost."""
    daemon = make_daemon(
        tmp_path / "data",
        fsync=fsync,
        fsync_interval="20ms",
        fsync_batches=5,
        partition_bytes=20_000,
    ).start()
    ledger = Ledger(random.Random(2))
    with daemon.attached("-e", f"inject={slow}"), ledger.load(daemon):
        ledger.wait_answers(100)
        daemon.kill()
    daemon.start()
    ledger.verify(daemon)
    survived["kill -9 on a slow disk"] += 1


@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize(
    "settings",
    [
        {"fsync": "interval", "fsync_interval": "100ms"},
        {"fsync": "batches", "fsync_batches": 3},
    ],
    ids=["interval", "batches"],
)
def test_pushes_wait_when_syncs_fall_behind(
    tmp_path: Path, make_daemon: Make, survived: Counter[str], settings: dict[str, object]
) -> None:
    """A push that is held is answered when a sync has ended, and not before."""
    daemon = make_daemon(tmp_path / "data", **settings).start()
    slow = daemon.attached(*_SLOW_SYNC, *trace(*SYNCS, *WRITES), output=tmp_path / "calls")
    with daemon.client() as client, daemon.client() as observer:
        client.push("app", [b"first"])
        with slow, _Pusher(client) as pusher:
            held, stats = _wait_held(observer, pusher)
            assert stats["waiting_pushes"] == "1"
            assert int(stats["unsynced_batches"]) > 0
            if settings["fsync"] == "batches":
                assert stats["unsynced_batches"] == "6", "twice as many as a sync is due after"
            wait_until(lambda: pusher.answered > held and pusher.longest_s > 0.5 * _DELAY_S)
        assert int(observer.stats("app")["next"]) == 1 + pusher.answered
    calls = read_calls(tmp_path / "calls", daemon.data_dir)
    answers = [call for call in calls if call.path == "socket" and '"OK ' in call.text]
    syncs = [call for call in calls if call.name == "fdatasync" and call.path.endswith(".log")]
    before, after = answers[held], answers[held + 1]  # of the push that was held: the first is 0
    assert any(before.started < sync.ended < after.started for sync in syncs)
    survived["syncs that fall behind"] += 1


@pytest.mark.alone
@pytest.mark.usefixtures("strace")
def test_a_slow_sync_holds_up_no_other_topic_and_no_reader(
    tmp_path: Path, make_daemon: Make, survived: Counter[str]
) -> None:
    (tmp_path / "logd.toml").write_text('[topics.fast]\nfsync = "never"\n')
    daemon = make_daemon(tmp_path / "data", fsync="always", config=tmp_path / "logd.toml").start()
    with daemon.client() as client, daemon.client() as observer:
        client.push("app", [b"first"])
        observer.push("fast", [b"first"])
        endless = daemon.attached("-e", "inject=fdatasync:delay_enter=20000000")
        with _Pusher(client) as pusher, endless:
            wait_until(lambda: observer.stats("app")["waiting_pushes"] == "1")
            for _ in range(20):
                observer.push("fast", [b"x"])
                observer.read("fast", "first", 100)
                observer.read("app", "first", 100)
                observer.stats()
            assert observer.stats("app")["waiting_pushes"] == "1"
            assert pusher.answered == 0, "all of this was answered during one sync"
    survived["slow syncs beside other topics"] += 1


class _Pusher(threading.Thread):
    """Pushes one message after the other, for as long as a `with` lasts."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client
        self._stop_asked = threading.Event()
        self.answered = 0
        self.longest_s = 0.0  # for an answer

    def run(self) -> None:
        while not self._stop_asked.is_set():
            start_s = time.monotonic()
            self._client.push("app", [b"x"])
            self.longest_s = max(self.longest_s, time.monotonic() - start_s)
            self.answered += 1
            self._client.read("app", "next", 1, wait_ms=10)  # a steady pace, not a flood

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_asked.set()
        self.join()


def _wait_held(observer: Client, pusher: _Pusher) -> tuple[int, dict[str, str]]:
    """Until one push has been waiting for its answer for a while: not just on its way.

    How many were answered before it, and what STATS said while it waited.
    """
    answered, since_s, stats = -1, time.monotonic(), dict[str, str]()

    def is_held() -> bool:
        nonlocal answered, since_s, stats
        before, stats = pusher.answered, observer.stats("app")
        if stats["waiting_pushes"] == "0" or not answered == before == pusher.answered:
            answered, since_s = pusher.answered, time.monotonic()
        return time.monotonic() - since_s > 0.1 * _DELAY_S

    wait_until(is_held)
    return answered, stats
