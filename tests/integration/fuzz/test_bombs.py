"""Compression bombs and other large work on every route: no other connection waits.

While a request is processed, a probe in another process pushes and asks; no reply to it may take
longer than 100 ms, and the daemon's memory may not grow by more than 64 MB at any moment. A delay
that does not come again when the same request is repeated is the machine's, not the daemon's.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.integration.fuzz.bombs import Bomb, Bombs, http_get, push, stored
from tests.integration.fuzz.chance import SEED, Progress, how_many
from tests.integration.fuzz.failing import Failing
from tests.integration.fuzz.scratch import scratch
from tests.integration.fuzz.victim import dial
from tests.support.daemon import HANG_S, ROOT, Daemon, running
from tests.support.long_run import LONG

DELAY_S = 0.1
GROWTH_BYTES = 64 << 20
REPEATS = 3
TOPICS = 300  # for commands that look at all of them
INPUTS = how_many(40, 5_000)  # at random, after one of each kind
_PROCESSED_S = (
    1.0 if LONG else 0.3
)  # how long the daemon may work on a request before its client leaves


class Watch:
    """What the daemon does to others while something happens: `longest`, `growth_bytes`."""

    def __init__(self, daemon: Daemon) -> None:
        self._status = Path(f"/proc/{daemon.pid}/status")
        self._clear = Path(f"/proc/{daemon.pid}/clear_refs")
        probe = ROOT / "tests/support/delay_probe.py"
        command = [sys.executable, str(probe), str(daemon.pid), daemon.address, daemon.http]
        self._probe = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer()
        self._base_bytes = 0

    def is_warm(self) -> None:
        self._base_bytes = self._memory_bytes("VmRSS")

    def begin(self) -> None:
        self._clear.write_text("5")  # VmHWM starts again at VmRSS
        self._ask()

    def end(self) -> tuple[float, str, int]:
        """The longest delay, the request of the probe that had it, and how much memory grew."""
        delay_s, request = self._ask()
        return delay_s, request, self._memory_bytes("VmHWM") - self._base_bytes

    def close(self) -> None:
        assert self._probe.stdin is not None
        assert self._probe.stdout is not None
        self._probe.stdin.close()
        self._probe.wait(HANG_S)
        self._probe.stdout.close()

    def _ask(self) -> tuple[float, str]:
        assert self._probe.stdin is not None
        self._probe.stdin.write("\n")
        self._probe.stdin.flush()
        return self._answer()

    def _answer(self) -> tuple[float, str]:
        assert self._probe.stdout is not None
        line = self._probe.stdout.readline()
        assert line, f"the probe ended with {self._probe.wait(HANG_S)}"
        delay_s, request = json.loads(line)
        return delay_s, request

    def _memory_bytes(self, name: str) -> int:
        line = next(line for line in self._status.read_text().splitlines() if line.startswith(name))
        return int(line.split()[1]) * 1024


def detonate(daemon: Daemon, bomb: Bomb) -> None:
    """Send it and take the reply as the bomb says; leave when it takes long."""
    deadline_s = time.monotonic() + _PROCESSED_S
    with dial(daemon.address if bomb.listener == "tcp" else daemon.http) as connection:
        connection.setblocking(False)
        poll, request, answered = select.poll(), memoryview(bomb.request), False
        while (left_s := deadline_s - time.monotonic()) > 0:
            takes = bomb.reads == "all" or not answered
            events = (select.POLLIN if takes else 0) | (select.POLLOUT if request else 0)
            poll.register(connection, events)
            if not poll.poll(left_s * 1000):
                return
            try:
                if request and is_writable(connection):
                    request = request[connection.send(request[: 1 << 18]) :]
                elif takes:
                    if not connection.recv(1 << 16):
                        return
                    answered = True
                    if bomb.reads == "leave":
                        return
            except BlockingIOError:
                continue
            except ConnectionError:
                return


def is_writable(connection: socket.socket) -> bool:
    return bool(select.select([], [connection], [], 0)[1])


@contextmanager
def target() -> Iterator[tuple[Daemon, Watch]]:
    flags = {"partition_bytes": 32 << 20, "max_partitions": 2}
    with (
        scratch() as directory,
        running(directory, "--http-host", "127.0.0.1:0", **flags) as daemon,
    ):
        with dial(daemon.address) as connection:
            for pushes in stored().values():
                for one in pushes:
                    connection.sendall(one)
                    assert connection.recv(1000).startswith(b"OK ")
            for number in range(TOPICS):
                connection.sendall(b"PUSH topic-%d\r\nx\r\n" % number)
                assert connection.recv(1000) == b"OK 0 1\r\n"
        watch = Watch(daemon)
        try:
            yield daemon, watch
        finally:
            watch.close()


def warm_up(daemon: Daemon) -> None:
    """What is allocated once: the largest body, plain, and a read of it."""
    detonate(daemon, Bomb("", "tcp", push("bombs", b"x" * 100 + b"\n")))
    detonate(
        daemon,
        Bomb(
            "",
            "http",
            http_get("/topics/bombs/messages", grep="x"),
        ),
    )


def check(daemon: Daemon, watch: Watch, bomb: Bomb) -> tuple[float, int]:
    """Detonate it, again if other connections were delayed; what it did at least and at most."""
    shortest_s = float("inf")
    for _ in range(REPEATS):
        watch.begin()
        detonate(daemon, bomb)
        delay_s, request, growth_bytes = watch.end()
        if growth_bytes > GROWTH_BYTES:
            raise Failing(f"{bomb.name}: memory grew by {growth_bytes / 1e6:.0f} MB")
        shortest_s = min(shortest_s, delay_s)
        if delay_s <= DELAY_S:
            return delay_s, growth_bytes
    raise Failing(f"{bomb.name}: {request} was delayed by at least {shortest_s * 1000:.0f} ms")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_bombs_on_every_route() -> None:
    random = Random(SEED)
    bombs = Bombs(random)
    makers = [*bombs.each(), *[bombs.any] * INPUTS]
    total = len(makers)
    progress, longest_s, most_bytes = Progress("bombs", total), 0.0, 0
    failures, slowest = list[str](), (0.0, "")
    with target() as (daemon, watch):
        warm_up(daemon)
        watch.is_warm()
        for number, make in enumerate(makers):
            bomb = make()
            try:
                delay_s, growth_bytes = check(daemon, watch, bomb)
                longest_s, most_bytes = max(longest_s, delay_s), max(most_bytes, growth_bytes)
                slowest = max(slowest, (delay_s, bomb.name))
            except Failing as failure:
                failures.append(str(failure))
            told = f", longest delay {longest_s * 1000:.0f} ms, {most_bytes / 1e6:.0f} MB grown"
            progress.at(number, told)
        progress.tell(total, f"{told}; the longest by {slowest[1][:100]}")
        assert "Traceback" not in daemon.log, daemon.log[-5000:]
        assert not failures, "\n".join(failures)
        assert daemon.stop() == 0, daemon.log
