"""What is measured of the daemon at rest, of its tools, and of those who share it with a crowd."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench import peers, storage_rows
from bench.machine import resident_mb
from bench.measure import LOGD, Contestants, Row, Sample, Setting, Target
from bench.processes import ROOT, BenchError, environment
from bench.programs import Load
from bench.storage_rows import scratch


@contextmanager
def start_up(setting: Setting) -> Iterator[Contestants]:
    def start() -> Sample:
        with scratch(setting) as place, peers.logd(place, "interval") as peer:
            return Sample(peer.ready_s)

    yield {LOGD: start}


@contextmanager
def idle_memory(setting: Setting) -> Iterator[Contestants]:
    """After one message to each of ten topics."""

    def rest() -> Sample:
        with scratch(setting) as place, peers.logd(place, "interval") as peer:
            setting.programs.load("logd", peer.port, Load(topics=10, count=10))
            return Sample(resident_mb(peer.pid))

    yield {LOGD: rest}


@contextmanager
def help_time(setting: Setting) -> Iterator[Contestants]:
    script = Path(sys.executable).with_name("log-cli")
    command = [str(script)] if script.exists() else [sys.executable, "-m", "cli"]

    def show() -> Sample:
        start = time.perf_counter()
        done = subprocess.run(
            [*command, "--help"], capture_output=True, cwd=ROOT, env=environment(), check=False
        )
        if done.returncode:
            raise BenchError(f"log-cli --help ended with {done.returncode}")
        return Sample(time.perf_counter() - start)

    yield {LOGD: show}


NEIGHBOURS = (
    Row(
        "always-writer",
        "p99 of a steady writer beside 16 who push, fsync always",
        "µs",
        partial(storage_rows.neighbour, mode="writer"),
        Target(3.0, at_most=True, beside="alone"),
    ),
    Row(
        "always-reader",
        "p99 of a steady reader beside that",
        "µs",
        partial(storage_rows.neighbour, mode="reader"),
        Target(3.0, at_most=True, beside="alone"),
    ),
)
ROWS = (
    Row("start-ready", "start to ready line", "s", start_up, Target(0.6, at_most=True)),
    Row(
        "start-1000",
        "the same with 1,000 sealed partitions",
        "s",
        storage_rows.start_with_partitions,
        Target(1.0, at_most=True),
    ),
    Row("check", "log-cli check's scan, 64 KB batches", "MB/s", storage_rows.check, Target(1000.0)),
    Row("start-idle", "resident, ten topics", "MB", idle_memory, Target(60.0, at_most=True)),
    Row("start-help", "log-cli --help", "s", help_time, Target(0.2, at_most=True)),
)
