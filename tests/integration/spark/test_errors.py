"""What goes wrong is said in one line that tells what to do."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from pyspark_logd import error_code, explain
from pyspark_logd.errors import LogdFailed
from pyspark_logd.session import java_problem, spark_session
from pyspark_logd.source import DefaultSource
from tests.integration.spark.rows import logd, push
from tests.support.daemon import ROOT, Daemon, running

NOBODY = "127.0.0.1:1"


def said(work: Callable[[], Any], code: str = "bad-request") -> str:
    """The line that stands out of what is raised; nothing but Spark's own words is around it."""
    with pytest.raises(Exception, match="LogdFailed") as raised:
        work()
    text = str(raised.value)
    line = explain(raised.value)
    assert line is not None
    assert f"LogdFailed: logd error {code}: {line}" in text
    assert error_code(raised.value) == code
    assert "Traceback" not in text
    assert "\tat org.apache" not in text
    return line


@pytest.mark.parametrize("kind", ["read", "readStream"])
def test_what_load_says(spark: Any, daemon: Daemon, kind: str) -> None:
    push(daemon.address, "app", [b"x"])

    def load(address: str, topic: str, code: str = "bad-request", **options: object) -> str:
        return said(logd(getattr(spark, kind), address, topic, **options).load, code)

    line = load(NOBODY, "app", "no-connection")
    assert line.startswith(f"no logd answers at {NOBODY} (Connection refused); check the address")
    line = load(daemon.address, "nope", "not-found")
    assert line.startswith(f"no topic nope at {daemon.address}; ")
    line = load(daemon.address, "app", offset=5)
    assert line.startswith("the option offset is unknown; options are host, servers, ")
    assert load("a b", "app").startswith("'a b' is not an address; write host:port")
    assert load(daemon.address, "a,../b", "bad-topic").startswith("a topic is 1 to 128 of")


def test_a_directory_that_is_not_there(spark: Any) -> None:
    reader = spark.read.format("logd").options(dataDir="/no/such", subscribe="app")
    assert said(reader.load) == "dataDir /no/such is not a directory on this machine"


def test_a_port_where_something_else_answers(spark: Any, tmp_path: Path) -> None:
    with running(tmp_path / "other", "--http-host", "127.0.0.1:0") as other:
        line = said(lambda: logd(spark.read, other.http, "app").load(), "no-connection")
    assert "is an HTTP port" in line


def test_a_schema_with_other_columns(spark: Any, daemon: Daemon) -> None:
    push(daemon.address, "app", [b"x"])
    frame = logd(spark.read, daemon.address, "app").schema("value string").load()
    assert said(frame.count).startswith(
        "logd has no column value string; the columns are topic string, "
    )


def test_what_a_writer_says(spark: Any) -> None:
    frame = spark.range(1).selectExpr("string(id) as value")
    writer = frame.write.format("logd").mode("append").options(host=NOBODY, topic="app")
    assert said(writer.save, "no-connection").startswith(f"no logd answers at {NOBODY}")


def test_what_a_task_says(spark: Any, tmp_path: Path) -> None:
    """The daemon's own code, though a worker of Spark got it."""
    with running(tmp_path / "small", "--max-topics", "1") as small:
        push(small.address, "app", [b"x"])
        frame = spark.range(1).selectExpr("string(id) as value")
        options = {"host": small.address, "topic": "other"}
        save = frame.write.format("logd").mode("append").options(**options).save
        assert said(save, "topic-limit").startswith("the limit of 1 topics is reached")


def test_a_stream_s_writer_asks_nobody() -> None:
    """Spark makes one for every commit, also while the daemon is being restarted."""
    source = DefaultSource({"host": NOBODY, "topic": "app"})
    assert source.streamWriter(StructType().add("value", "string"), False)


def test_an_error_that_is_not_about_logd() -> None:
    assert explain(ValueError("something else")) is None
    assert explain(LogdFailed("here it is")) is None  # it is the line, nothing is around it
    assert error_code(ValueError("something else")) is None


def test_the_code_of_an_error_survives_its_travels() -> None:
    failed = pickle.loads(pickle.dumps(LogdFailed("no topic x", "not-found")))
    assert (str(failed), error_code(failed)) == ("logd error not-found: no topic x", "not-found")
    assert str(LogdFailed("Spark needs Java")) == "Spark needs Java"


# -- Java -----------------------------------------------------------------------------------------


def check(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pyspark_logd"]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_java_is_here() -> None:
    done = check({})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("can run here and finds the data source logd\n")


def test_no_java(tmp_path: Path) -> None:
    done = check({"PATH": str(tmp_path), "JAVA_HOME": ""})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "Spark needs Java 17 or later, and none was found;"
        " on Debian: apt-get install default-jre-headless\n"
    )


def test_java_home_without_java(tmp_path: Path) -> None:
    done = check({"JAVA_HOME": str(tmp_path)})
    assert f"JAVA_HOME={tmp_path} has none" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_old_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    for version, is_old in [
        ("1.8.0_392", True),
        ("11.0.21", True),
        ("17", False),
        ("21.0.1", False),
    ]:
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        java.chmod(0o755)
        assert (java_problem() is not None) == is_old, version


def test_a_session_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LogdFailed, match="Spark needs Java 17 or later"):
        spark_session("never")
