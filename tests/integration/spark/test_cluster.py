"""A real cluster on this machine: a master and two workers, each a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from logd.archive.object_stores import open_store
from tests.integration.archive import old_topics
from tests.integration.archive.commands import log_cli
from tests.integration.archive.reading import archived, check
from tests.integration.spark.rows import push, stored
from tests.support.daemon import ROOT, running
from tests.support.long_run import LONG

SPARK_CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
JOB = ROOT / "cli" / "spark" / "log_cli.py"
HANG_S = 300.0
ENVIRONMENT = {
    "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # halves the time of a start
    "PYSPARK_PYTHON": sys.executable,
    "PYTHONPATH": str(ROOT),
    "SPARK_LOCAL_IP": "127.0.0.1",
}
SETTINGS = {
    "spark.cores.max": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.memory": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # no task before both are there
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",  # so that a task writes bit by bit
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class Node:
    """A master or a worker. Whatever it starts is in its process group, and ends with it."""

    def __init__(self, directory: Path, kind: str, *arguments: str) -> None:
        environment = os.environ | ENVIRONMENT | {
            "SPARK_DAEMON_MEMORY": "256m", "SPARK_WORKER_DIR": str(directory / "work"),
        }  # fmt: skip
        name = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
        command = [SPARK_CLASS, name, "--host", "127.0.0.1", "--webui-port", "0", *arguments]
        self._process = subprocess.Popen(
            command, env=environment, cwd=directory, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        self._said: list[str] = []
        self._says = threading.Condition()
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                with self._says:
                    self._said.append(line)
                    self._says.notify_all()

    def wait_said(self, pattern: str) -> str:
        """Wait until it has said this; what the pattern's group found."""
        with self._says:
            found = self._says.wait_for(
                lambda: re.search(pattern, "".join(self._said)), timeout=HANG_S
            )
        assert found, "".join(self._said)
        return found[1]

    def end(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._listener.join()


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a master with two workers of one core each."""
    directory = tmp_path_factory.mktemp("cluster")
    nodes = [Node(directory, "Master", "--port", "0")]
    try:
        address = nodes[0].wait_said(r"Starting Spark master at (spark://\S+)")
        for _ in range(2):
            nodes.append(Node(directory, "Worker", "--cores", "1", "--memory", "1g", address))
        for node in nodes[1:]:
            node.wait_said(r"(Successfully registered with master)")
        yield address
    finally:
        for node in reversed(nodes):
            node.end()


@pytest.mark.slow
@pytest.mark.timeout(4 * HANG_S)  # six Javas start, one behind the other
def test_reading_and_writing_on_a_cluster(master: str, tmp_path: Path) -> None:
    # Large ones: a task has much on its way, to the daemon too, before it comes to a late one.
    messages = [
        b"%s %d %s" % (b"late" if n % 500 == 499 else b"", n, b"x" * 2000) for n in range(4000)
    ]
    with running(tmp_path) as daemon:
        push(daemon.address, "app", *(messages[n : n + 50] for n in range(0, 4000, 50)))
        command = [sys.executable, str(Path(__file__).with_name("cluster_job.py")), master]
        command += [daemon.address, str(tmp_path), *(f"{k}={v}" for k, v in SETTINGS.items())]
        done = subprocess.run(
            command, env=os.environ | ENVIRONMENT,
            capture_output=True, text=True, timeout=3 * HANG_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        count, size, directories = json.loads(done.stdout)
        assert (count, size) == (len(messages), sum(map(len, messages)))
        assert len(directories) == 2, directories
        # Each task failed once, when it had written a part, and was tried again.
        assert len(list(tmp_path.glob("tried-*"))) == 4
        assert sorted(stored(daemon.address, "copy")) == sorted(messages)


@pytest.mark.slow
@pytest.mark.timeout(4 * HANG_S)
def test_archive_and_history_on_a_cluster(master: str, tmp_path: Path) -> None:
    """The first by spark-submit; the second, in the long run, by --master."""
    written = {
        "app": old_topics.make(tmp_path / "data", "app", 300),
        "web": old_topics.make(tmp_path / "data", "web", 50),
    }
    url = str(tmp_path / "archive")
    with running(tmp_path) as daemon:
        command = [str(SUBMIT), "--master", master, str(JOB), "archive", url, "-H", daemon.address]
        done = subprocess.run(
            command, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=HANG_S
        )
        assert done.returncode == 0, done.stderr
        check(open_store(url), written, all_of_it=True)
        assert len(archived(open_store(url))) == 350
        if LONG:
            words = ("history", url, "web", "--limit", "2", "-q", "--format", "{offset}")
            ran = log_cli(*words, "--master", master, host=daemon, **ENVIRONMENT)
            assert (ran.code, ran.out) == (0, "0\n1\n"), ran.err
