"""Queries and their daemon are killed again and again; every message arrives exactly once.

A producer writes all the while. Each round waits until the queries have got somewhere, then ends
either the whole Spark program or the daemon as kill -9 does, and starts it again.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, Self

import pytest

from logd import Client, Writer
from tests.integration.spark.conftest import SETTINGS
from tests.integration.spark.query import writers
from tests.integration.spark.rows import stored
from tests.integration.spark.streams import STARTED_LATE, start_query
from tests.support.daemon import ROOT, lasting_address, running
from tests.support.long_run import LONG

KILLS = 30 if LONG else 2
HANG_S = 300.0

# Failures of Spark itself. The first was seen in Spark 4.3.0 with two queries in one session: a map
# changes while Spark serializes a task.
SPARKS_OWN = ("java.lang.IllegalStateException: Illegal size", STARTED_LATE)


class Program:
    """`query.py` in a process group of its own, with the Java it starts."""

    def __init__(self, address: str, directory: Path) -> None:
        self._command = [sys.executable, str(Path(__file__).with_name("query.py"))]
        self._command += [address, str(directory), *(f"{k}={v}" for k, v in SETTINGS.items())]
        self._log, self._told = directory / "log", 0
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
        with self._log.open("a") as log:
            self._told = log.tell()
            self._process = subprocess.Popen(
                self._command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True,
                start_new_session=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "running\n", self._log.read_text()

    def check(self) -> None:
        """Where Spark itself has failed, that was one more way to end at any moment."""
        assert self._process is not None
        if self._process.poll() is not None:
            said = self._log.read_text()[self._told :]
            assert any(failure in said for failure in SPARKS_OWN), said
            self.kill()
            self.start()

    def kill(self) -> None:
        """Python, Java and whatever they do at this moment."""
        if self._process is not None and self._process.stdout is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process.stdout.close()
            self._process = None


class Producer(threading.Thread):
    """Numbered messages, until it is told to stop. What a message says is what it is."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address, self._begun, self._enough = address, threading.Event(), threading.Event()
        self.written = 0

    def run(self) -> None:
        with Writer(self._address, "source", patience_s=None, linger_s=0.05) as writer:
            self._begun.set()
            while not self._enough.wait(0.1):
                for _ in range(20):
                    writer.write(b"%d\nof many" % self.written)
                    self.written += 1

    def __enter__(self) -> Self:
        """A writer that finds nobody at its start says so: no kill before that."""
        self.start()
        assert self._begun.wait(HANG_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self.join()


def wait_until_copied(address: str, program: Program, messages: int) -> None:
    """Wait until the copy has so many messages more: a sign that the queries get on."""
    end = monotonic() + HANG_S
    with Client(address) as client:
        at = wanted = client.tail("copy", 1).offset + 1
        wanted += messages
        while at < wanted:
            program.check()
            assert monotonic() < end, f"nothing moved for {HANG_S} s"
            reply = client.read("copy", at, wanted - at, wait_ms=1000)
            at = reply.offset + reply.messages


@pytest.mark.slow
@pytest.mark.timeout(0 if LONG else 4 * HANG_S)  # Spark starts again for each kill
def test_killed_at_random(spark: Any, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with running(tmp_path, fsync="never", host=lasting_address()) as daemon:
        with Client(daemon.address) as client:
            client.push("source", [b"first"])
            client.push("copy", [b"before"])
        program = Program(daemon.address, tmp_path)
        to_kill = ["daemon", "program"] * (KILLS // 2)
        rng.shuffle(to_kill)
        try:
            program.start()
            with Producer(daemon.address) as producer:
                for killed in to_kill:
                    # At any moment of a micro-batch, now and then of the first.
                    wait_until_copied(daemon.address, program, rng.choice((0, 1, 100, 500)))
                    if killed == "daemon":
                        daemon.kill()
                        daemon.start()
                    else:
                        program.kill()
                        program.start()
                wait_until_copied(daemon.address, program, 1)
        finally:
            program.kill()
        for writer in writers(spark, daemon.address, str(tmp_path), availableNow=True):
            assert start_query(writer).awaitTermination(HANG_S)
        expected = [b"first", *(b"%d\nof many" % n for n in range(producer.written))]
        assert stored(daemon.address, "source") == expected
        parquet = spark.read.parquet(f"{tmp_path}/parquet").select("offset", "value").collect()
        assert Counter((row.offset, row.value) for row in parquet) == Counter(enumerate(expected))
        assert Counter(stored(daemon.address, "copy")) == Counter([b"before", *expected])
        assert producer.written > 100
