"""Rows about the daemon itself: its start, its memory and its tools."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

from bench import peers
from bench.machine import resident_mb
from bench.measure import LOGD, Measures, Opening, Row, Sample, Setting, Target
from bench.processes import BenchError, checkout, environment, python
from bench.programs import Load
from bench.workloads import MESSAGE_BYTES, batches_for, scratch

PARTITIONS = 1000


@contextmanager
def start_up(setting: Setting) -> Iterator[Measures]:
    yield {LOGD: partial(start_empty, setting)}


@contextmanager
def idle_memory(setting: Setting) -> Iterator[Measures]:
    """After one message to each of ten topics."""

    def idle() -> Sample:
        with scratch(setting) as place, peers.logd(place, "interval") as peer:
            setting.programs.load("logd", peer.port, Load(topics=10, count=10))
            return Sample(resident_mb(peer.pid))

    yield {LOGD: idle}


@contextmanager
def help_time(setting: Setting) -> Iterator[Measures]:
    script = Path(python()).with_name("log-cli")
    command = [str(script), "--help"] if script.exists() else [python(), "-m", "cli", "--help"]

    def show() -> Sample:
        start = time.perf_counter()
        done = subprocess.run(
            command, capture_output=True, cwd=checkout(), env=environment(), check=False
        )
        if done.returncode:
            raise BenchError(f"log-cli --help ended with {done.returncode}")
        return Sample(time.perf_counter() - start)

    yield {LOGD: show}


@contextmanager
def start_with_partitions(setting: Setting) -> Iterator[Measures]:
    """After a clean stop of a daemon that started a new partition at every push."""
    with scratch(setting) as place:
        data, log = place / "logd", place / "logd.log"
        data.mkdir()
        with peers.logd_on(data, log, "--partition-bytes", "1") as peer:
            load = Load(message_bytes=MESSAGE_BYTES, count=PARTITIONS + 1)
            setting.programs.load("logd", peer.port, load)
            files = peer.partitions(load.topic)
        if len(files) <= PARTITIONS:
            raise BenchError(f"made {len(files)} partitions instead of more than {PARTITIONS}")
        turns = count()
        yield {LOGD: lambda: start(data, place / f"start-{next(turns)}.log")}


def start(data: Path, log: Path) -> Sample:
    with peers.logd_on(data, log) as peer:
        return Sample(peer.ready_s)


def start_empty(setting: Setting) -> Sample:
    with scratch(setting) as place, peers.logd(place, "interval") as peer:
        return Sample(peer.ready_s)


@contextmanager
def check(setting: Setting) -> Iterator[Measures]:
    """The scan of `log-cli check`, for a topic in the page cache."""
    from logd.offline import integrity

    with scratch(setting) as place:
        load = batches_for(setting.sizes.topic_bytes)
        with peers.logd(place, "interval") as peer:
            setting.programs.load("logd", peer.port, load)
            directory = peer.partitions(load.topic)[0].parent

        def scan() -> Sample:
            start = time.perf_counter()
            report = integrity.check(directory).report
            seconds = time.perf_counter() - start
            if report.damages or report.cut_bytes:
                raise BenchError(f"the check found damage: {report}")
            return Sample(report.kept_bytes / seconds / 1e6)

        scan()
        yield {LOGD: scan}


def _at_most(name: str, what: str, unit: str, opening: Opening, bound: float) -> Row:
    return Row(f"start-{name}", what, unit, opening, Target(bound, at_most=True))


ROWS = (
    _at_most("ready", "start to ready line", "s", start_up, 0.6),
    _at_most("1000", "the same with 1,000 sealed partitions", "s", start_with_partitions, 1.0),
    Row("check", "log-cli check's scan, 64 KB batches", "MB/s", check, Target(1000.0)),
    _at_most("idle", "resident, ten topics", "MB", idle_memory, 60.0),
    _at_most("help", "log-cli --help", "s", help_time, 0.2),
)
