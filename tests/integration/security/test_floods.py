"""Many at a time: connections that do nothing, readers that do not read, floods of everything.

Each says what it measured. The limits are wide: they tell a daemon that holds what it should not,
or that spins, from one that does not, on a machine that does other things as well.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from logd import Client, ConnectionLost, LogdError
from tests.support.daemon import HANG_S, Daemon, running, wait_until

HTTP = ("--http-host", "127.0.0.1:0")
MB = 1 << 20
ENOUGH_S = 60.0  # for what many take together
pytestmark = pytest.mark.alone


@pytest.fixture
def descriptors() -> Iterator[int]:
    """As many as this process may have; what daemons started now inherit."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), HANG_S)


@contextlib.contextmanager
def held(address: str, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(connect(address)) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("listener", ["tcp", "http"])
def test_ten_thousand_idle_connections(tmp_path: Path, descriptors: int, listener: str) -> None:
    if descriptors < 10_500:
        pytest.skip(f"this process may open {descriptors} files only, 10,500 are needed")
    with running(tmp_path, *HTTP, max_connections=10_100) as daemon:
        address = daemon.address if listener == "tcp" else daemon.http
        question = b"PING\r\n" if listener == "tcp" else b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
        question = question.replace(b"Host: a", b"Host: localhost")
        with held(address, 10_000) as connections, Client(daemon.address) as client:
            for one in connections[::100]:
                one.sendall(question)
                assert one.recv(100)
            client.push("app", [b"x"])
            wait_until(lambda: client.stats()["connections"] == "10001", timeout_s=ENOUGH_S)
            used = daemon.rss_bytes()
            print(f"10,000 idle connections over {listener}: {used / 1e6:.0f} MB in all")
            assert used < 150 * 10**6
            before_s = daemon.cpu_s()
            client.read("app", "next", 1, wait_ms=2000)
            print(f"and {(daemon.cpu_s() - before_s) / 2:.1%} of a core")
            assert daemon.cpu_s() - before_s < 1.0


@pytest.mark.slow
def test_a_thousand_readers_that_have_stopped_reading(tmp_path: Path, descriptors: int) -> None:
    """Some ask for much, some for a lot of little, more than the kernel takes off the daemon's
    hands; a writer beside them keeps its pace."""
    if descriptors < 2500:
        pytest.skip(f"this process may open {descriptors} files only, 2,500 are needed")
    with running(tmp_path) as daemon, Client(daemon.address) as client:
        for _ in range(40):
            client.push("big", [b"x" * 1_000_000])
        client.push("small", [b"x" * 30_000])
        with held(daemon.address, 1000) as readers:
            for one in readers:
                one.sendall(b"PING\r\n")
                assert one.recv(10) == b"OK\r\n"
            alone_s = paces(client)
            before = daemon.rss_bytes()
            for n, one in enumerate(readers):
                one.sendall(b"READ big 0 1000\r\n" if n % 10 else b"READ small 0 1\r\n" * 400)
            client.push("app", [b"x"])
            until_settled(daemon)
            beside_s = paces(client)
            grown = daemon.rss_bytes() - before
            print(f"1,000 readers that do not read: {grown / 1e6:.1f} MB more;")
            print(f"a push took {alone_s * 1e3:.2f} ms before, and {beside_s * 1e3:.2f} ms then")
            assert grown < 64 * MB
            assert beside_s < 10 * alone_s + 0.05


def until_settled(daemon: Daemon) -> None:
    """Wait until the daemon has nothing more to do: it uses no time."""
    give_up_s = time.monotonic() + ENOUGH_S
    with Client(daemon.address) as client:
        client.push("clock", [b"x"])
        while True:
            before_s = daemon.cpu_s()
            client.read("clock", "next", 1, wait_ms=300)
            if daemon.cpu_s() - before_s < 0.05:
                return
            assert time.monotonic() < give_up_s


def paces(client: Client, pushes: int = 300) -> float:
    """The median time of a push."""
    times = []
    for _ in range(pushes):
        begun_s = time.perf_counter()
        client.push("paced", [b"x" * 100])
        times.append(time.perf_counter() - begun_s)
    return statistics.median(times)


class Flood:
    """Threads that do something again and again, until they are told to stop."""

    def __init__(self, *works: object) -> None:
        self.turns = 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in works]

    def _run(self, work: object) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(OSError, LogdError):
                work()  # type: ignore[operator]
            self.turns += 1
            self._stop.wait(0.0005)  # a flood, but these are two cores for both sides

    def __enter__(self) -> Flood:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(HANG_S)


