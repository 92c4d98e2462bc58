"""Archives in directories and in an object store, one Spark session for all, a daemon for each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.integration.archive.object_store import ObjectServer
from tests.support.daemon import Daemon, running

# Runs are short: Java's quick compiler and a collector without threads halve the time of a start.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def why_not() -> str | None:
    try:
        import obstore  # noqa: F401
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401

        from pyspark_logd.session import java_problem
    except ImportError as error:
        return f"{error}; `make archive` installs it"
    return java_problem()


WHY_NOT = why_not()
collect_ignore_glob = ["test_[!hr]*.py", "test_round_trip.py"] if WHY_NOT else []


@pytest.fixture(scope="session")
def session() -> Iterator[Any]:
    """Spark, started once: that takes longer than most tests."""
    from logd.archive.job_session import job_session

    with job_session("logd tests", "local[2]") as spark:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        yield spark


class Start:
    """Hands out the one session to each job, and counts how often."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.times = 0

    def __call__(self) -> AbstractContextManager[Any]:
        self.times += 1
        return nullcontext(self._session)


@pytest.fixture
def start(session: Any) -> Start:
    return Start(session)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with running(tmp_path) as started:
        yield started


@pytest.fixture(scope="session")
def object_server() -> Iterator[ObjectServer]:
    with ObjectServer() as server:
        yield server


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, str]]:
    """Where an archive may be: a URL, and what it needs to be opened."""
    if request.param == "directory":
        return str(tmp_path / "archive"), {}
    server = request.getfixturevalue("object_server")
    return server.new_bucket(), server.options


@pytest.fixture
def store(place: tuple[str, dict[str, str]]) -> Any:
    from logd.archive.object_stores import open_store

    return open_store(*place)
