"""What a service manager does to a daemon, without one: a socket that hears, and variables."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self

from tests.support.daemon import HANG_S, ROOT, Daemon

Told = dict[str, str]


class Manager:
    """A real datagram socket. `next` waits for what is told next."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._socket.settimeout(HANG_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def next(self, timeout_s: float = HANG_S) -> Told:
        self._socket.settimeout(timeout_s)
        lines = self._socket.recv(65536).decode().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def until(self, name: str) -> Told:
        """Wait for a datagram with this in it."""
        while name not in (told := self.next()):
            pass
        return told

    def is_silent(self, for_s: float) -> bool:
        """Does nothing come for so long, once what is on its way has been taken?"""
        try:
            while True:
                self.next(0.001)
        except TimeoutError:
            pass
        try:
            self.next(for_s)
        except TimeoutError:
            return True
        return False


class Managed(Daemon):
    """A daemon with what a manager puts into its environment."""

    def __init__(self, data_dir: Path, variables: dict[str, str], *flags: str) -> None:
        super().__init__(data_dir, flags)
        assignments = [f"{name}={value}" for name, value in variables.items()]
        self.command = ["/usr/bin/env", *assignments, *self.command]


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=HANG_S,
        check=False,
    )  # fmt: skip


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("LOGD_")}


PYTHON = sys.executable
