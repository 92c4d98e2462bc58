"""One Spark session for all modules, and a daemon for each test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from daemon import Daemon, running

LONG = os.environ.get("LOGD_LONG") == "1"
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def why_no_spark() -> str | None:
    try:
        from pyspark_logd.session import why_no_java
    except ImportError as error:
        return f"{error}; `make spark` installs it"
    return why_no_java()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if reason := why_no_spark():
        print(reason)
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark_logd.session import spark_session

    session = spark_session("logd tests", "local[2]", **SETTINGS)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with running(tmp_path) as started:
        yield started
