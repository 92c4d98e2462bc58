"""A network of two: the daemon in a namespace of its own, and a cable to it that can be cut.

with Link() as link:
    daemon = make_daemon(data_dir, host=f"{link.there}:0")
    daemon.namespace = link.namespace
    ...
    link.cut()
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

_CLONE_NEWNET = 0x40000000


class Link:
    def __init__(self) -> None:
        number = os.getpid() % 60_000
        self._name = f"logd{number}"
        self.namespace = Path("/run/netns") / self._name
        net = f"10.203.{number // 250}"
        self.here = f"{net}.{number % 250 // 4 * 4 + 1}"
        self.there = f"{net}.{number % 250 // 4 * 4 + 2}"

    def __enter__(self) -> Self:
        near, far = f"{self._name}n", f"{self._name}f"
        try:
            _ip("netns", "add", self._name)
            _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", self._name)
            _ip("address", "add", f"{self.here}/30", "dev", near)
            _ip("link", "set", near, "up")
            for words in (
                ("address", "add", f"{self.there}/30", "dev", far),
                ("link", "set", far, "up"),
                ("link", "set", "lo", "up"),
            ):
                _ip("-n", self._name, *words)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for words in (("link", "delete", f"{self._name}n"), ("netns", "delete", self._name)):
            subprocess.run([_found(), *words], capture_output=True)

    def cut(self) -> None:
        """From now on nothing gets through, and neither side is told."""
        _ip("link", "set", f"{self._name}n", "down")

    def mend(self) -> None:
        _ip("link", "set", f"{self._name}n", "up")

    @contextmanager
    def far_side(self) -> Iterator[None]:
        """Sockets that this thread makes in here are the daemon's neighbours."""
        with open("/proc/thread-self/ns/net") as home:
            enter(self.namespace)
            try:
                yield
            finally:
                _setns(home.fileno())


def enter(namespace: Path) -> None:
    """Move the calling thread there."""
    with namespace.open() as file:
        _setns(file.fileno())


def _setns(fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _found() -> str:
    return shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or "ip"


def _ip(*words: str) -> None:
    subprocess.run([_found(), *words], check=True, capture_output=True, text=True)


def why_no_namespace() -> str:
    """Why there can be no such network here; empty if there can."""
    if shutil.which(_found()) is None:
        return "ip is not installed (Debian package iproute2)"
    try:
        with Link() as link, link.far_side():
            return ""
    except (subprocess.CalledProcessError, OSError) as error:
        return f"no network namespaces here: {getattr(error, 'stderr', '') or error}".strip()
