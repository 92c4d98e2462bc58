"""The daemon that everything is thrown at, and how it has to be afterwards.

It is small, so that whatever it keeps for good is there after a short warm-up: few topics, few
cursors, small files that are soon deleted. What it holds in memory may then not grow any more.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.fuzz.memory_directory import memory_directory
from tests.integration.fuzz.model import MAX_BATCH_BYTES, MAX_CURSORS, MAX_TOPICS
from tests.support.daemon import HANG_S, Daemon, running, wait_until

GROWTH_BYTES = 10 << 20
LATE_S = 1.0


class Late(AssertionError):
    """No answer within a second."""


class Patience:
    """A second from the last sign of life, not counting what the machine kept the daemon waiting.

    The kernel tells how long the daemon's thread stood in the queue for a processor: on a busy
    machine that is not its own doing.
    """

    def __init__(self, pid: int) -> None:
        self._files = [Path(f"/proc/{pid}/schedstat"), Path("/proc/self/schedstat")]
        self.longest_s = 0.0
        self.renew()

    def renew(self) -> None:
        self._since_s = time.monotonic()
        self._queued_s: float | None = None

    def waited(self) -> None:
        """Nothing has come for a moment: is that too long?"""
        now_s = time.monotonic() - self._since_s
        if self._queued_s is None:
            self._queued_s = self._queued()
            return
        waited_s = now_s - (self._queued() - self._queued_s)
        self.longest_s = max(self.longest_s, waited_s)
        if waited_s > LATE_S or now_s > HANG_S:
            raise Late(f"no answer for {waited_s:.1f} s")

    def _queued(self) -> float:
        try:
            return sum(int(file.read_text().split()[1]) for file in self._files) / 1e9
        except (OSError, IndexError):
            return 0.0


def dial(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), HANG_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class FuzzedDaemon:
    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.patience = Patience(daemon.pid)
        self._sockets = self.sockets()  # those it listens at, and its own
        self._rss_bytes = self.growth_bytes = 0

    def dial(self, *, http: bool = False) -> socket.socket:
        return dial(self.daemon.http if http else self.daemon.address)

    def sockets(self) -> int:
        """Its open sockets; its files come and go with the topics."""
        directory, count = f"/proc/{self.daemon.pid}/fd", 0
        for name in os.listdir(directory):
            try:
                count += os.readlink(f"{directory}/{name}").startswith("socket:")
            except FileNotFoundError:
                continue
        return count

    def is_warm(self) -> None:
        """From now on it must not grow."""
        self._rss_bytes = self._at_rest()

    def look(self) -> None:
        """Is it well? A dialogue on a connection of its own, and what it has said."""
        self.patience.renew()
        with self.dial() as connection:
            connection.settimeout(LATE_S / 20)
            connection.sendall(b"PING\r\nSTATS\r\nTAIL known 1\r\nCLOSE\r\n")
            got = b""
            while not got.endswith(b"OK\r\n") or len(got) < 100:
                try:
                    piece = connection.recv(1 << 16)
                except TimeoutError:
                    self.patience.waited()
                    continue
                assert piece, f"it closed after {got!r}"
                got += piece
        assert got.startswith(b"OK\r\nTEXT "), got[:100]
        assert b"\nfaulted_topics: 0\n" in got, got
        assert b"known good\n" in got, got
        self.growth_bytes = self.daemon.rss_bytes() - self._rss_bytes
        said = self.daemon.log
        assert "Traceback" not in said, said[-5000:]
        assert " ERROR" not in said, said[-5000:]

    def look_at_last(self) -> None:
        """At the end: nothing kept, nothing left open, and a clean stop."""
        self.look()
        self.growth_bytes = self._at_rest() - self._rss_bytes
        assert self.growth_bytes < GROWTH_BYTES, f"it has grown by {self.growth_bytes} bytes"
        assert self.daemon.stop() == 0, self.daemon.log
        assert "Traceback" not in self.daemon.log, self.daemon.log[-5000:]

    def told(self) -> str:
        grown = f"{self.growth_bytes / 1e6:.1f} MB grown" if self._rss_bytes else "not yet warm"
        return f", {grown}, longest wait {self.patience.longest_s:.2f} s"

    def _at_rest(self) -> int:
        """Its memory once all connections have ended: those that it closes linger a second."""
        wait_until(lambda: self.sockets() <= self._sockets)
        return self.daemon.rss_bytes()

    def stat(self, name: bytes, topic: bytes = b"") -> int:
        with self.dial() as connection:
            connection.sendall(b"STATS %s\r\nCLOSE\r\n" % topic if topic else b"STATS\r\nCLOSE\r\n")
            got = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        return int(got.partition(b"\n%s: " % name)[2].split(b"\n")[0])


@contextmanager
def fuzzed_daemon() -> Iterator[FuzzedDaemon]:
    flags = {
        "max_batch_bytes": MAX_BATCH_BYTES, "max_topics": MAX_TOPICS,
        "max_cursors": MAX_CURSORS, "partition_bytes": 256 << 10, "max_partitions": 3,
    }  # fmt: skip
    listeners = ("--http-host", "127.0.0.1:0")
    with memory_directory() as directory, running(directory, *listeners, **flags) as daemon:
        target = FuzzedDaemon(daemon)
        with target.dial() as connection:
            connection.sendall(b"PUSH known\r\nknown good\r\n")
            assert connection.recv(100) == b"OK 0 1\r\n"
        yield target
