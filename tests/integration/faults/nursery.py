"""A process that has logd imported already and forks daemons: a start takes 20 ms, not 200.

    with Nursery() as nursery:
        process = nursery.fork(["--data-dir", "data"])

A child goes on as `python -m logd` would have, with its own standard error. With `held` it first
waits for `process.release()`, so that a tracer can be attached before its first system call. The
nursery reaps its children and tells their exit codes; when it is closed, or whoever made it dies,
it ends the ones that are left, each by its own id.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any, Self

from tests.support import network_links as links

ROOT = Path(__file__).parents[4]
_REQUEST_BYTES = 64 * 1024
_PR_SET_PTRACER = 0x59616D61
_ANYBODY = ctypes.c_ulong(-1)


class Process:
    """A forked daemon, with as much of `subprocess.Popen` as its keeper needs."""

    def __init__(self, pid: int, pidfd: int, stderr: int, status: int, gate: int) -> None:
        self.pid = pid
        self._pidfd = pidfd  # no other process can ever be meant by it
        self.stderr: IO[str] = open(stderr, encoding="utf-8", errors="backslashreplace")
        self.returncode: int | None = None
        self._status = status
        self._gate = gate

    def release(self) -> None:
        """Let it start; only for one that was forked `held`."""
        if self._gate >= 0:
            os.close(self._gate)
            self._gate = -1

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def poll(self) -> int | None:
        return self._code(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"daemon {self.pid}", timeout or 0)
        return code

    def _code(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout_s)[0]:
            self.returncode = int(os.read(self._status, 100) or b"-9")
            os.close(self._status)
            os.close(self._pidfd)
            self.release()
        return self.returncode


class Nursery:
    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LOGD_")}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.nursery", str(theirs.fileno())],
                cwd=ROOT,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the tests, which then close this
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.wait()

    def fork(
        self, flags: list[str], *, held: bool = False, namespace: Path | None = None
    ) -> Process:
        """A daemon with these flags; in this network namespace, if one is named."""
        stderr_read, stderr_write = os.pipe()
        status_read, status_write = os.pipe()
        gate_read, gate_write = os.pipe()
        request = json.dumps({"flags": flags, "namespace": str(namespace or "")}).encode()
        with self._lock:
            socket.send_fds(self._socket, [request], [stderr_write, status_write, gate_read])
            pid, (pidfd,), _, _ = socket.recv_fds(self._socket, 100, 1)
        for fd in (stderr_write, status_write, gate_read):
            os.close(fd)
        process = Process(int(pid), pidfd, stderr_read, status_read, gate_write)
        if not held:
            process.release()
        return process


# -- inside the nursery -------------------------------------------------------------------------


def main(fd: int) -> None:
    """Fork on request until whoever asks is gone."""
    _import_everything()
    children: dict[int, tuple[int, int]] = {}  # by pidfd: its id, and where its end is told
    with socket.socket(fileno=fd) as requests:
        while True:
            for ready in select.select([fd, *children], [], [])[0]:
                if ready != fd:
                    _reap(ready, children)
                elif not _fork_one(requests, children):
                    _end(children)
                    return


def _import_everything() -> None:
    """All that a daemon imports on its way, once: the rest comes with an address it cannot take."""
    import encodings.idna  # noqa: F401  a listening socket wants it

    import logd.__main__

    sys.argv = ["logd", "--host", "nowhere"]
    with contextlib.suppress(SystemExit):
        logd.__main__.main()


def _fork_one(requests: socket.socket, children: dict[int, tuple[int, int]]) -> bool:
    data, fds, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 3)
    if not data:
        return False
    request = json.loads(data)
    stderr, status, gate = fds
    pid = os.fork()
    if pid == 0:
        requests.close()
        for pidfd, (_, other_status) in children.items():
            os.close(pidfd)
            os.close(other_status)
        os.close(status)
        _become_daemon(request, stderr, gate)
    os.close(stderr)
    os.close(gate)
    pidfd = os.pidfd_open(pid)
    children[pidfd] = pid, status
    socket.send_fds(requests, [b"%d" % pid], [pidfd])
    return True


def _become_daemon(request: dict[str, Any], stderr: int, gate: int) -> None:
    os.dup2(stderr, 2)
    os.close(stderr)
    if request["namespace"]:
        links.enter(Path(request["namespace"]))
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANYBODY, 0, 0, 0)
    os.read(gate, 1)  # returns when the other end is closed
    os.close(gate)
    sys.argv = ["logd", *request["flags"]]
    from logd.__main__ import main as logd_main

    logd_main()
    sys.exit(0)


def _reap(pidfd: int, children: dict[int, tuple[int, int]]) -> None:
    pid, status = children.pop(pidfd)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(pidfd)
    with contextlib.suppress(BrokenPipeError):
        os.write(status, b"%d" % code)
    os.close(status)


def _end(children: dict[int, tuple[int, int]]) -> None:
    for pid, _ in children.values():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
