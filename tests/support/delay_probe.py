"""Measures how long a daemon makes other connections wait, and how much memory it takes meanwhile.

    with DelayProbe(daemon) as probe:
        ...
    assert probe.longest_s < 0.1

The probe sends requests in a loop from a process of its own, so that the process that sends the
load does not slow it down. For each line on its standard input it prints the longest delay since
the last line, as JSON: the seconds, and the request that waited. Time during which the kernel kept
the daemon's threads or the probe waiting for a processor does not count.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from tests.support.daemon import Daemon

_TCP = {"PING": b"PING\r\n", "PUSH": b"PUSH probe 101\r\n" + b"x" * 100 + b"\n"}
_HTTP = {"GET": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"}
_LIMIT_S = 60.0  # a delay that is longer than this ends the probe
_NOTABLE_S = 0.02  # queueing is looked at only for delays that may matter
_FRESH_S = 0.01


class DelayProbe:
    def __init__(self, daemon: Daemon, *requests: str) -> None:
        self._daemon = daemon
        self.longest_s, self.longest_request, self.grown_bytes = 0.0, "", 0
        words = [str(daemon.pid), daemon.address, daemon.http, *(requests or (*_TCP, *_HTTP))]
        self._process = subprocess.Popen(
            [sys.executable, __file__, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()
        self.base_bytes = daemon.rss_bytes()  # growth is counted from here

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *error: object) -> None:
        with self._process:  # closes the pipes, which ends the probe
            if error[0] is None:
                self.end()

    def begin(self) -> None:
        Path(f"/proc/{self._daemon.pid}/clear_refs").write_text("5")  # VmHWM starts again at VmRSS
        self._ask()

    def end(self) -> None:
        """Set `longest_s`, `longest_request` and `grown_bytes`, all since `begin`."""
        self.longest_s, self.longest_request = self._ask()
        self.grown_bytes = self._highest_rss_bytes() - self.base_bytes

    def _ask(self) -> tuple[float, str]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> tuple[float, str]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the probe ended with {self._process.wait(_LIMIT_S)}"
        delay_s, request = json.loads(line)
        return delay_s, request

    def _highest_rss_bytes(self) -> int:
        lines = Path(f"/proc/{self._daemon.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


# -- inside the probe -----------------------------------------------------------------------------


def queued_s(pid: int) -> float:
    """How long threads of the daemon and of this process have waited for a processor so far."""
    total_ns = 0
    for path in (*Path(f"/proc/{pid}/task").glob("*/schedstat"), Path("/proc/self/schedstat")):
        try:
            total_ns += int(path.read_text().split()[1])
        except (OSError, IndexError):
            continue
    return total_ns / 1e9


class _Requests:
    def __init__(self, pid: int, tcp: str, http: str, names: list[str]) -> None:
        self._pid = pid
        tcp_socket = _connect(tcp)
        http_socket = _connect(http) if "GET" in names else tcp_socket
        self._requests = [(name, tcp_socket, _TCP[name]) for name in names if name in _TCP]
        self._requests += [(name, http_socket, _HTTP[name]) for name in names if name in _HTTP]
        self._queued_s, self._queued_at_s = 0.0, 0.0
        self.reset()

    def reset(self) -> None:
        self.longest_s, self.longest_request = 0.0, ""

    def send_all(self) -> None:
        for name, connection, request in self._requests:
            start_s = time.monotonic()
            if start_s - self._queued_at_s > _FRESH_S:
                self._queued_s, self._queued_at_s = queued_s(self._pid), time.monotonic()
                start_s = self._queued_at_s
            connection.sendall(request)
            if not connection.recv(1 << 16):
                raise SystemExit(f"the daemon closed the connection of the probe's {name}")
            delay_s = time.monotonic() - start_s
            if delay_s > _NOTABLE_S:
                delay_s -= queued_s(self._pid) - self._queued_s
                self._queued_at_s = 0.0
            if delay_s > self.longest_s:
                self.longest_s, self.longest_request = delay_s, name


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), _LIMIT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def main(pid: int, tcp: str, http: str, names: list[str]) -> None:
    requests = _Requests(pid, tcp, http, names)
    for _ in range(10):
        requests.send_all()
    requests.reset()
    print(json.dumps([0.0, ""]), flush=True)  # ready
    while True:
        if select.select([sys.stdin], [], [], 0)[0]:
            if not sys.stdin.readline():
                return
            requests.send_all()
            print(json.dumps([requests.longest_s, requests.longest_request]), flush=True)
            requests.reset()
        requests.send_all()
        time.sleep(0.001)  # leave the processor to what is measured


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
