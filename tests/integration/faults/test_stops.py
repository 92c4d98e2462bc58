"""SIGTERM under load: all that was acknowledged is there, and the next start has nothing to do."""

from __future__ import annotations

import os
import random
import secrets
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.faults.ledger import Ledger
from tests.integration.faults.reading import read_all
from tests.integration.faults.traced_daemon import TracedDaemon
from tests.integration.faults.writers import ID, PLAIN
from tests.support.daemon import wait_until
from tests.support.long_run import LONG

_LIVES = 20 if LONG else 1
_STOP_TIMEOUT_S = 10.0


@pytest.mark.slow
@pytest.mark.parametrize("fsync", ["never", "interval", "batches", "always"])
def test_a_stop_under_load_is_clean(
    tmp_path: Path, make_daemon: Callable[..., TracedDaemon], survived: Counter[str], fsync: str
) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for life in range(_LIVES):
        daemon = make_daemon(
            tmp_path / f"{life}",
            fsync=fsync,
            fsync_batches=10,
            partition_bytes=rng.choice((500, 20_000)),
            stop_timeout=_STOP_TIMEOUT_S,
        ).start()
        ledger = Ledger(rng)
        for _ in range(5 if LONG else 3):
            ledger.add_writer(f"t{len(ledger.writers)}", rng.choice((PLAIN, ID)))
            with ledger.load(daemon):
                ledger.wait_answers(rng.randrange(1, 300))
                asked_s = time.monotonic()
                code = daemon.stop()
                took_s = time.monotonic() - asked_s
            assert code == 0, daemon.log
            assert took_s < _STOP_TIMEOUT_S
            daemon.start()
            assert not daemon.has_recovered, daemon.log
            ledger.verify(daemon)
            with daemon.client() as client:
                assert {client.stats(info.topic)["epoch"] for info in client.topics()} == {"1"}
            survived[f"SIGTERM under load, fsync={fsync}"] += 1
        codes = {push.refused for writer in ledger.writers.values() for push in writer.sent}
        assert codes <= {"", "shutting-down", "lost"}, codes


@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize("partition_bytes", [1 << 20, 1], ids=["sync", "roll"])
def test_a_push_that_waits_for_the_disk_is_answered_before_a_stop(
    tmp_path: Path,
    make_daemon: Callable[..., TracedDaemon],
    survived: Counter[str],
    partition_bytes: int,
) -> None:
    """SIGTERM comes while its sync, or the roll before it, is under way."""
    daemon = make_daemon(tmp_path / "data", fsync="always", partition_bytes=partition_bytes).start()
    with daemon.client() as client, daemon.client() as observer, ThreadPoolExecutor() as pool:
        client.push("app", [b"a"])
        with daemon.attached("-e", "inject=fdatasync:delay_enter=20000000"):
            pushed = pool.submit(client.push, "app", [b"b"])
            wait_until(lambda: observer.stats("app")["waiting_pushes"] == "1")
            os.kill(daemon.pid, signal.SIGTERM)
            daemon.wait_said("SIGTERM: stopping")
        assert daemon.wait_ended() == 0  # without the tracer the disk is not slow any more
        assert pushed.result() == (1, 1)
    with daemon.start().client() as client:
        assert not daemon.has_recovered, daemon.log
        assert read_all(client, "app").messages == [b"a", b"b"]
    survived["SIGTERM while a push waits for the disk"] += 1
