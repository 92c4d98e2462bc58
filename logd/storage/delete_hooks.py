"""Delete hooks: a program that runs before a partition is deleted.

It runs without a shell, with the path of the partition as its last argument, in a minimal
environment and its own process group. The partition is deleted only if it exits with 0. A hook that
exceeds its time limit is terminated, then killed together with all processes it started. Its output
goes to the daemon's log, up to a limit. `run_hook` blocks and runs on its own thread.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

_GRACE_S = 2.0
_MAX_LOGGED_LINES = 100
_MAX_LINE_BYTES = 1024
_READS = 16  # of 64 KB, before the time limit is checked again
_FIRST_PAUSE_S, _MAX_PAUSE_S = 1.0, 300.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
log = logging.getLogger("logd")


@dataclass(frozen=True, slots=True)
class Hook:
    """One run: the command, the partition, and the environment variables about it."""

    command: tuple[str, ...]
    path: Path
    variables: dict[str, str]
    timeout_s: float

    @property
    def name(self) -> str:
        return f"delete hook of topic {self.variables['LOGD_TOPIC']}, {self.path.name}"


def retry_pause_s(failures: int) -> float:
    """How long to wait before the next attempt; it grows with each failure."""
    return min(_MAX_PAUSE_S, _FIRST_PAUSE_S * float(1 << min(failures - 1, 20)))


class RunningHooks:
    """The running hooks, so that a shutdown can kill them."""

    def __init__(self) -> None:
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._stopping = False
        self._lock = threading.Lock()

    def started(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._processes.add(process)
            if self._stopping:
                _signal(process, signal.SIGKILL)

    def ended(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._processes.discard(process)

    def kill(self) -> None:
        with self._lock:
            self._stopping = True
            for process in self._processes:
                _signal(process, signal.SIGKILL)


def run_hook(hook: Hook, running: RunningHooks) -> bool:
    """Run it. True if it exited with 0: the partition may be deleted."""
    environment = {"PATH": _PATH, "LANG": "C.UTF-8", **hook.variables}
    try:
        process = subprocess.Popen(
            [*hook.command, str(hook.path.absolute())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        log.error("%s: cannot start %s: %s", hook.name, hook.command[0], reason)
        return False
    running.started(process)
    try:
        return _wait_and_log(hook, process)
    finally:
        running.ended(process)
        _signal(process, signal.SIGKILL)  # the processes it started
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _wait_and_log(hook: Hook, process: subprocess.Popen[bytes]) -> bool:
    """Log its output until it exits; terminate it at the time limit."""
    output = _Output(hook.name, process)
    deadline_s = time.monotonic() + hook.timeout_s
    while process.poll() is None and time.monotonic() < deadline_s:
        output.take(wait_s=0.05)
    output.take(wait_s=0)
    if process.poll() is None:
        log.error("%s: still running after %s s; terminating it", hook.name, hook.timeout_s)
        _signal(process, signal.SIGTERM)
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            pass  # the caller kills it
        return False
    output.finish()
    if process.returncode:
        log.error("%s: exit %d; the partition is kept", hook.name, process.returncode)
    return process.returncode == 0


class _Output:
    """Writes the output of a hook to the daemon's log, up to a limit; drops the rest."""

    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self._name = name
        self._fd = process.stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._open = True
        self._rest = b""
        self._lines = 0

    def take(self, wait_s: float) -> None:
        if not self._open:
            time.sleep(wait_s)
            return
        for _ in range(_READS):  # bounded, so that the time limit is checked
            if not self._poll.poll(wait_s * 1000):
                return
            data = os.read(self._fd, 65536)
            self._open = bool(data)
            if not data:
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._log(line)
            self._rest = self._rest[:_MAX_LINE_BYTES]
            wait_s = 0

    def finish(self) -> None:
        if self._rest:
            self._log(self._rest)
        if self._lines > _MAX_LOGGED_LINES:
            log.info("%s: ... and %d more lines", self._name, self._lines - _MAX_LOGGED_LINES)

    def _log(self, line: bytes) -> None:
        self._lines += 1
        if self._lines <= _MAX_LOGGED_LINES:
            log.info("%s: %s", self._name, ascii(line[:_MAX_LINE_BYTES].decode("utf-8", "replace")))


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # all of them have exited, or the rest belongs to another user
