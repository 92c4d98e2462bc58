"""What is measured of the storage: starting on many files, checking, and who waits for a sync."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import peers
from bench.measure import LOGD, Contestants, Sample, Setting
from bench.processes import BenchError, run_json
from bench.programs import Load

MESSAGE_BYTES = 100
BATCH_BYTES = 64 * 1024
BATCH = Load(connections=16, message_bytes=MESSAGE_BYTES, batch_bytes=BATCH_BYTES)
PARTITIONS = 1000
SETTLE_S = 0.3  # for the load to be at full speed before its neighbour is measured


@contextmanager
def scratch(setting: Setting) -> Iterator[Path]:
    """A directory on the disk under test, gone when the row is."""
    with TemporaryDirectory(dir=setting.directory) as name:
        yield Path(name)


def batches_for(total_bytes: int, batch: Load = BATCH) -> Load:
    return replace(batch, count=max(1, total_bytes // batch.body_bytes))


@contextmanager
def start_with_partitions(setting: Setting) -> Iterator[Contestants]:
    """After a clean stop of a daemon that rolled at every push."""
    with scratch(setting) as place:
        data, log = place / "logd", place / "logd.log"
        data.mkdir()
        with peers.logd_on(data, log, "--partition-bytes", "1") as peer:
            load = Load(message_bytes=MESSAGE_BYTES, count=PARTITIONS + 1)
            setting.programs.load("logd", peer.port, load)
            files = peer.partitions(load.topic)
        if len(files) <= PARTITIONS:
            raise BenchError(f"made {len(files)} partitions instead of more than {PARTITIONS}")
        turns = iter(range(10**6))

        def start() -> Sample:
            with peers.logd_on(data, place / f"start-{next(turns)}.log") as peer:
                return Sample(peer.ready_s)

        yield {LOGD: start}


@contextmanager
def check(setting: Setting) -> Iterator[Contestants]:
    """The scan behind `log-cli check`, over a topic that is in the page cache."""
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


@contextmanager
def neighbour(setting: Setting, mode: str) -> Iterator[Contestants]:
    """Another topic's steady user, beside 16 connections that push with fsync=always, and alone."""
    seconds = 2 * setting.sizes.seconds
    load = Load(connections=16, message_bytes=MESSAGE_BYTES, seconds=seconds + 2 * SETTLE_S)
    with scratch(setting) as place, peers.logd(place, "always") as peer:

        def alone() -> Sample:
            command = [sys.executable, "-m", "bench.steady", mode, peer.address, str(seconds)]
            facts = run_json(command)
            return Sample(facts["p99_us"], facts)

        def crowded() -> Sample:
            crowd = threading.Thread(
                target=setting.programs.load, args=("logd", peer.port, load), daemon=True
            )
            crowd.start()
            time.sleep(SETTLE_S)
            sample = alone()
            crowd.join()
            return sample

        yield {LOGD: crowded, "alone": alone}
