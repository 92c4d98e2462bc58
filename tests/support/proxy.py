"""A bad line to a daemon: cuts, resets, half-closes, stalls and delays, at random bytes.

Each connection gets a fault, and after one that it survives another: in one direction, after so
many bytes, wherever that is: in the middle of a command, a body or a reply. `heal` makes the line a
good one from then on.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, Self

CUT, RESET, HALF_CLOSE, STALL, DELAY = "cut", "reset", "half-close", "stall", "delay"
TO_DAEMON, TO_CLIENT = "to the daemon", "to the client"
_SPREAD = {TO_DAEMON: 60_000, TO_CLIENT: 2_000}  # bytes before a fault, at most


class Fault(NamedTuple):
    what: str
    direction: str
    after_bytes: int
    pause_s: float


class Proxy:
    """A line to the daemon at `far`, for everybody who connects to `address`."""

    def __init__(self, far: str, rng: random.Random) -> None:
        host, _, port = far.rpartition(":")
        self._far, self._rng = (host, int(port)), rng
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.faults: Counter[str] = Counter()
        self.carried_bytes = 0
        self._healed = threading.Event()
        self._changed = threading.Condition()
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in list(self._open):
            _shut(connection, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def heal(self) -> None:
        """No more faults; stalls end."""
        self._healed.set()

    def wait_for(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        """Until something is so; it is looked at whenever something passes here."""
        with self._changed:
            return self._changed.wait_for(is_so, timeout_s)

    def wait_for_bytes(self, more: int, timeout_s: float) -> None:
        """Until so many have passed; or for as long."""
        end = self.carried_bytes + more
        self.wait_for(lambda: self.carried_bytes >= end, timeout_s)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._connect, args=(near,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _draw(self, direction: str) -> Fault:
        return Fault(
            self._rng.choice((CUT, RESET, HALF_CLOSE, STALL, DELAY)),
            direction,
            self._rng.randrange(1, self._rng.choice((400, _SPREAD[direction]))),
            self._rng.choice((0.01, 0.1, 2.0)),
        )

    def _connect(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(self._far, 5)
        except OSError:
            near.close()  # nobody is there: as a refused connection, but for the time it takes
            return
        far.settimeout(None)
        self._open |= {near, far}
        fault = self._draw(self._rng.choice((TO_DAEMON, TO_CLIENT)))
        back = threading.Thread(target=self._pump, args=(far, near, TO_CLIENT, fault), daemon=True)
        back.start()
        self._pump(near, far, TO_DAEMON, fault)
        back.join()
        for connection in (near, far):
            self._open.discard(connection)
            connection.close()

    def _pump(
        self, source: socket.socket, sink: socket.socket, direction: str, fault: Fault
    ) -> None:
        left = fault.after_bytes
        try:
            while data := source.recv(1 << 16):
                while direction == fault.direction and left <= len(data):
                    if self._healed.is_set():
                        break
                    self._pass(sink, data[:left])
                    data = data[left:]
                    if not self._strike(fault, source, sink):
                        return
                    fault = self._draw(direction)
                    left = fault.after_bytes
                left -= len(data)
                self._pass(sink, data)
            _shut(sink, socket.SHUT_WR)
        except OSError:
            for connection in (source, sink):
                _shut(connection, socket.SHUT_RDWR)

    def _pass(self, sink: socket.socket, data: bytes) -> None:
        sink.sendall(data)
        with self._changed:
            self.carried_bytes += len(data)
            self._changed.notify_all()

    def _strike(self, fault: Fault, source: socket.socket, sink: socket.socket) -> bool:
        """Do it; does this direction go on?"""
        with self._changed:
            self.faults[f"{fault.what} {fault.direction}"] += 1
            self._changed.notify_all()
        if fault.what in (STALL, DELAY):
            self._healed.wait(fault.pause_s if fault.what == STALL else 0.005)
            return True
        if fault.what == HALF_CLOSE:
            _shut(sink, socket.SHUT_WR)
            while source.recv(1 << 16):
                pass
            return False
        if fault.what == RESET:
            for connection in (source, sink):
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        for connection in (source, sink):
            _shut(connection, socket.SHUT_RDWR)
        return False


def _shut(connection: socket.socket, how: int) -> None:
    try:
        connection.shutdown(how)
    except OSError:
        pass
