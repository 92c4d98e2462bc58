"""Sockets that the service manager has bound already: LISTEN_FDS, as systemd passes them.

By their names (`tcp`, `http`, `syslog`) where the manager gives some, else in this order. The
variables are taken out of the environment, so that no child believes they are its own. Imports
nothing of logd but its errors.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass

from logd.errors import BadRequest

DOORS = ("tcp", "http", "syslog")
_FIRST_FD = 3


@dataclass(frozen=True, slots=True)
class Inherited:
    """The listening socket of each door, where there is one."""

    tcp: socket.socket | None = None
    http: socket.socket | None = None
    syslog: socket.socket | None = None


def take(environ: MutableMapping[str, str]) -> Inherited:
    """What this process was given; nothing where it was meant for another."""
    pid = environ.pop("LISTEN_PID", "")
    count, names = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_FDNAMES", "")
    if pid != str(os.getpid()) or not count.isascii() or not count.isdigit():
        return Inherited()
    fds = range(_FIRST_FD, _FIRST_FD + int(count))
    doors = _doors(names.split(":") if names else [], len(fds))
    return Inherited(**{door: _listening(fd, door) for door, fd in zip(doors, fds, strict=True)})


def _doors(names: list[str], count: int) -> tuple[str, ...]:
    """A name that systemd made up, after the unit, says nothing: then the order counts."""
    if count > len(DOORS):
        raise BadRequest(f"{count} sockets were passed; there are {len(DOORS)} to take")
    if len(names) != count or not all(name in DOORS for name in names):
        return DOORS[:count]
    if len(set(names)) != count:
        raise BadRequest(f"two sockets are called {names[0]}; give each its FileDescriptorName")
    return tuple(names)


def _listening(fd: int, door: str) -> socket.socket:
    try:
        os.set_inheritable(fd, False)
        passed = socket.socket(fileno=fd)
    except OSError as error:
        raise BadRequest(f"descriptor {fd} for {door} is no socket: {error.strerror}") from None
    if passed.family not in (socket.AF_INET, socket.AF_INET6) or passed.type != socket.SOCK_STREAM:
        raise BadRequest(f"the socket for {door} is not TCP; use ListenStream=<host>:<port>")
    if not passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise BadRequest(f"the socket for {door} does not listen; use Accept=no")
    passed.setblocking(False)
    return passed


def bound(listening: socket.socket) -> str:
    """Its address, as settings have it."""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
