"""kill -9 at random moments under load: in no mode is anything lost that was acknowledged."""

from __future__ import annotations

import random
import secrets
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.faults.ledger import Ledger
from tests.integration.faults.traced_daemon import TracedDaemon
from tests.integration.faults.writers import ID, LINE, PLAIN
from tests.support.long_run import LONG

KILLS = 1250 if LONG else 15  # in each mode
_KILLS_OF_A_LIFE = 10  # then a new directory: each look reads all of it


@pytest.mark.slow
@pytest.mark.parametrize("fsync", ["never", "interval", "batches", "always"])
def test_nothing_acknowledged_is_lost(
    tmp_path: Path, make_daemon: Callable[..., TracedDaemon], survived: Counter[str], fsync: str
) -> None:
    for life in range(0, KILLS, _KILLS_OF_A_LIFE):
        seed = secrets.randbits(32)
        print(f"life {life}, seed {seed}")
        rng = random.Random(seed)
        daemon = make_daemon(
            tmp_path / f"{life}",
            fsync=fsync,
            fsync_interval="20ms",
            fsync_batches=10,
            partition_bytes=rng.choice((500, 3000, 20_000)),
        )
        ledger = Ledger(rng)
        daemon.start()
        for _ in range(min(_KILLS_OF_A_LIFE, KILLS - life)):
            _kill(daemon, ledger, rng)
            survived[f"kill -9 at a random moment, fsync={fsync}"] += 1
        assert daemon.stop() == 0


def _kill(daemon: TracedDaemon, ledger: Ledger, rng: random.Random) -> None:
    """Push, be killed, now and then once more while still starting, then look what is there."""
    ledger.add_writer(f"t{len(ledger.writers)}", rng.choice((LINE, PLAIN, ID)))
    with ledger.load(daemon):
        ledger.wait_answers(rng.randrange(1, 100))
        _moment(rng, 0.002)
        daemon.kill()
    if rng.random() < 0.2:
        daemon.launch_traced()
        _moment(rng, 0.02)
        daemon.kill()
    daemon.start()
    ledger.verify(daemon)


def _moment(rng: random.Random, longest_s: float) -> None:
    """The moment of the fault: the one thing here that is waited for by the clock."""
    threading.Event().wait(rng.uniform(0, longest_s))
