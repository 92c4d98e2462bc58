"""The C programs: compiles them, and runs them with typed options."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bench.processes import ROOT, BenchError, run_json

SOURCES = ("load", "limits", "sink", "follow")
FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra")


@dataclass(frozen=True, slots=True)
class Load:
    """One run of the load generator. With `batch_bytes`, a push has as many messages as fit."""

    connections: int = 1
    depth: int = 1
    message_bytes: int = 100
    batch_bytes: int = 0
    topics: int = 1
    topic: str = "bench"
    seconds: float = 60.0
    warmup_s: float = 0.0
    count: int = 0
    any_size: bool = False  # messages of half to one and a half times the size

    @property
    def body_bytes(self) -> int:
        return self.batch_bytes or self.message_bytes

    @property
    def push_bytes(self) -> int:
        """The length of one push on the wire, with a single topic."""
        return len(f"PUSH {self.topic} {self.body_bytes}\r\n") + self.body_bytes

    @property
    def push_messages(self) -> int:
        return -(-self.body_bytes // self.message_bytes)

    def lasting(self, seconds: float, warmup_s: float) -> Load:
        return replace(self, seconds=seconds, warmup_s=warmup_s)

    def with_one_message(self) -> Load:
        """The same bytes as one message."""
        return replace(self, message_bytes=self.body_bytes, batch_bytes=0)

    def flags(self) -> list[str]:
        values = {
            "connections": self.connections,
            "depth": self.depth,
            "size": self.message_bytes,
            "batch": self.body_bytes,
            "topics": self.topics,
            "topic": self.topic,
            "ms": round(self.seconds * 1000),
            "warmup-ms": round(self.warmup_s * 1000),
        }
        if self.count:
            values["count"] = self.count
        return [*_flags(values), *(["--any-size"] if self.any_size else [])]


@dataclass(frozen=True, slots=True)
class Follow:
    """One producer and several followers of a new topic. Without a pace, in lockstep."""

    topic: str
    followers: int
    seconds: float
    warmup_s: float = 0.0
    pace: int = 0
    message_bytes: int = 100

    @property
    def push_bytes(self) -> int:
        return Load(message_bytes=self.message_bytes, topic=self.topic).push_bytes

    def flags(self) -> list[str]:
        values = {
            "topic": self.topic,
            "followers": self.followers,
            "pace": self.pace,
            "size": self.message_bytes,
            "ms": round(self.seconds * 1000),
            "warmup-ms": round(self.warmup_s * 1000),
        }
        return _flags(values)


def _flags(values: Mapping[str, object]) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


@dataclass(frozen=True, slots=True)
class Programs:
    directory: Path
    seed: int

    def load(self, protocol: str, port: int, load: Load) -> Mapping[str, float]:
        flags = _flags({"protocol": protocol, "port": port, "seed": self.seed})
        return run_json([self.directory / "load", *flags, *load.flags()])

    def writev(
        self, file: Path, writes: int, body_bytes: int, *, group: int = 0
    ) -> Mapping[str, float]:
        """`group`: number of writes between syncs; 0 for none."""
        numbers = (writes * body_bytes, body_bytes, group)
        return run_json([self.directory / "limits", "writev", file, *map(str, numbers)])

    def follow(self, protocol: str, port: int, follow: Follow) -> Mapping[str, float]:
        flags = _flags({"protocol": protocol, "port": port})
        return run_json([self.directory / "follow", *flags, *follow.flags()])

    def sendfile(self, files: list[Path]) -> Mapping[str, float]:
        return run_json([self.directory / "limits", "sendfile", *files])

    def drain(self, port: int, topic: str, read_bytes: int) -> Mapping[str, float]:
        return run_json([self.directory / "limits", "drain", str(port), topic, str(read_bytes)])

    def sink(self, file: Path, load: Load, *, synced: bool) -> list[str | Path]:
        """The command that starts the bare server for this load."""
        numbers = (load.push_bytes, load.body_bytes)
        words = [*map(str, numbers), f"OK 0 {load.push_messages}", *(["synced"] if synced else [])]
        return [self.directory / "sink", file, *words]


def build(directory: Path, seed: int) -> Programs:
    """Compile programs that are older than their sources."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise BenchError("a C compiler is needed: neither cc nor gcc is on PATH")
    directory.mkdir(parents=True, exist_ok=True)
    for name in SOURCES:
        sources = [ROOT / "bench" / f"{name}.c", *(ROOT / "bench").glob("*.h")]
        program = directory / name
        newest = max(source.stat().st_mtime for source in sources)
        if not program.exists() or program.stat().st_mtime < newest:
            _compile(compiler, sources[0], program)
    return Programs(directory, seed)


def _compile(compiler: str, source: Path, program: Path) -> None:
    # Another process may be compiling it too.
    made = program.with_name(f"{program.name}-{os.getpid()}")
    command: list[str | Path] = [compiler, *FLAGS, "-o", made, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{source.name} does not compile:\n{done.stderr}")
    made.replace(program)