@pytest.mark.slow
def test_floods_do_not_stop_a_steady_writer(tmp_path: Path) -> None:
    """New connections, new topics, over both listeners; past the limits all are told so."""
    limits = {"max_topics": 60, "max_connections": 100, "connection_rate": 50}
    with running(tmp_path, *HTTP, **limits) as daemon, Client(daemon.address) as steady:
        steady.push("paced", [b"x"])
        codes: set[str] = set()
        numbers = iter(range(10**9))

        def come_and_go() -> None:
            connect(daemon.address).close()

        def come_and_ask() -> None:
            with connect(daemon.http) as connection:
                connection.sendall(b"GET /topics HTTP/1.1\r\nHost: localhost\r\n\r\n")
                if b" 503 " in connection.recv(200):
                    codes.add("503")

        def make_topics() -> None:
            try:
                with Client(daemon.address) as client:
                    for _ in range(10):
                        client.push(f"flood-{next(numbers)}", [b"x"])
            except LogdError as error:
                codes.add(error.code)

        alone_s = paces(steady)
        with Flood(come_and_go, come_and_ask, make_topics, make_topics) as flood:
            wait_until(lambda: codes >= {"busy", "503"} and flood.turns > 200)
            beside_s = paces(steady, 1000)
            turns = flood.turns
        print(f"a push took {alone_s * 1e3:.2f} ms alone, {beside_s * 1e3:.2f} ms in {turns} turns")
        assert beside_s < 20 * alone_s + 0.05
        wait_until(lambda: "topic-limit" in topics_past_the_limit(daemon))
        assert steady.stats("paced")["next"] == str(1 + 300 + 1000)
        wait_until(lambda: int(steady.stats()["connections"]) == 1)
        assert len(steady.topics()) == 60
        assert "Traceback" not in daemon.log


def topics_past_the_limit(daemon: Daemon) -> set[str]:
    codes = set()
    with contextlib.suppress(ConnectionLost), Client(daemon.address) as client:
        for n in range(100):
            try:
                client.push(f"more-{n}", [b"x"])
            except LogdError as error:
                codes.add(error.code)
                if error.closes or error.code == "busy":
                    break
    return codes


@pytest.mark.slow
@pytest.mark.parametrize("listener", ["tcp", "http"])
def test_no_descriptors_left(tmp_path: Path, listener: str) -> None:
    """What is open goes on, nothing spins, and when some are free again all is as before."""
    with running(tmp_path, *HTTP, max_open_files=80) as daemon, Client(daemon.address) as client:
        client.push("app", [b"x"])
        with held(daemon.address if listener == "tcp" else daemon.http, 200):
            wait_until(lambda: daemon.descriptors() >= 75)
            client.push("app", [b"y"])
            before_s = daemon.cpu_s()
            client.read("app", "next", 1, wait_ms=2000)
            used_s = daemon.cpu_s() - before_s
            print(f"with no descriptor left: {used_s / 2:.1%} of a core")
            assert used_s < 0.5
        wait_until(lambda: int(client.stats()["connections"]) == 1)
        with Client(daemon.address) as another:
            another.push("new", [b"x"])
        with connect(daemon.http) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 200 " in connection.recv(100)
        assert "Traceback" not in daemon.log
