"""systemd: sockets that it has bound for the daemon (LISTEN_FDS), and notifications to it.

The sockets are known by name (`tcp`, `http`, `syslog`), otherwise by this order. Their variables
are removed from the environment, so that no child process uses them. Notifications are datagrams of
`NAME=value` lines to NOTIFY_SOCKET; without it nothing is done. Sending one never waits and never
fails. The watchdog notifications come from the event loop, so that a hung loop is noticed.
Imports nothing of logd except its errors.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path

from logd.errors import BadRequest

_LISTENERS = ("tcp", "http", "syslog")
_FIRST_FD = 3
_EXTEND_EVERY_S = 5.0
_EXTEND_BY_S = 30.0
_STATUS_EVERY_S = 10.0
_STOP_MARGIN_S = 5.0
_WATCHDOG_SIGNALS = 3  # per watchdog interval
_PROGRESS_BYTES = 4096  # read since the last check, which itself reads about a hundred


def take_sockets(environ: MutableMapping[str, str]) -> dict[str, socket.socket]:
    """The sockets passed to this process, by listener; none if they are for another process."""
    pid = environ.pop("LISTEN_PID", "")
    count, names = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_FDNAMES", "")
    if pid != str(os.getpid()) or not count.isascii() or not count.isdigit():
        return {}
    fds = range(_FIRST_FD, _FIRST_FD + int(count))
    listeners = _listeners(names.split(":") if names else [], len(fds))
    return {name: _listening(fd, name) for name, fd in zip(listeners, fds, strict=True)}


def _listeners(names: list[str], count: int) -> tuple[str, ...]:
    """By name; by order if systemd made the names up from the unit."""
    if count > len(_LISTENERS):
        raise BadRequest(f"{count} sockets were passed, but there are {len(_LISTENERS)} listeners")
    if len(names) != count or not all(name in _LISTENERS for name in names):
        return _LISTENERS[:count]
    if len(set(names)) != count:
        raise BadRequest(f"two sockets are called {names[0]}; give each its FileDescriptorName")
    return tuple(names)


def _listening(fd: int, name: str) -> socket.socket:
    try:
        os.set_inheritable(fd, False)
        passed = socket.socket(fileno=fd)
    except OSError as error:
        raise BadRequest(f"descriptor {fd} for {name} is not a socket: {error.strerror}") from None
    if passed.family not in (socket.AF_INET, socket.AF_INET6) or passed.type != socket.SOCK_STREAM:
        raise BadRequest(f"the socket for {name} is not TCP; use ListenStream=<host>:<port>")
    if not passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise BadRequest(f"the socket for {name} does not listen; use Accept=no")
    passed.setblocking(False)
    return passed


def bound_address(listening: socket.socket) -> str:
    """The address of a socket, as settings write it."""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Notifier:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]  # an abstract address
        self.watchdog_s = _watchdog_s(environ)
        self.extend_every_s = _EXTEND_EVERY_S

    def notify(self, **values: object) -> None:
        """Send one datagram: `notify(READY=1, STATUS="serving")`."""
        if not self._address:
            return
        lines = [f"{name}={value}".replace("\n", " ") + "\n" for name, value in values.items()]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
                out.setblocking(False)
                out.sendto("".join(lines).encode("utf-8", "replace"), self._address)
        except OSError:
            pass  # its queue is full, or it is not there; the next notification may arrive

    def stopping(self, within_s: float) -> None:
        """Also extends systemd's own limit for a stop, which may be shorter than the daemon's."""
        usec = int((within_s + _STOP_MARGIN_S) * 1e6)
        self.notify(STOPPING=1, STATUS="stopping", EXTEND_TIMEOUT_USEC=usec)

    @contextmanager
    def reloading(self, status: Callable[[], str]) -> Iterator[None]:
        """Around a reload: systemd waits for its end, successful or not."""
        self.notify(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000, STATUS="reloading")
        try:
            yield
        finally:
            self.notify(READY=1, STATUS=status())

    async def stay_alive(self, status: Callable[[], str]) -> None:
        """Notify the watchdog while the event loop runs, until this task is cancelled."""
        while True:
            self.notify(WATCHDOG=1, STATUS=status())
            every_s = self.watchdog_s / _WATCHDOG_SIGNALS if self.watchdog_s else _STATUS_EVERY_S
            await asyncio.sleep(every_s)

    @contextmanager
    def starting(self, progress: Callable[[], str]) -> Iterator[None]:
        """Around work that blocks the loop: extend systemd's limit while the process reads files,
        as a recovery does. A start that hangs in the disk is not extended, and is killed."""
        if not self._address:
            yield
            return
        ended = threading.Event()

        def extend() -> None:
            read_bytes = _read_bytes()
            while not ended.wait(self.extend_every_s):
                before, read_bytes = read_bytes, _read_bytes()
                if read_bytes - before > _PROGRESS_BYTES:
                    self.notify(EXTEND_TIMEOUT_USEC=int(_EXTEND_BY_S * 1e6), STATUS=progress())

        self.notify(STATUS=progress())
        thread = threading.Thread(target=extend, name="logd-starting", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _watchdog_s(environ: Mapping[str, str]) -> float:
    """The watchdog interval; 0 if there is none, or if it is for another process."""
    usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not usec.isascii() or not usec.isdigit() or pid not in ("", str(os.getpid())):
        return 0.0
    return int(usec) / 1e6


def _read_bytes() -> int:
    """The bytes that this process has read so far; 0 if that is unknown."""
    try:
        return int(Path("/proc/self/io").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
