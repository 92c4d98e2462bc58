"""What the service manager hears: ready, reloading, stopping, alive, and what it should show.

Datagrams of `NAME=value` lines to the socket that NOTIFY_SOCKET names, as systemd reads them; where
there is none, nothing is done. Always: telling never waits and never fails; a manager that has gone
away is no reason to end. Signs of life come from the loop itself, so that a hung loop is noticed.
Imports nothing of logd.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_EXTEND_EVERY_S = 5.0
_EXTEND_BY_S = 30.0
_STATUS_EVERY_S = 10.0
_MARGIN_S = 5.0
_SIGNS = 3  # of life within the time in which one is due
_GOT_ON_BYTES = 4096  # read since the last look; the look itself reads a hundred


class Notifier:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]  # an abstract name
        self.watchdog_s = _watchdog_s(environ)
        self.extend_every_s = _EXTEND_EVERY_S

    def tell(self, **values: object) -> None:
        """One datagram: `tell(READY=1, STATUS="serving")`."""
        if not self._address:
            return
        lines = [f"{name}={_one_line(value)}\n" for name, value in values.items()]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
                out.setblocking(False)
                out.sendto("".join(lines).encode("utf-8", "replace"), self._address)
        except OSError:
            pass  # its queue is full, or it has gone; the next sign may get there

    def stopping(self, within_s: float) -> None:
        """The manager's own limit for a stop may be shorter than the daemon's: ask for more."""
        usec = int((within_s + _MARGIN_S) * 1e6)
        self.tell(STOPPING=1, STATUS="stopping", EXTEND_TIMEOUT_USEC=usec)

    @contextmanager
    def reloading(self, status: Callable[[], str]) -> Iterator[None]:
        """Around a reload: the manager waits for its end, however that comes out."""
        self.tell(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000, STATUS="reloading")
        try:
            yield
        finally:
            self.tell(READY=1, STATUS=status())

    async def stay_alive(self, status: Callable[[], str]) -> None:
        """Give signs of life for as long as the loop turns. A task, to be cancelled at the end."""
        while True:
            self.tell(WATCHDOG=1, STATUS=status())
            await asyncio.sleep(self.watchdog_s / _SIGNS if self.watchdog_s else _STATUS_EVERY_S)

    @contextmanager
    def starting(self, progress: Callable[[], str]) -> Iterator[None]:
        """Around work that blocks the loop: ask for more time for as long as it gets on.

        It gets on while the process reads: a recovery is reading. One that hangs in a disk asks for
        nothing more, and the manager's own limit ends it.
        """
        if not self._address:
            yield
            return
        ended = threading.Event()

        def extend() -> None:
            read_bytes = _read_bytes()
            while not ended.wait(self.extend_every_s):
                before, read_bytes = read_bytes, _read_bytes()
                if read_bytes - before > _GOT_ON_BYTES:
                    self.tell(EXTEND_TIMEOUT_USEC=int(_EXTEND_BY_S * 1e6), STATUS=progress())

        self.tell(STATUS=progress())
        thread = threading.Thread(target=extend, name="logd-starting", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _watchdog_s(environ: Mapping[str, str]) -> float:
    """In which time a sign of life is due; 0 where nobody waits for one, or for another's."""
    usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not usec.isascii() or not usec.isdigit() or pid not in ("", str(os.getpid())):
        return 0.0
    return int(usec) / 1e6


def _one_line(value: object) -> str:
    return str(value).replace("\n", " ")


def _read_bytes() -> int:
    """What all reads of this process brought so far; grows with any work on files."""
    try:
        return int(Path("/proc/self/io").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0  # not known: then nothing is asked for
