"""The logging handler through cut, silent and half-closed connections, and through killed daemons.

Every record arrives once and in order, or is counted, in its place: where records are missing in
the topic, a report says how many, and the numbers add up to all that was logged.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from logd import LogdHandler
from logd.client import delivery
from logd.client.backoff import Backoff
from tests.support.daemon import HANG_S, Daemon, messages, running

FAULTS = 100  # in each of two runs
KILL_EVERY = 10
TIMEOUT_S = 0.3  # after so long a silence the handler's writer connects again
KINDS = ("reset", "close", "deaf", "mute", "half-close there", "half-close here", "refuse")


class Proxy:
    """Stands before a daemon. Each connection suffers one fault, after some bytes of one side."""

    def __init__(self, seed: int) -> None:
        self.target = ("", 0)
        self.moved = threading.Event()  # something has got through, or was stopped
        self.faults: Counter[str] = Counter()
        self.is_healed = False
        self._random = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def heal(self) -> None:
        """No more faults; what hangs is ended."""
        self.is_healed = True
        for pair in self._pairs:
            close(*pair)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.heal()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                kind = "none" if self.is_healed else self._random.choice(KINDS)
                size = self._random.choice([0, 300, 20_000, 60_000, 100_000])
                self._connect(near, kind, size)

    def _connect(self, near: socket.socket, kind: str, size: int) -> None:
        if kind == "refuse":
            self._count(kind)
            near.close()
            return
        try:
            far = socket.create_connection(self.target, HANG_S)
        except OSError:
            near.close()  # the daemon is being killed; that is counted where it is done
            return
        self._pairs.append((near, far))
        backward = kind in ("mute", "half-close here")
        for source, sink, here in ((near, far, not backward), (far, near, backward)):
            plan = (kind, size // 200 if backward else size) if here else ("none", 0)
            threading.Thread(target=self._carry, args=(source, sink, *plan), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, kind: str, left: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if kind != "none" and len(data) >= left:
                    sink.sendall(data[:left])
                    self._count(kind)
                    self._break(kind, source, sink)
                    return
                left -= len(data)
                sink.sendall(data)
                self.moved.set()
            sink.shutdown(socket.SHUT_WR)

    def _break(self, kind: str, source: socket.socket, sink: socket.socket) -> None:
        """What is deaf or mute stays open, and nobody reads from it."""
        if kind == "reset":
            for end in (source, sink):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if kind in ("reset", "close"):
            close(source, sink)
        elif kind.startswith("half-close"):
            sink.shutdown(socket.SHUT_WR)

    def _count(self, kind: str) -> None:
        if not self.is_healed:
            self.faults[kind] += 1
        self.moved.set()


def close(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


@pytest.fixture
def proxy(request: pytest.FixtureRequest) -> Iterator[Proxy]:
    made = Proxy(seed=request.param)
    yield made
    made.close()


def aim(proxy: Proxy, daemon: Daemon) -> None:
    host, _, port = daemon.address.rpartition(":")
    proxy.target = (host, int(port))


def endure(daemon: Daemon, proxy: Proxy, log: logging.Logger, seed: int) -> int:
    """Log in bursts until enough has gone wrong, in every way there is; how many records."""
    dice, written, killed = random.Random(seed), 0, 0
    while proxy.faults.total() + killed < FAULTS or len(proxy.faults) < len(KINDS):
        for _ in range(dice.choice([1, 10, 100, 400])):
            log.info("x" * dice.randrange(300), extra={"number": written})
            written += 1
        proxy.moved.wait(TIMEOUT_S)
        proxy.moved.clear()
        if proxy.faults.total() // KILL_EVERY > killed:
            killed += 1
            daemon.kill()
            aim(proxy, daemon.start())
    return written


def missing_where_reported(data: bytes) -> int:
    """Where the numbers end, if each is there once and in order or is counted in its place."""
    number = 0
    for message in messages(data):
        record = json.loads(message)
        if record["logger"] == "logd.handler":
            number += record["dropped"]
        else:
            assert record["number"] == number
            number += 1
    return number


@pytest.mark.slow
@pytest.mark.parametrize(("proxy", "spool"), [(1, False), (2, True)], indirect=["proxy"])
def test_each_record_arrives_once_and_in_order_or_is_counted(
    proxy: Proxy, spool: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "Backoff", partial(Backoff, 0.01, 0.1))  # many faults in a minute
    log = logging.Logger("shop")
    with running(tmp_path) as daemon:
        aim(proxy, daemon)
        handler = LogdHandler(
            proxy.address, "app", queue_bytes=1 << 17, timeout_s=TIMEOUT_S, close_s=HANG_S,
            spool=tmp_path / "spool" if spool else None,
        )  # fmt: skip
        log.addHandler(handler)
        written = endure(daemon, proxy, log, seed=11)
        proxy.heal()
        handler.close()
        data = daemon.stored("app")
    print(f"{written} records, {handler.dropped} dropped; {dict(proxy.faults)}")
    assert set(proxy.faults) == set(KINDS)
    assert (handler.emitted, handler.failed, handler.errors) == (written, 0, 0)
    assert missing_where_reported(data) == written
    assert (handler.dropped > 0) is not spool
