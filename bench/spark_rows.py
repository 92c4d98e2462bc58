"""Rows about the Spark data source, compared with Spark reading the same lines from a file.

Both run in one session, in turn, after warming up until Java has compiled both.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from bench import peers
from bench.measure import LOGD, Measures, Row, Sample, Setting, Skip, Target
from bench.processes import BenchError, checkout, environment, python
from bench.workloads import EVEN_BATCH, MESSAGE_BYTES, batches_for, scratch

TEXT = "text file"
WARMING_TURNS = 6
SPLITS = 8


def why_not() -> str | None:
    if find_spec("pyspark") is None:
        return "PySpark is not installed; `make bench` installs it"
    from pyspark_logd.session import java_problem

    return java_problem()


@contextmanager
def filled(setting: Setting) -> Iterator[tuple[peers.Peer, str, int]]:
    """A daemon with a topic of messages of equal size; yields the topic and their number."""
    load = batches_for(setting.sizes.client_messages * MESSAGE_BYTES, EVEN_BATCH)
    with scratch(setting) as place, peers.logd(place, "interval") as peer:
        setting.programs.load("logd", peer.port, load)
        yield peer, load.topic, load.count * load.push_messages


@contextmanager
def counting(setting: Setting) -> Iterator[Measures]:
    if reason := why_not():
        yield {LOGD: Skip(reason)}
        return
    with filled(setting) as (peer, topic, messages):
        file = peer.directory / "lines"
        write_lines(peer, topic, file)
        expected = (messages, messages * (MESSAGE_BYTES - 1))
        with session(peer, topic, file) as ask:

            def measure(way: str) -> Sample:
                facts = ask(way)
                if (facts["messages"], facts["bytes"]) != expected:
                    raise BenchError(f"{way} counted {facts}, not {messages} messages")
                return Sample(messages / facts["seconds"], facts)

            for _ in range(WARMING_TURNS):
                measure("text")
                measure("logd")
            yield {LOGD: partial(measure, "logd"), TEXT: partial(measure, "text")}


def write_lines(peer: peers.Peer, topic: str, file: Path) -> None:
    """Write the messages of a topic to a text file: the bodies without headers."""
    from logd.batch import reading, scan

    with file.open("wb") as lines:
        for partition in peer.partitions(topic):
            data = partition.read_bytes()
            lines.writelines(found.body for found in scan(reading(data), 0, len(data)))


@contextmanager
def session(
    peer: peers.Peer, topic: str, file: Path
) -> Iterator[Callable[[str], dict[str, float]]]:
    command = [python(), "-m", "bench.spark_client", peer.address, topic, str(file)]
    log = peer.directory / "spark.log"
    with log.open("wb") as errors, subprocess.Popen(
        command, cwd=checkout(), env=environment() | {"SPARK_LOCAL_IP": "127.0.0.1"}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def ask(way: str) -> dict[str, float]:
            print(way, file=stdin, flush=True)
            line = stdout.readline()
            if not line:
                raise BenchError(f"Spark ended: {log.read_text()[-500:]}")
            facts: dict[str, float] = json.loads(line)
            return facts

        yield ask  # then its input ends, and it exits


@contextmanager
def splitting(setting: Setting) -> Iterator[Measures]:
    if reason := why_not():
        yield {LOGD: Skip(reason)}
        return
    with filled(setting) as (peer, topic, _):
        from pyspark_logd.arrow_batches import SCHEMA
        from pyspark_logd.batch_reader import BatchReader
        from pyspark_logd.options import read_options

        given = {"host": peer.address, "subscribe": topic, "minPartitions": str(SPLITS)}
        reader = BatchReader(read_options(given, is_stream=False), SCHEMA)

        def measure() -> Sample:
            sizes = [split.stop - split.start for split in reader.partitions()]
            return Sample(max(sizes) / min(sizes))

        yield {LOGD: measure}


ROWS = (
    Row("spark-count", "Spark: count, sum of lengths", "/s", counting, Target(1.0, beside=TEXT)),
    Row(
        "spark-splits", "Spark: largest split / smallest", "×", splitting, Target(1.1, at_most=True)
    ),
)
