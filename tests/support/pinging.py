"""What a client notices of the work that a daemon does for others: how long PING takes meanwhile,
and how much memory the daemon takes.

Its longest wait shows how long the event loop did nothing else, whether the work was on the loop or
on a thread that kept the interpreter lock. Time in which the kernel had no processor for one of the
threads does not count: on a busy machine that is not the daemon's doing.
"""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Self

from tests.support.daemon import HANG_S, Daemon


class Pinging:
    """PING on a connection of its own, one after the other, for as long as the context lasts."""

    def __init__(self, daemon: Daemon) -> None:
        host, _, port = daemon.address.rpartition(":")
        self._connection = socket.create_connection((host, int(port)), HANG_S)
        self._daemon, self._is_over = daemon, False
        self.longest_s, self.grown_bytes = 0.0, 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        # The highest of the process becomes what it has now.
        Path(f"/proc/{self._daemon.pid}/clear_refs").write_text("5")
        self._before_bytes = self._daemon.rss_bytes()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join(HANG_S)
        self._connection.close()
        self.grown_bytes = highest_rss_bytes(self._daemon) - self._before_bytes

    def _run(self) -> None:
        while not self._is_over:
            queued_s, begun_s = self._queued_s(), time.monotonic()
            self._connection.sendall(b"PING\r\n")
            assert self._connection.recv(10) == b"OK\r\n"
            took_s = time.monotonic() - begun_s
            self.longest_s = max(self.longest_s, took_s - (self._queued_s() - queued_s))

    def _queued_s(self) -> float:
        """How long the threads of the daemon, and this one, have waited for a processor."""
        files = [*Path(f"/proc/{self._daemon.pid}/task").glob("*/schedstat")]
        files.append(Path("/proc/thread-self/schedstat"))
        return sum(int(file.read_text().split()[1]) for file in files) / 1e9


def highest_rss_bytes(daemon: Daemon) -> int:
    for line in Path(f"/proc/{daemon.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not say")
