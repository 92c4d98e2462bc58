"""Measures how long other connections wait: PING and PUSH over TCP, and a GET over HTTP, in a loop.

Runs as a process of its own, so that the process that sends the load does not slow it down. For
each line on standard input it prints the longest delay since the last line, as JSON: the seconds,
and the request that waited. Time during which the kernel kept the daemon's threads or this process
waiting for a processor does not count.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from pathlib import Path

_PUSH = b"PUSH probe 101\r\n" + b"x" * 100 + b"\n"
_GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
_LIMIT_S = 60.0  # a delay that is longer than this ends the probe
_NOTABLE_S = 0.02  # queueing is looked at only for delays that may matter
_FRESH_S = 0.01


def queued_s(pid: int) -> float:
    """For how long threads of these two processes have waited for a processor so far."""
    total_ns = 0
    for path in (*Path(f"/proc/{pid}/task").glob("*/schedstat"), Path("/proc/self/schedstat")):
        try:
            total_ns += int(path.read_text().split()[1])
        except (OSError, IndexError):
            continue
    return total_ns / 1e9


class Probe:
    def __init__(self, pid: int, tcp: str, http: str) -> None:
        self._pid = pid
        tcp_socket, http_socket = _connect(tcp), _connect(http)
        self._requests = (
            ("PING", tcp_socket, b"PING\r\n"),
            ("PUSH", tcp_socket, _PUSH),
            ("GET /healthz", http_socket, _GET),
        )
        self._queued_s, self._queued_at_s = 0.0, 0.0
        self.reset()

    def reset(self) -> None:
        self.longest_s, self.longest_request = 0.0, ""

    def look(self) -> None:
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


def main(pid: int, tcp: str, http: str) -> None:
    probe = Probe(pid, tcp, http)
    for _ in range(10):
        probe.look()
    probe.reset()
    print(json.dumps([0.0, ""]), flush=True)  # ready
    while True:
        if select.select([sys.stdin], [], [], 0)[0]:
            if not sys.stdin.readline():
                return
            probe.look()
            print(json.dumps([probe.longest_s, probe.longest_request]), flush=True)
            probe.reset()
        probe.look()
        time.sleep(0.001)  # leave the processor to what is measured


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
