"""A proxy in front of a daemon that cuts, resets, half-closes or stalls connections.

    with Proxy(daemon.address, random_faults(rng)) as proxy:
        client = Client(proxy.address)

Each connection takes the next fault of `plan`; without one it is sound. A fault strikes one
direction after so many bytes, wherever that is: in a command, a body or a reply. After a fault that
a connection survives, it takes another one for the same direction.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from logd.wire.addresses import parse_address
from tests.support.daemon import HANG_S
from tests.support.listener import Listener

CUT, RESET, HALF_CLOSE, REFUSE = "cut", "reset", "half-close", "refuse"
DELAY, STALL, SILENCE = "delay", "stall", "silence"  # nothing is forwarded: for a while, or ever
TO_DAEMON, TO_CLIENT = "to the daemon", "to the client"


class Fault(NamedTuple):
    kind: str
    direction: str
    after_bytes: int
    pause_s: float = 0.005

    @property
    def name(self) -> str:
        return f"{self.kind} {self.direction}"


def cuts(*after_bytes: int) -> Iterator[Fault]:
    """Cut the next connections, each after so many bytes from the daemon."""
    return iter([Fault(CUT, TO_CLIENT, count) for count in after_bytes])


def random_faults(rng: random.Random) -> Iterator[Fault]:
    while True:
        kind = rng.choice((CUT, RESET, HALF_CLOSE, STALL, DELAY))
        direction, most = rng.choice(((TO_DAEMON, 60_000), (TO_CLIENT, 2_000)))
        after_bytes = rng.randrange(1, rng.choice((400, most)))
        pause_s = rng.choice((0.01, 0.1, 2.0)) if kind == STALL else 0.005
        yield Fault(kind, direction, after_bytes, pause_s)


class Proxy(Listener):
    """`target` can be changed, and `cut()` ends all open connections."""

    def __init__(self, target: str, plan: Iterable[Fault] = ()) -> None:
        self.target, self.plan = target, iter(plan)
        self.faults: Counter[str] = Counter()
        self.carried_bytes = 0
        self._planning = threading.Lock()
        self._healed = threading.Event()
        self._changed = threading.Condition()
        super().__init__()

    def __exit__(self, *_: object) -> None:
        self.heal()
        super().__exit__()

    def heal(self) -> None:
        """Inject no more faults; stalled connections continue, silent ones end."""
        self._healed.set()

    def wait_for(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `is_so`, which is evaluated whenever bytes pass or a fault strikes."""
        with self._changed:
            return self._changed.wait_for(is_so, timeout_s)

    def wait_for_bytes(self, more: int, timeout_s: float) -> None:
        end = self.carried_bytes + more
        self.wait_for(lambda: self.carried_bytes >= end, timeout_s)

    def wait_for_change(self, timeout_s: float) -> None:
        """Wait until bytes have passed or a fault has struck."""
        with self._changed:
            self._changed.wait(timeout_s)

    def _next_fault(self, direction: str = "") -> Fault | None:
        """The next of the plan, or the next in this direction."""
        with self._planning:
            if self._healed.is_set():
                return None
            return next((f for f in self.plan if direction in f.direction), None)

    def _serve(self, connection: socket.socket) -> None:
        fault = self._next_fault()
        if fault and fault.kind == REFUSE:
            self._count(fault)
            return
        with socket.create_connection(parse_address(self.target), HANG_S) as daemon:
            daemon.settimeout(None)
            self._keep(daemon)
            words = (connection, daemon, TO_DAEMON, fault)
            upward = threading.Thread(target=self._forward, args=words)
            upward.start()
            self._forward(daemon, connection, TO_CLIENT, fault)
            upward.join()

    def _forward(
        self, source: socket.socket, sink: socket.socket, direction: str, fault: Fault | None
    ) -> None:
        if fault and fault.direction != direction:
            fault = None
        left = fault.after_bytes if fault else 0
        try:
            while data := source.recv(1 << 16):
                while fault and left < len(data) and not self._healed.is_set():
                    self._pass(sink, data[:left])
                    data = data[left:]
                    if not self._strike(fault, source, sink):
                        return
                    fault = self._next_fault(direction)
                    left = fault.after_bytes if fault else 0
                left -= len(data)
                self._pass(sink, data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            _end(source, sink)

    def _pass(self, sink: socket.socket, data: bytes) -> None:
        sink.sendall(data)
        with self._changed:
            self.carried_bytes += len(data)
            self._changed.notify_all()

    def _count(self, fault: Fault) -> None:
        with self._changed:
            self.faults[fault.name] += 1
            self._changed.notify_all()

    def _strike(self, fault: Fault, source: socket.socket, sink: socket.socket) -> bool:
        """Inject the fault; does this direction go on?"""
        self._count(fault)
        if fault.kind in (STALL, DELAY):
            self._healed.wait(fault.pause_s)
            return True
        if fault.kind == HALF_CLOSE:
            sink.shutdown(socket.SHUT_WR)
            while source.recv(1 << 16):
                pass
            return False
        if fault.kind == SILENCE:
            self._healed.wait()
        if fault.kind == RESET:
            for one in (source, sink):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        _end(source, sink)
        return False


def _end(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
