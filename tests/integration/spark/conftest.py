"""One Spark session for all modules, what it says on its standard error, and a daemon for each
test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, running, wait_until

SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # a quick start
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def why_no_spark() -> str | None:
    try:
        from pyspark_logd.session import java_problem
    except ImportError as error:
        return f"{error}; `make spark` installs it"
    return java_problem()


NO_SPARK = why_no_spark()
collect_ignore_glob = ["test_[!h]*.py"] if NO_SPARK else []  # all but test_here.py


@pytest.fixture(scope="session")
def stderr(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark and its Python processes write what they have to say."""
    return tmp_path_factory.mktemp("spark") / "stderr"


@pytest.fixture(scope="session")
def spark(stderr: Path) -> Iterator[Any]:
    from pyspark_logd.session import spark_session

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    kept = os.dup(2)
    with stderr.open("wb") as file:
        os.dup2(file.fileno(), 2)
        try:
            session = spark_session("logd tests", "local[2]", **SETTINGS)
        finally:
            os.dup2(kept, 2)
            os.close(kept)
    yield session
    session.stop()


@pytest.fixture
def warned(stderr: Path, spark: Any) -> Callable[[str], bool]:
    """Did Spark say this since the test began? A thread of it hands on what its processes say."""
    start = stderr.stat().st_size

    def said(text: str) -> bool:
        wait_until(lambda: text in stderr.read_bytes()[start:].decode(errors="replace"))
        return True

    return said


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with running(tmp_path) as started:
        yield started


@pytest.fixture(autouse=True)
def shown_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers and writers that run in the test's own process set this; it ends with the test."""
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
