"""A process that has imported logd and forks daemons and commands: a start takes 20 ms, not 300.

    process = fork_server().fork("logd", ["--data-dir", "data"])

A child continues as `python -m logd` or `python -m cli` would, with its own environment and
standard streams. With `held` it first waits for `process.release()`, so that a tracer can be
attached before its first system call. The server reaps its children and reports their exit codes.
When its socket is closed, or the process that started it dies, it ends the children that are left,
each by its own id.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

from tests.support import network_links

ROOT = Path(__file__).parents[2]
_REQUEST_BYTES = 128 * 1024
_PR_SET_PTRACER = 0x59616D61
_ANY_PROCESS = ctypes.c_ulong(-1)


class ForkedProcess:
    """A child, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, pidfd: int, stderr: int, status: int, release: int) -> None:
        self.pid = pid
        self._pidfd = pidfd  # never refers to another process, unlike the id
        self.stderr: IO[str] = open(stderr, encoding="utf-8", errors="backslashreplace")
        self.returncode: int | None = None
        self._status = status
        self._release = release

    def release(self) -> None:
        """Let a child start that was forked `held`."""
        if self._release >= 0:
            os.close(self._release)
            self._release = -1

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        return self._code(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def _code(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout_s)[0]:
            self.returncode = int(os.read(self._status, 100) or b"-9")
            os.close(self._status)
            os.close(self._pidfd)
            self.release()
        return self.returncode


class ForkServer:
    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the tests, which then close this
            )

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def fork(
        self,
        module: str,
        arguments: list[str],
        environment: dict[str, str],
        *,
        stdin: int = 0,
        stdout: int = 1,
        held: bool = False,
        namespace: Path | None = None,
    ) -> ForkedProcess:
        """Run `python -m module`; in this network namespace, if one is named."""
        stderr_read, stderr_write = os.pipe()
        status_read, status_write = os.pipe()
        release_read, release_write = os.pipe()
        request = {"module": module, "arguments": arguments, "environment": environment}
        request |= {"namespace": str(namespace or "")}
        fds = [stdin, stdout, stderr_write, status_write, release_read]
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], fds)
            pid, (pidfd,), _, _ = socket.recv_fds(self._socket, 100, 1)
        for fd in (stderr_write, status_write, release_read):
            os.close(fd)
        process = ForkedProcess(int(pid), pidfd, stderr_read, status_read, release_write)
        if not held:
            process.release()
        return process


@functools.cache
def fork_server() -> ForkServer:
    """The one server of this process, started when it is first used."""
    server = ForkServer()
    atexit.register(server.close)
    return server


# -- inside the server ----------------------------------------------------------------------------


def serve(fd: int) -> None:
    """Fork on request until the other end is closed."""
    _import_everything()
    children: dict[int, tuple[int, int]] = {}  # by pidfd: its id, and where its exit code goes
    with socket.socket(fileno=fd) as requests:
        while True:
            for ready in select.select([fd, *children], [], [])[0]:
                if ready != fd:
                    _reap(ready, children)
                elif not _fork_one(requests, children):
                    _end(children)
                    return


def _import_everything() -> None:
    """Run each program once with arguments that it refuses: that imports what it needs."""
    import encodings.idna  # noqa: F401  a listening socket needs it

    stderr = os.dup(2)
    os.dup2(1, 2)
    for module, arguments in (("logd", ["--host", "nowhere"]), ("cli", ["ping", "nowhere"])):
        with contextlib.suppress(SystemExit):
            _run(module, arguments)
    os.dup2(stderr, 2)
    os.close(stderr)


def _run(module: str, arguments: list[str]) -> None:
    sys.argv = [module, *arguments]
    importlib.import_module(f"{module}.__main__").main()


def _fork_one(requests: socket.socket, children: dict[int, tuple[int, int]]) -> bool:
    data, fds, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 5)
    if not data:
        return False
    *streams, status, release = fds
    pid = os.fork()
    if pid == 0:
        requests.close()
        for pidfd, (_, other_status) in children.items():
            os.close(pidfd)
            os.close(other_status)
        os.close(status)
        _become(json.loads(data), streams, release)
    for fd in (*streams, release):
        os.close(fd)
    pidfd = os.pidfd_open(pid)
    children[pidfd] = pid, status
    socket.send_fds(requests, [b"%d" % pid], [pidfd])
    return True


def _become(request: dict[str, Any], streams: list[int], release: int) -> None:
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["environment"])
    if request["namespace"]:
        network_links.enter(Path(request["namespace"]))
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANY_PROCESS, 0, 0, 0)
    os.read(release, 1)  # returns when the other end is closed
    os.close(release)
    _run(request["module"], request["arguments"])
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
    serve(int(sys.argv[1]))
