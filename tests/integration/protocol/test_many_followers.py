"""Many followers of one topic: some do not read, one reads slowly, and most must not notice.

All clients are sockets of one loop, which compares what each receives with what the others have
received, and measures the time from a push to each of its deliveries.
"""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import statistics
import time
from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from logd import Client
from tests.support.daemon import HANG_S, Daemon, batches, push, running, wait_until
from tests.support.long_run import LONG

FOLLOWERS, STALLED, LOAD_S = (1000, 100, 60.0) if LONG else (300, 30, 6.0)
IDLE, IDLE_MS = (10_000, 40_000) if LONG else (1000, 5000)
MAX_P99_S = 0.02 if LONG else 2.0  # short runs share the machine with other programs
MAX_GROWTH_BYTES = 8 << 20
MAX_IDLE_CORE = 0.01 if LONG else 0.02
PUSHES_PER_S = 20
MESSAGE_BYTES = 4000
SLOW_BYTES_PER_S = 1000
STALLED_BUFFER_BYTES = 4096  # of the receiving kernel
_SPARE_FILES = 500
_DEADLINE_S = 120.0  # for what is left when the load has ended


@pytest.fixture
def descriptors() -> Iterator[int]:
    """As many as this process may have; what daemons started now inherit."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


class Delivered:
    """Replies that were checked completely, by their offset: most followers get the same bytes."""

    def __init__(self) -> None:
        self.replies: dict[int, bytes] = {}
        self.messages: dict[int, bytes] = {}  # as pushed
        self.pushed_at_s: dict[int, float] = {}
        self.delays_s = array("d")

    def check(self, offset: int, body: bytes) -> int:
        """The batches of one reply; returns where they end."""
        for batch in batches(body):
            assert batch.header.offset == offset
            for message in batch.messages:
                assert message == self.messages[offset], f"another message at {offset}"
                offset += 1
        return offset


class FollowingSocket:
    """One follower from `next` on."""

    def __init__(self, address: str, next_: int, buffer_bytes: int = 0) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        if buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        self.socket.settimeout(HANG_S)
        self.socket.connect((host, int(port)))
        self.socket.sendall(b"FOLLOW app %d\r\n" % next_)
        self.socket.setblocking(False)
        self.next = next_
        self._rest = b""

    def receive(self, delivered: Delivered, size: int = 1 << 18) -> bool:
        """Take what has arrived. False if there is nothing."""
        try:
            data = self.socket.recv(size)
        except BlockingIOError:
            return False
        assert data, "the daemon has closed the connection"
        if not self._rest and data == delivered.replies.get(self.next):
            self._arrived(delivered, self.next + 1)
        else:
            self._rest += data
            self._parse(delivered)
        return True

    def _parse(self, delivered: Delivered) -> None:
        while (end := self._rest.find(b"\r\n")) >= 0:
            word, offset, count, size = self._rest[:end].split(b" ")
            stop = end + 2 + int(size)
            if len(self._rest) < stop:
                return
            assert (word, int(offset)) == (b"BATCHES", self.next), self._rest[:end]
            reply, self._rest = self._rest[:stop], self._rest[stop:]
            next_ = delivered.check(self.next, reply[end + 2 :])
            assert next_ == self.next + int(count)
            if count == b"1":
                delivered.replies.setdefault(self.next, reply)
            self._arrived(delivered, next_)

    def _arrived(self, delivered: Delivered, next_: int) -> None:
        now_s = time.perf_counter()
        for offset in range(self.next, next_):
            delivered.delays_s.append(now_s - delivered.pushed_at_s[offset])
        self.next = next_


class Load:
    """Pushes at a constant rate, and followers that read, in one loop."""

    def __init__(
        self, daemon: Daemon, reading: list[FollowingSocket], slow: FollowingSocket
    ) -> None:
        self._daemon, self._reading, self._slow = daemon, reading, slow
        self.delivered, self.slow_delivered = Delivered(), Delivered()
        for name in ("replies", "messages", "pushed_at_s"):
            setattr(self.slow_delivered, name, getattr(self.delivered, name))
        self.next = 1
        self.most_rss_bytes = 0
        self._poll = select.epoll()
        self._by_fd = {one.socket.fileno(): one for one in reading}
        for fd in self._by_fd:
            self._poll.register(fd, select.EPOLLIN)

    def run(self, pusher: socket.socket, seconds: float) -> None:
        begun_s = time.perf_counter()
        due_s, second_s, ends_s = begun_s, begun_s + 1, begun_s + seconds
        while (now_s := time.perf_counter()) < ends_s:
            if now_s >= due_s:
                due_s += 1 / PUSHES_PER_S
                self._push(pusher)
            if now_s >= second_s:
                second_s += 1
                self._slow.receive(self.slow_delivered, SLOW_BYTES_PER_S)
                self.most_rss_bytes = max(self.most_rss_bytes, self._daemon.rss_bytes())
            self._turn(min(due_s, second_s) - time.perf_counter())
        deadline_s = time.monotonic() + _DEADLINE_S
        while any(one.next < self.next for one in self._reading):
            assert time.monotonic() < deadline_s, "not everything was received"
            self._turn(0.1)

    def _turn(self, timeout_s: float) -> None:
        for fd, _ in self._poll.poll(max(0.0, timeout_s)):
            self._by_fd[fd].receive(self.delivered)

    def _push(self, pusher: socket.socket) -> None:
        message = b"%d " % self.next
        message += b"x" * (MESSAGE_BYTES - len(message))
        self.delivered.messages[self.next] = message
        self.delivered.pushed_at_s[self.next] = time.perf_counter()
        self.next += 1
        pusher.sendall(push("app", message + b"\n"))
        with contextlib.suppress(BlockingIOError):
            pusher.recv(1 << 16, socket.MSG_DONTWAIT)

    def close(self) -> None:
        self._poll.close()


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(600)
def test_followers_that_do_not_read_delay_nobody(tmp_path: Path, descriptors: int) -> None:
    if descriptors < FOLLOWERS + _SPARE_FILES:
        pytest.skip(f"this process may open {descriptors} files only")
    settings = {"max_connections": FOLLOWERS + 100, "max_connections_per_address": 0}
    with ExitStack() as stack:
        daemon = stack.enter_context(running(tmp_path, **settings))
        client = stack.enter_context(Client(daemon.address))
        client.push("app", [b"first"])

        def follow(buffer_bytes: int = 0) -> FollowingSocket:
            one = FollowingSocket(daemon.address, 1, buffer_bytes)
            stack.callback(one.socket.close)
            return one

        stalled = [follow(STALLED_BUFFER_BYTES) for _ in range(STALLED)]
        slow = follow(STALLED_BUFFER_BYTES)
        reading = [follow() for _ in range(FOLLOWERS - STALLED - 1)]
        wait_until(lambda: client.stats("app")["followers"] == str(FOLLOWERS))
        host, _, port = daemon.address.rpartition(":")
        pusher = stack.enter_context(socket.create_connection((host, int(port)), HANG_S))
        load = Load(daemon, reading, slow)
        stack.callback(load.close)
        load.run(pusher, 1.0)  # what is allocated once
        load.delivered.delays_s = array("d")
        before_bytes, before_s = daemon.rss_bytes(), daemon.cpu_s()
        load.run(pusher, LOAD_S)
        used_s = daemon.cpu_s() - before_s
        grown_bytes = max(load.most_rss_bytes, daemon.rss_bytes()) - before_bytes
        delays_s = load.delivered.delays_s
        percentiles = statistics.quantiles(delays_s, n=100)
        print(
            f"{FOLLOWERS} followers, {STALLED} stalled, {LOAD_S:.0f} s:"
            f" {len(delays_s)} deliveries, p50 {percentiles[49] * 1000:.2f} ms,"
            f" p99 {percentiles[98] * 1000:.2f} ms, longest {max(delays_s) * 1000:.1f} ms;"
            f" memory grew by {grown_bytes / 1e6:.2f} MB of {before_bytes / 1e6:.0f} MB;"
            f" {used_s / LOAD_S:.0%} of a core; the slow one is at {slow.next} of {load.next}"
        )
        assert grown_bytes < MAX_GROWTH_BYTES
        assert percentiles[98] < MAX_P99_S
        assert slow.next < load.next
        assert int(client.stats("app")["followers"]) == FOLLOWERS
        for one in (*stalled[:3], slow):  # they lose nothing either
            wait_until(lambda one=one: _has_all(one, load), timeout_s=_DEADLINE_S)  # type: ignore[misc]


def _has_all(one: FollowingSocket, load: Load) -> bool:
    while one.receive(load.slow_delivered):
        pass
    return one.next == load.next


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(600)
def test_idle_followers_use_no_processor_time(tmp_path: Path, descriptors: int) -> None:
    """Their heartbeats and the check of their timeouts included."""
    if descriptors < IDLE + _SPARE_FILES:
        pytest.skip(f"this process may open {descriptors} files only")
    settings = {"max_connections": IDLE + 100, "max_connections_per_address": 0}
    with ExitStack() as stack:
        daemon = stack.enter_context(running(tmp_path, **settings))
        client = stack.enter_context(Client(daemon.address))
        client.push("app", [b"first"])
        for _ in range(IDLE):
            stack.callback(FollowingSocket(daemon.address, 1).socket.close)
        wait_until(lambda: client.stats("app")["followers"] == str(IDLE))
        before_s = daemon.cpu_s()
        client.read("app", "next", 1, wait_ms=IDLE_MS)
        used = (daemon.cpu_s() - before_s) / (IDLE_MS / 1000)
        rss_bytes = daemon.rss_bytes()
        print(f"{IDLE} idle followers: {used:.2%} of a core, {rss_bytes / 1e6:.0f} MB in all")
        assert used < MAX_IDLE_CORE
