"""The servers that are compared. Each runs on a free loopback port, with a directory of its own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.processes import BenchError, running, wait_for
from bench.programs import Load, Programs

READY = r"ready tcp=[^ ]*?:(\d+)"
REDIS_READY = r"Ready to accept connections"
REDIS_MISSING = "redis-server is not on PATH; `make bench-packages` installs it"


@dataclass(frozen=True, slots=True)
class Peer:
    pid: int
    port: int
    ready_s: float  # from its start to its ready line
    directory: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def partitions(self, topic: str) -> list[Path]:
        """logd's files of a topic, in order of their offsets."""
        return sorted((self.directory / "topics" / topic).glob("*.log"))


@contextmanager
def logd(directory: Path, fsync: str) -> Iterator[Peer]:
    with logd_on(*_places(directory, "logd"), "--fsync", fsync) as peer:
        yield peer


@contextmanager
def logd_on(data: Path, log: Path, *flags: str) -> Iterator[Peer]:
    """A daemon on a data directory that may be there already."""
    command: list[str | Path] = [sys.executable, "-m", "logd", "--data-dir", data]
    with _serving([*command, "--host", "127.0.0.1:0", *flags], data, log) as peer:
        yield peer


@contextmanager
def redis(directory: Path, appendfsync: str) -> Iterator[Peer]:
    """Redis that appends to a file as logd does.

    It takes no snapshots and never rewrites its file: a fork in the middle of a run would be held
    against it.
    """
    program = redis_program()
    if program is None:
        raise BenchError(REDIS_MISSING)
    data, log = _places(directory, "redis")
    port = _free_port()
    command: list[str | Path] = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", data]
    command += ["--appendonly", "yes", "--appendfsync", appendfsync, "--save", ""]
    command += ["--auto-aof-rewrite-percentage", "0", "--daemonize", "no", "--logfile", ""]
    start = time.perf_counter()
    with running(command, log) as process:
        wait_for(process, log, REDIS_READY)
        yield Peer(process.pid, port, time.perf_counter() - start, data)


@contextmanager
def echo(directory: Path, request_bytes: int) -> Iterator[Peer]:
    data, log = _places(directory, "echo")
    with _serving([sys.executable, "-m", "bench.echo", str(request_bytes)], data, log) as peer:
        yield peer


@contextmanager
def sink(directory: Path, programs: Programs, load: Load) -> Iterator[Peer]:
    data, log = _places(directory, "sink")
    with _serving(programs.sink(data / "stored", load), data, log) as peer:
        yield peer


def redis_program() -> str | None:
    return shutil.which("redis-server")


def redis_version() -> str:
    program = redis_program()
    if program is None:
        return "none"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return next((word[2:] for word in said.stdout.split() if word.startswith("v=")), "unknown")


@contextmanager
def _serving(command: Sequence[str | Path], data: Path, log: Path) -> Iterator[Peer]:
    """A server that says itself which port it took."""
    start = time.perf_counter()
    with running(command, log) as process:
        port = int(wait_for(process, log, READY)[1])
        yield Peer(process.pid, port, time.perf_counter() - start, data)


def _places(directory: Path, name: str) -> tuple[Path, Path]:
    data = directory / name
    data.mkdir(parents=True)
    return data, directory / f"{name}.log"


def _free_port() -> int:
    """Redis has no way to take any free port; this one was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
