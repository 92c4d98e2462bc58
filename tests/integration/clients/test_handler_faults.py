"""The logging handler through cut, silent and half-closed connections, and through killed daemons.

Every record arrives once and in order, or is counted, in its place: where records are missing in
the topic, a report says how many, and the numbers add up to all that was logged.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from logd import LogdHandler
from logd.client import delivery
from logd.client.backoff import Backoff
from tests.support.daemon import HANG_S, Daemon, messages, running
from tests.support.long_run import LONG
from tests.support.proxy import (
    CUT,
    HALF_CLOSE,
    REFUSE,
    RESET,
    SILENCE,
    TO_CLIENT,
    TO_DAEMON,
    Fault,
    Proxy,
)

FAULTS = 100 if LONG else 50  # in each of two runs
KILL_EVERY = 10
TIMEOUT_S = 0.3  # after so long a silence the handler's writer connects again
KINDS = (
    (RESET, TO_DAEMON), (CUT, TO_DAEMON), (SILENCE, TO_DAEMON), (SILENCE, TO_CLIENT),
    (HALF_CLOSE, TO_DAEMON), (HALF_CLOSE, TO_CLIENT), (REFUSE, TO_DAEMON),
)  # fmt: skip


def faults_of_all_kinds(seed: int) -> Iterator[Fault]:
    rng = random.Random(seed)
    while True:
        kind, direction = rng.choice(KINDS)
        after_bytes = rng.choice([0, 300, 20_000, 60_000, 100_000])
        yield Fault(kind, direction, after_bytes // (200 if direction == TO_CLIENT else 1))


def endure(daemon: Daemon, proxy: Proxy, log: logging.Logger, seed: int) -> int:
    """Log in bursts until enough has gone wrong, in every way there is; how many records."""
    dice, written, killed = random.Random(seed), 0, 0
    while proxy.faults.total() + killed < FAULTS or len(proxy.faults) < len(KINDS):
        for _ in range(dice.choice([1, 10, 100, 400])):
            log.info("x" * dice.randrange(300), extra={"number": written})
            written += 1
        proxy.wait_for_change(TIMEOUT_S)
        if proxy.faults.total() // KILL_EVERY > killed:
            killed += 1
            daemon.kill()
            proxy.target = daemon.start().address
    return written


def missing_where_reported(data: bytes) -> int:
    """Where the numbers end, if each is there once and in order or is counted in its place."""
    number = 0
    for message in messages(data):
        record = json.loads(message)
        if record["logger"] == "logd.handler":
            number += record["dropped"]
        else:
            assert record["number"] == number
            number += 1
    return number


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "spool"), [(1, False), (2, True)])
def test_each_record_arrives_once_and_in_order_or_is_counted(
    seed: int, spool: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "Backoff", partial(Backoff, 0.01, 0.1))  # many faults in a minute
    log = logging.Logger("shop")
    with running(tmp_path) as daemon, Proxy(daemon.address, faults_of_all_kinds(seed)) as proxy:
        handler = LogdHandler(
            proxy.address, "app", queue_bytes=1 << 17, timeout_s=TIMEOUT_S, close_s=HANG_S,
            spool=tmp_path / "spool" if spool else None,
        )  # fmt: skip
        log.addHandler(handler)
        written = endure(daemon, proxy, log, seed=11)
        proxy.heal()
        handler.close()
        data = daemon.stored("app")
    print(f"{written} records, {handler.dropped} dropped; {dict(proxy.faults)}")
    assert len(proxy.faults) == len(KINDS)
    assert (handler.emitted, handler.failed, handler.errors) == (written, 0, 0)
    assert missing_where_reported(data) == written
    assert (handler.dropped > 0) is not spool
