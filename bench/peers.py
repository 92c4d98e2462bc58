"""Starts the compared servers, each on a free loopback port and with its own directory."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.processes import BenchError, is_comparing, python, running, wait_for
from bench.programs import Load, Programs

READY = r"ready tcp=[^ ]*?:(\d+)"
HTTP_READY = r"ready tcp=\S+ http=[^ ]*?:(\d+)"
REDIS_READY = r"Ready to accept connections"
NATS_READY = r"Listening for client connections on [^ ]*?:(\d+)"


@dataclass(frozen=True, slots=True)
class Peer:
    pid: int
    port: int
    ready_s: float  # from its start to its ready line
    directory: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def http_port(self) -> int:
        """The port of the HTTP listener of logd."""
        found = re.search(HTTP_READY, self.directory.with_name("logd.log").read_text())
        if found is None:
            raise BenchError("the daemon did not report its HTTP port")
        return int(found[1])

    def partitions(self, topic: str) -> list[Path]:
        """The files of a topic of logd, ordered by offset."""
        return sorted((self.directory / "topics" / topic).glob("*.log"))


@contextmanager
def logd(directory: Path, fsync: str) -> Iterator[Peer]:
    with logd_on(*_places(directory, "logd"), "--fsync", fsync) as peer:
        yield peer


@contextmanager
def logd_on(data: Path, log: Path, *flags: str) -> Iterator[Peer]:
    """A daemon on a data directory that may already exist."""
    command: list[str | Path] = [python(), "-m", "logd", "--data-dir", data]
    command += ["--host", "127.0.0.1:0", "--http-host", "127.0.0.1:0"]
    with _serving([*command, *flags], data, log) as peer:
        yield peer


@contextmanager
def redis(directory: Path, appendfsync: str) -> Iterator[Peer]:
    with redis_on(*_places(directory, "redis"), appendfsync) as peer:
        yield peer


@contextmanager
def redis_on(data: Path, log: Path, appendfsync: str) -> Iterator[Peer]:
    """Redis with an append-only file, on a directory that may already exist.

    Snapshots and rewrites are disabled, since a fork during a run would distort its results.
    """
    port = free_port()
    program = _program("redis-server")
    command: list[str | Path] = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", data]
    command += ["--appendonly", "yes", "--appendfsync", appendfsync, "--save", ""]
    command += ["--auto-aof-rewrite-percentage", "0", "--daemonize", "no", "--logfile", ""]
    start = time.perf_counter()
    with running(command, log) as process:
        wait_for(process, log, REDIS_READY)
        yield Peer(process.pid, port, time.perf_counter() - start, data)


@contextmanager
def nats(directory: Path) -> Iterator[Peer]:
    """JetStream with files and default settings: a write per message, a sync every two minutes."""
    data, log = _places(directory, "nats")
    command = [_program("nats-server"), "--addr", "127.0.0.1", "--port", "-1"]
    with _serving([*command, "--jetstream", "--store_dir", data], data, log, NATS_READY) as peer:
        yield peer


@contextmanager
def echo(directory: Path, request_bytes: int, *mode: str) -> Iterator[Peer]:
    data, log = _places(directory, "-".join(["echo", *mode]))
    command = [python(), "-m", "bench.echo", str(request_bytes), *mode]
    with _serving(command, data, log) as peer:
        yield peer


@contextmanager
def http_echo(directory: Path) -> Iterator[Peer]:
    data, log = _places(directory, "http-echo")
    with _serving([python(), "-m", "bench.http_echo"], data, log) as peer:
        yield peer


@contextmanager
def sink(directory: Path, programs: Programs, load: Load, *, synced: bool) -> Iterator[Peer]:
    data, log = _places(directory, "sink")
    with _serving(programs.sink(data / "stored", load, synced=synced), data, log) as peer:
        yield peer


def redis_missing() -> str | None:
    return _missing("redis-server")


def nats_missing() -> str | None:
    return _missing("nats-server")


def versions() -> dict[str, str]:
    """The versions of the other servers."""
    return {
        "redis-server": _version("redis-server", r"v=(\S+)"),
        "nats-server": _version("nats-server", r"v(\d\S*)"),
    }


def _found(program: str) -> str | None:
    if is_comparing():
        return None
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")


def _missing(program: str) -> str | None:
    return (
        None
        if _found(program)
        else f"{program} is not installed; `make bench-packages` installs it"
    )


def _program(program: str) -> str:
    path = _found(program)
    if path is None:
        raise BenchError(_missing(program) or program)
    return path


def _version(program: str, pattern: str) -> str:
    path = _found(program)
    if path is None:
        return "none"
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    match = re.search(pattern, said.stdout)
    return match[1] if match else "unknown"


@contextmanager
def _serving(
    command: Sequence[str | Path], data: Path, log: Path, ready: str = READY
) -> Iterator[Peer]:
    """A server that reports its port."""
    start = time.perf_counter()
    with running(command, log) as process:
        port = int(wait_for(process, log, ready)[1])
        yield Peer(process.pid, port, time.perf_counter() - start, data)


def _places(directory: Path, name: str) -> tuple[Path, Path]:
    data = directory / name
    data.mkdir(parents=True)
    return data, directory / f"{name}.log"


def free_port() -> int:
    """For servers that cannot choose a free port themselves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
