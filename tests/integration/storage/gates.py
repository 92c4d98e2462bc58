"""Delete hooks that do as a test tells them: each says that it runs, and waits for its exit code.

Everything goes through named pipes, one for all that start and one to each: what a test waits for
is a line, never a time.
"""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import NamedTuple, Self

from tests.support.daemon import HANG_S


class Run(NamedTuple):
    """A hook that is running: its process, and which partition it was given."""

    pid: int
    first: int
    path: str


def script(path: Path, *lines: str) -> Path:
    """An executable shell script."""
    path.write_text("#!/bin/sh\n" + "\n".join(lines) + "\n")
    path.chmod(0o755)
    return path


class Gate:
    """`started` waits for a hook to run, `let_go` ends one with an exit code."""

    def __init__(self, directory: Path, name: str = "gate") -> None:
        self._directory, self._name = directory, name
        os.mkfifo(directory / f"{name} started")
        self._started = os.open(directory / f"{name} started", os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""
        self._waiting: dict[int, int] = {}  # the pipe to each, by its process
        self.hook = script(
            directory / f"{name} hook",
            f"mkfifo '{directory}/{name} '$$",
            f"echo \"$$ $LOGD_FIRST $1\" > '{directory}/{name} started'",
            f"read code < '{directory}/{name} '$$",
            'exit "$code"',
        )

    def started(self) -> Run:
        while b"\n" not in self._rest:
            if not select.select([self._started], [], [], HANG_S)[0]:
                raise AssertionError("no hook was started")
            self._rest += os.read(self._started, 65536)
        line, _, self._rest = self._rest.partition(b"\n")
        pid, first, path = line.decode().split(" ", 2)
        pipe = self._directory / f"{self._name} {pid}"
        self._waiting[int(pid)] = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        return Run(int(pid), int(first), path)

    def is_quiet(self) -> bool:
        """Has no other hook been started so far?"""
        return not self._rest and not select.select([self._started], [], [], 0)[0]

    def let_go(self, run: Run, code: int = 0) -> None:
        os.write(self._waiting[run.pid], b"%d\n" % code)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """No hook outlives its test, not even one whose daemon was killed."""
        while not self.is_quiet():
            self.started()
        for pid, pipe in self._waiting.items():
            os.write(pipe, b"1\n")
            while is_running(pid):
                os.sched_yield()
            os.close(pipe)
        os.close(self._started)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter: gone since it was opened
        return False
    return state not in "ZX"
