"""Starts the compared servers, each on a free loopback port and with its own directory."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
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


Serving = AbstractContextManager[Peer]


def logd(directory: Path, fsync: str) -> Serving:
    return logd_on(*_places(directory, "logd"), "--fsync", fsync)


def logd_on(data: Path, log: Path, *flags: str) -> Serving:
    """A daemon on a data directory that may already exist."""
    command: list[str | Path] = [python(), "-m", "logd", "--data-dir", data]
    command += ["--host", "127.0.0.1:0", "--http-host", "127.0.0.1:0"]
    return _serving([*command, *flags], data, log)


def redis(directory: Path, appendfsync: str) -> Serving:
    return redis_on(*_places(directory, "redis"), appendfsync)


def redis_on(data: Path, log: Path, appendfsync: str) -> Serving:
    """Redis with an append-only file, on a directory that may already exist.

    Snapshots and rewrites are disabled, since a fork during a run would distort its results.
    """
    port = free_port()
    command: list[str | Path] = [_program("redis-server"), "--port", str(port), "--dir", data]
    command += ["--bind", "127.0.0.1", "--appendonly", "yes", "--appendfsync", appendfsync]
    command += ["--save", "", "--auto-aof-rewrite-percentage", "0", "--logfile", ""]
    return _serving(command, data, log, REDIS_READY, port)


def nats(directory: Path) -> Serving:
    """JetStream with files and default settings: a write per message, a sync every two minutes."""
    data, log = _places(directory, "nats")
    command = [_program("nats-server"), "--addr", "127.0.0.1", "--port", "-1"]
    return _serving([*command, "--jetstream", "--store_dir", data], data, log, NATS_READY)


def echo(directory: Path, request_bytes: int, *mode: str) -> Serving:
    data, log = _places(directory, "-".join(["echo", *mode]))
    return _serving([python(), "-m", "bench.echo", str(request_bytes), *mode], data, log)


def http_echo(directory: Path) -> Serving:
    return _serving([python(), "-m", "bench.http_echo"], *_places(directory, "http-echo"))


def sink(directory: Path, programs: Programs, load: Load, *, synced: bool) -> Serving:
    data, log = _places(directory, "sink")
    return _serving(programs.sink(data / "stored", load, synced=synced), data, log)


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
    if _found(program):
        return None
    return f"{program} is not installed; `make bench-packages` installs it"


def _program(program: str) -> str:
    """Rows check first that it is not missing."""
    return _found(program) or program


def _version(program: str, pattern: str) -> str:
    path = _found(program)
    if path is None:
        return "none"
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    match = re.search(pattern, said.stdout)
    return match[1] if match else "unknown"


@contextmanager
def _serving(
    command: Sequence[str | Path], data: Path, log: Path, ready: str = READY, port: int = 0
) -> Iterator[Peer]:
    """A server that reports its port, unless it is given."""
    start = time.perf_counter()
    with running(command, log) as process:
        found = wait_for(process, log, ready)
        yield Peer(process.pid, port or int(found[1]), time.perf_counter() - start, data)


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
