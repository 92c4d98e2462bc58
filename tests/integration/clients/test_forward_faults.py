"""The forwarder behind a bad line, on a daemon that is killed: every line once, in order."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.clients.test_writer_faults import ENOUGH_S, killing, lengthy
from tests.support.daemon import lasting_address, messages, running
from tests.support.forwarding_process import TOPIC, Program, Shipper
from tests.support.proxy import Proxy, random_faults

LINE_FAULTS = 30
DAEMON_KILLS = 4
FORWARDER_KILLS = 4


@pytest.mark.slow
@lengthy
def test_each_line_once_and_in_order(
    tmp_path: Path, seed: int, times: int, survived: Counter[str]
) -> None:
    rng = random.Random(seed)
    address = lasting_address()
    daemon = running(tmp_path, "--host", address, fsync="interval")
    path = tmp_path / "app.log"
    with (
        daemon,
        Proxy(address, random_faults(random.Random(rng.random()))) as proxy,
        Shipper(tmp_path, proxy.address, str(path)) as shipper,
        Program(path) as program,
    ):
        with killing(daemon, proxy, rng, DAEMON_KILLS * times) as kills:
            for _ in range(FORWARDER_KILLS * times):
                shipper.start()
                proxy.wait_for_bytes(rng.randrange(60_000), 2)
                shipper.kill()
            shipper.start()
            enough = proxy.wait_for(
                lambda: (
                    proxy.faults.total() >= LINE_FAULTS * times and kills[0] >= DAEMON_KILLS * times
                ),
                ENOUGH_S * times,
            )
        proxy.heal()
        with program.paused():
            shipper.kill()
            assert shipper.run_once() == 0
            assert enough, f"only {proxy.faults} and {kills} kills"
            assert daemon.stop() == 0
            stored = messages(daemon.stored(TOPIC))
            assert stored == path.read_bytes().splitlines()
    survived.update(proxy.faults)
    survived["kill -9 of the daemon"] += kills[0]
    survived["kill -9 of the forwarder"] += FORWARDER_KILLS * times
