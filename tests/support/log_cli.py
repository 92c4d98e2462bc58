"""`log-cli` in a process of its own, for tests: run to its end, or started and looked at."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from logd import Client
from tests.support.daemon import HANG_S, ROOT, Daemon
from tests.support.fork_server import fork_server

LOG_CLI = [sys.executable, "-m", "cli"]


def log_cli(host: str | Daemon, *words: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
    """Exit code, stdout, stderr."""
    stdin_read, stdin_write = os.pipe()
    stdout_read, stdout_write = os.pipe()
    process = fork_server().fork(
        "cli", [*words], environment(host), stdin=stdin_read, stdout=stdout_write
    )
    os.close(stdin_read)
    os.close(stdout_write)
    timer = threading.Timer(HANG_S, process.kill)
    timer.start()
    with ThreadPoolExecutor() as threads, process.stderr:
        threads.submit(_write, stdin_write, stdin)
        stdout = threads.submit(_read, stdout_read)
        errors = process.stderr.read()
    timer.cancel()
    assert "Traceback" not in errors
    return process.wait(HANG_S), stdout.result(), errors


def _read(fd: int) -> bytes:
    with open(fd, "rb") as pipe:
        return pipe.read()


def _write(fd: int, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), open(fd, "wb") as pipe:
        pipe.write(data)


@contextmanager
def started(
    host: str | Daemon, *words: str, hang_s: float = 2 * HANG_S, stdin: Any = subprocess.PIPE
) -> Iterator[subprocess.Popen[bytes]]:
    """It is killed after `hang_s`: whoever waits for a line of it, or for its end, gets that."""
    with subprocess.Popen(
        [*LOG_CLI, *words],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=environment(host),
        # A test run in the background ignores Ctrl-C, and would hand that down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        timer = threading.Timer(hang_s, process.kill)
        timer.start()
        try:
            yield process
        finally:
            timer.cancel()
            process.kill()


def on_terminal(host: str | Daemon, *words: str, stderr_too: bool = False) -> str:
    """What is sent to a terminal; with CR LF as line ends, as the kernel makes them."""
    master, slave = pty.openpty()
    with ThreadPoolExecutor() as threads:
        sent = threads.submit(_drain, master)
        try:
            subprocess.run(
                [*LOG_CLI, *words],
                stdin=subprocess.DEVNULL,
                stdout=slave,
                stderr=slave if stderr_too else subprocess.DEVNULL,
                cwd=ROOT,
                env=environment(host) | {"TERM": "xterm"},
                timeout=HANG_S,
                check=False,
            )
        finally:
            os.close(slave)
    return sent.result().decode("utf-8", "surrogateescape")


def _drain(terminal: int) -> bytes:
    sent = bytearray()
    with contextlib.suppress(OSError):  # the last process has closed the terminal
        while piece := os.read(terminal, 4096):
            sent += piece
    os.close(terminal)
    return bytes(sent)


@contextmanager
def answering(reply: bytes) -> Iterator[str]:
    """The address of a server that answers each line with this."""

    def answer() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            while lines.readline():
                connection.sendall(reply)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(HANG_S)
        thread = threading.Thread(target=answer)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(HANG_S)


def environment(host: str | Daemon) -> dict[str, str]:
    return os.environ | {"LOGD_HOST": host if isinstance(host, str) else host.address}


def fill(daemon: Daemon, count: int = 3) -> None:
    with Client(daemon.address) as client:
        client.push("app", [b"m%d" % n for n in range(count)])
