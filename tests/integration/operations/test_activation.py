"""Sockets that somebody else has bound: by systemd's own tool, and by hand where that cannot."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from logd import Client
from logd.errors import BadRequest
from logd.net.systemd import take_sockets
from tests.integration.operations.manager import PYTHON, environment
from tests.support.daemon import HANG_S, ROOT

ACTIVATE = shutil.which("systemd-socket-activate")


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now. systemd's tool takes no 0, so somebody else may be quicker."""
    made = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in made]
    for each in made:
        each.close()
    return ports


def start(tmp_path: Path, options: tuple[str, ...]) -> tuple[subprocess.Popen[str], list[int]]:
    if ACTIVATE is None:
        pytest.skip("there is no systemd-socket-activate here; `make operations-packages` does it")
    logd = [PYTHON, "-m", "logd", "--data-dir", str(tmp_path / "data"), "--log-format", "text"]
    for _ in range(10):
        ports = free_ports(2)
        listeners = [word for port in ports for word in ("-l", f"127.0.0.1:{port}")]
        process = subprocess.Popen(
            [ACTIVATE, *listeners, *options, *logd],
            cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stderr is not None
        heard = [process.stderr.readline(), process.stderr.readline()]
        if all("Listening on" in line for line in heard):
            return process, ports
        process.communicate(timeout=HANG_S)
    raise AssertionError(heard)


@contextmanager
def activated(tmp_path: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """systemd-socket-activate with two sockets, which starts logd with the first connection."""
    process, ports = start(tmp_path, options)
    try:
        yield process, ports
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=HANG_S)


def ready_line(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if "ready tcp=" in line:
            return line
    raise AssertionError("it did not start")


@pytest.mark.parametrize("names", [(), ("--fdname=tcp:http",), ("--fdname=http:tcp",)])
def test_both_listeners_are_taken_over(tmp_path: Path, names: tuple[str, ...]) -> None:
    with activated(tmp_path, *names) as (process, ports):
        tcp, http = reversed(ports) if names == ("--fdname=http:tcp",) else ports
        with Client(f"127.0.0.1:{tcp}", timeout_s=HANG_S) as client:  # it starts only now
            assert client.push("app", [b"hello"]).offset == 0
        assert f"ready tcp=127.0.0.1:{tcp} http=127.0.0.1:{http}" in ready_line(process)
        with socket.create_connection(("127.0.0.1", http), HANG_S) as web:
            web.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert web.recv(12) == b"HTTP/1.1 200"
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_S) == 0


def test_variables_for_another_process_are_left_alone_and_not_handed_on() -> None:
    environ = {"LISTEN_PID": "1", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "tcp:http", "HOME": "/"}
    assert take_sockets(environ) == {}
    assert environ == {"HOME": "/"}


@pytest.mark.parametrize(
    ("count", "names", "reason"),
    [
        ("4", "", "there are 3 listeners"),
        ("2", "tcp:tcp", "two sockets are called tcp"),
    ],
)
def test_sockets_that_are_not_understood(count: str, names: str, reason: str) -> None:
    environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": count, "LISTEN_FDNAMES": names}
    with pytest.raises(BadRequest, match=reason):
        take_sockets(environ)


PASSES = """
import os, socket, sys
kind, listens = sys.argv[1], sys.argv[2]
made = socket.socket(getattr(socket, kind), socket.SOCK_STREAM)
if listens == "listens":
    made.bind(sys.argv[3] if kind == "AF_UNIX" else ("127.0.0.1", 0))
    made.listen()
os.dup2(made.fileno(), 3)
os.set_inheritable(3, True)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
os.execv(sys.executable, [sys.executable, "-m", "logd", "--data-dir", sys.argv[4]])
"""


@pytest.mark.parametrize(
    ("kind", "listens", "reason"),
    [("AF_UNIX", "listens", "is not TCP"), ("AF_INET", "does not", "does not listen")],
)
def test_a_socket_of_another_kind_is_refused(
    tmp_path: Path, kind: str, listens: str, reason: str
) -> None:
    done = subprocess.run(
        [PYTHON, "-c", PASSES, kind, listens, tmp_path / "socket", tmp_path / "data"],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert reason in done.stderr
    assert not (tmp_path / "data").exists()
