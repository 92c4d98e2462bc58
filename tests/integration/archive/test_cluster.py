"""The jobs on a real cluster: a master and two workers, each a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from logd.archive.object_stores import open_store
from tests.integration.archive import old_topics
from tests.integration.archive.commands import HANG_S, log_cli
from tests.integration.archive.reading import archived, check
from tests.integration.spark.test_cluster import master as master  # a fixture
from tests.support.daemon import ROOT, running

SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
JOB = ROOT / "cli" / "spark" / "log_cli.py"


@pytest.mark.slow
@pytest.mark.timeout(2 * HANG_S)
def test_archive_and_history_on_a_cluster(master: str, tmp_path: Path) -> None:
    """The first by --master, the second by spark-submit."""
    written = {
        "app": old_topics.make(tmp_path / "data", "app", 300),
        "web": old_topics.make(tmp_path / "data", "web", 50),
    }
    url = tmp_path / "archive"
    loopback = {"SPARK_LOCAL_IP": "127.0.0.1"}
    with running(tmp_path) as daemon:
        ran = log_cli("archive", url, "--master", master, host=daemon, **loopback)
        assert ran.code == 0, ran.err
        check(open_store(str(url)), written, all_of_it=True)
        assert len(archived(open_store(str(url)))) == 350
        words = ["history", url, "web", "--limit", "2", "-q", "-o", "json"]
        done = subprocess.run(
            [str(SUBMIT), "--master", master, str(JOB), *map(str, words), "-H", daemon.address],
            env=os.environ | loopback | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.partition(', "time"')[0] for line in lines] == [
        '{"topic": "web", "offset": 0',
        '{"topic": "web", "offset": 1',
    ]
