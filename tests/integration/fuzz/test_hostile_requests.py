"""Compression bombs and other large work on every route: no other connection waits.

While a request is processed, a probe in another process pushes and asks; no reply to it may take
longer than 100 ms, and the daemon's memory may not grow by more than 64 MB at any moment. A delay
that does not come again when the same request is repeated is the machine's, not the daemon's.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from tests.integration.fuzz.failures import Failing
from tests.integration.fuzz.fuzzed_daemon import dial
from tests.integration.fuzz.hostile_requests import (
    HostileRequest,
    HostileRequests,
    http_get,
    push,
    stored,
)
from tests.integration.fuzz.memory_directory import memory_directory
from tests.integration.fuzz.random_inputs import SEED, Progress, how_many
from tests.support.daemon import Daemon, running
from tests.support.delay_probe import DelayProbe
from tests.support.long_run import LONG

DELAY_S = 0.1
GROWTH_BYTES = 64 << 20
REPEATS = 3
TOPICS = 300  # for commands that look at all of them
INPUTS = how_many(10, 5_000)  # at random, after one of each kind
_PROCESSED_S = 1.0 if LONG else 0.3  # after this time the client disconnects


def send(daemon: Daemon, hostile: HostileRequest) -> None:
    """Send it and read the reply as it says; disconnect when it takes long."""
    deadline_s = time.monotonic() + _PROCESSED_S
    with dial(daemon.address if hostile.listener == "tcp" else daemon.http) as connection:
        connection.setblocking(False)
        poll, request, answered = select.poll(), memoryview(hostile.request), False
        while (left_s := deadline_s - time.monotonic()) > 0:
            takes = hostile.reads == "all" or not answered
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
                    if hostile.reads == "leave":
                        return
            except BlockingIOError:
                continue
            except ConnectionError:
                return


def is_writable(connection: socket.socket) -> bool:
    return bool(select.select([], [connection], [], 0)[1])


@contextmanager
def target() -> Iterator[tuple[Daemon, DelayProbe]]:
    flags = {"partition_bytes": 32 << 20, "max_partitions": 2}
    with (
        memory_directory() as directory,
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
        with DelayProbe(daemon) as probe:
            yield daemon, probe
        assert daemon.stop() == 0, daemon.log


def warm_up(daemon: Daemon) -> None:
    """What is allocated once: the largest body, plain, and a read of it."""
    send(daemon, HostileRequest("", "tcp", push("bombs", b"x" * 100 + b"\n")))
    send(daemon, HostileRequest("", "http", http_get("/topics/bombs/messages", grep="x")))


def check(daemon: Daemon, probe: DelayProbe, hostile: HostileRequest) -> tuple[float, int]:
    """Send it, again if other connections were delayed; what it did at least and at most."""
    shortest_s = float("inf")
    for _ in range(REPEATS):
        probe.begin()
        send(daemon, hostile)
        probe.end()
        if probe.grown_bytes > GROWTH_BYTES:
            raise Failing(f"{hostile.name}: memory grew by {probe.grown_bytes / 1e6:.0f} MB")
        shortest_s = min(shortest_s, probe.longest_s)
        if probe.longest_s <= DELAY_S:
            return probe.longest_s, probe.grown_bytes
    delayed = f"{probe.longest_request} was delayed by at least {shortest_s * 1000:.0f} ms"
    raise Failing(f"{hostile.name}: {delayed}")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_hostile_requests_on_every_route() -> None:
    random = Random(SEED)
    requests = HostileRequests(random)
    makers = [*requests.each(), *[requests.any] * INPUTS]
    total = len(makers)
    progress, longest_s, most_bytes = Progress("hostile requests", total), 0.0, 0
    failures, slowest = list[str](), (0.0, "")
    with target() as (daemon, probe):
        warm_up(daemon)
        probe.base_bytes = daemon.rss_bytes()
        for number, make in enumerate(makers):
            hostile = make()
            try:
                delay_s, growth_bytes = check(daemon, probe, hostile)
                longest_s, most_bytes = max(longest_s, delay_s), max(most_bytes, growth_bytes)
                slowest = max(slowest, (delay_s, hostile.name))
            except Failing as failure:
                failures.append(str(failure))
            told = f", longest delay {longest_s * 1000:.0f} ms, {most_bytes / 1e6:.0f} MB grown"
            progress.at(number, told)
        progress.tell(total, f"{told}; the longest by {slowest[1][:100]}")
        assert "Traceback" not in daemon.log, daemon.log[-5000:]
        assert not failures, "\n".join(failures)
