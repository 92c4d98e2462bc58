"""Writers behind a bad line, on a daemon that is killed, and killed themselves: every message once.

The daemon syncs by interval, and nothing that is killed loses what its kernel has: so no loss is
acceptable here. The order is that of each writer.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from logd import Writer
from logd.client.delivery import Loss
from tests.integration.clients.spooling import batch
from tests.support.daemon import ROOT, Daemon, lasting_address, messages, running
from tests.support.long_run import LONG
from tests.support.proxy import Proxy, random_faults

LINE_FAULTS = 40
DAEMON_KILLS = 6
PROGRAM_KILLS = 8
WRITERS = 4
ENOUGH_S = 600.0  # only against waiting for ever; a quiet machine needs a fraction of it
# Two minutes on a busy machine, which is too near to what a test has otherwise.
lengthy = pytest.mark.timeout(0 if LONG else 2 * ENOUGH_S)


@contextmanager
def killing(daemon: Daemon, proxy: Proxy, rng: random.Random, most: int) -> Iterator[list[int]]:
    """Kill the daemon and start it again, until the block ends or it was so often; counts."""
    stop, kills = threading.Event(), [0]

    def work() -> None:
        while not stop.is_set() and kills[0] < most:
            proxy.wait_for_bytes(rng.randrange(200_000), 2)
            daemon.kill()
            daemon.start()
            kills[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield kills
    finally:
        stop.set()
        thread.join()


class Babbler:
    """Writes numbered messages to a topic from a thread of its own until it is told to stop."""

    def __init__(self, name: int, address: str, rng: random.Random) -> None:
        self.name, self.written, self.losses = name, 0, list[Loss]()
        self.error: BaseException | None = None
        self._rng, self._stop = rng, threading.Event()
        self._writer = Writer(
            address, "app", batch_bytes=rng.choice((1, 500, 20_000)), linger_s=0.002,
            max_in_flight=rng.choice((1, 4, 16, 300)), compress=rng.random() < 0.3,
            queue_bytes=200_000, timeout_s=0.5, patience_s=ENOUGH_S, connect="later",
            on_loss=self.losses.append,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def message(self, n: int) -> bytes:
        return b"%d %d %s" % (self.name, n, b"." * (n * 37 % 400))

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(ENOUGH_S)
        assert not self._thread.is_alive()

    def _work(self) -> None:
        futures = {}
        try:
            with self._writer as writer:
                while not self._stop.is_set():
                    if self._rng.random() < 0.01:
                        futures[self.written] = writer.submit(self.message(self.written))
                    else:
                        writer.write(self.message(self.written))
                    self.written += 1
                    if self._rng.random() < 0.0005:
                        writer.flush()
            self.offsets = {n: future.result(1) for n, future in futures.items()}
            assert writer.acknowledged == self.written
        except BaseException as error:
            self.error = error
            raise


@pytest.mark.slow
@lengthy
def test_each_message_once_and_in_order(
    tmp_path: Path, seed: int, times: int, survived: Counter[str]
) -> None:
    rng = random.Random(seed)
    address = lasting_address()
    daemon = running(tmp_path, "--host", address, fsync="interval")
    with daemon, Proxy(address, random_faults(random.Random(rng.random()))) as proxy:
        babblers = [Babbler(n, proxy.address, random.Random(rng.random())) for n in range(WRITERS)]
        with killing(daemon, proxy, rng, DAEMON_KILLS * times) as kills:
            enough = proxy.wait_for(
                lambda: (
                    proxy.faults.total() >= LINE_FAULTS * times and kills[0] >= DAEMON_KILLS * times
                ),
                ENOUGH_S * times,
            )
        proxy.heal()
        for babbler in babblers:
            babbler.finish()
        assert enough, f"only {proxy.faults} and {kills} kills"
        assert [babbler.error for babbler in babblers] == [None] * WRITERS
        assert daemon.stop() == 0
        check(messages(daemon.stored("app")), babblers)
    survived.update(proxy.faults)
    survived["kill -9 of the daemon"] += kills[0]


def check(stored: list[bytes], babblers: list[Babbler]) -> None:
    for babbler in babblers:
        mine = [m for m in stored if m.startswith(b"%d " % babbler.name)]
        assert len(mine) == babbler.written
        assert all(message == babbler.message(n) for n, message in enumerate(mine))
        assert babbler.losses == []
        assert all(stored[at] == babbler.message(n) for n, at in babbler.offsets.items())
    assert len(stored) == sum(babbler.written for babbler in babblers)


# -- the program is killed too --------------------------------------------------------------------


class Program:
    """tests/integration/clients/spooling.py in a process of its own."""

    def __init__(self, address: str, spool: Path) -> None:
        script = Path(__file__).with_name("spooling.py")
        self._command = [sys.executable, str(script), address, "app", str(spool)]

    def killed_after(self, pushes: int) -> int:
        """Run it until it has pushed so often, and kill -9 it; the number it said last."""
        process = subprocess.Popen([*self._command, "push"], cwd=ROOT, stdout=subprocess.PIPE)
        last = 0
        assert process.stdout is not None
        with process.stdout as said:
            for _ in range(pushes):
                line = said.readline()
                assert line, "it ended by itself"
                last = int(line)
            process.kill()
            process.wait()
        return last

    def finish(self) -> int:
        done = subprocess.run([*self._command, "finish"], cwd=ROOT, capture_output=True, timeout=90)
        assert done.returncode == 0, done.stderr.decode()
        return int(done.stdout)


@pytest.mark.slow
@lengthy
def test_a_program_that_is_killed_itself(
    tmp_path: Path, seed: int, times: int, survived: Counter[str]
) -> None:
    rng = random.Random(seed)
    address = lasting_address()
    daemon = running(tmp_path, "--host", address, fsync="interval")
    with daemon, Proxy(address, random_faults(random.Random(rng.random()))) as proxy:
        program = Program(proxy.address, tmp_path / "spool")
        said = 0
        with killing(daemon, proxy, rng, PROGRAM_KILLS * times // 2) as kills:
            for _ in range(PROGRAM_KILLS * times):
                pushes = rng.choice((0, 1, rng.randrange(20), rng.randrange(600)))
                said = max(said, program.killed_after(pushes))
        proxy.heal()
        last = program.finish()
        assert last >= said
        assert daemon.stop() == 0
        stored = messages(daemon.stored("app"))
    assert stored == [message for n in range(1, last + 1) for message in batch(n)]
    survived.update(proxy.faults)
    survived["kill -9 of the daemon"] += kills[0]
    survived["kill -9 of the program, with a spool"] += PROGRAM_KILLS * times
