"""The Spark session of a job, and the translation of its errors.

Under `spark-submit` the job uses its session. Otherwise a session is started on this machine, or on
the cluster `master`. The output of Spark goes to a temporary file.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from logd import errors
from logd.errors import LogdError, SparkError
from logd.wire import addresses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INSTALL = "pip install 'logd[spark]'"
_RAISED = re.compile(r"^(?:\w+\.)*(\w+): (.+)$", re.MULTILINE)
_MASTER = re.compile(r"spark://([^:/,]+):([0-9]+)")
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
}


@contextmanager
def job_session(name: str, master: str | None = None) -> Iterator[SparkSession]:
    """A session that is stopped at the end of the block."""
    check_installed()
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not is_submitted:
        check_master(master)
    with tempfile.TemporaryFile() as log:
        spark = _start(name, None if is_submitted else master or "local[*]", log)
        try:
            with translated_errors():
                yield spark
        finally:
            spark.stop()


def _start(name: str, master: str | None, log: IO[bytes]) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from pyspark_logd import DefaultSource
    from pyspark_logd.errors import LogdFailed
    from pyspark_logd.session import spark_session

    if (master or "").startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    try:
        with _stderr_to(log if master is not None else None):
            spark = spark_session(name, master, **_SETTINGS)
    except LogdFailed as error:
        raise SparkError(error.text) from None
    except (PySparkException, Py4JError) as error:
        raise SparkError(f"Spark does not start: {_reason(str(error))}{_last_line(log)}") from None
    # Spark finds the source by name only if the package is installed, not in a checkout.
    spark.dataSource.register(DefaultSource)
    return spark


@contextmanager
def _stderr_to(log: IO[bytes] | None) -> Iterator[None]:
    """Java inherits the redirected standard error; this process restores its own."""
    if log is None:
        yield
        return
    sys.stderr.flush()
    saved = os.dup(2)
    os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = [line for line in log.read(1 << 20).decode("utf-8", "replace").splitlines() if line]
    return f" ({lines[-1].strip()[:300]})" if lines else ""


# -- checks ---------------------------------------------------------------------------------------


def check_installed(*names: str) -> None:
    """Raise SparkError if one of these packages is missing; by default, those of a job."""
    for name in names or ("numpy", "pandas", "pyarrow", "pyspark"):
        if importlib.util.find_spec(name) is None:
            raise SparkError(f"the package {name} is not installed; install it with: {INSTALL}")


def check_master(master: str | None) -> None:
    """Connect to the master first: Spark would retry for a minute without giving a reason."""
    match = _MASTER.match(master or "")
    if match is None:
        return
    try:
        socket.create_connection((match[1], int(match[2])), 10).close()
    except OSError as error:
        raise SparkError(
            f"no Spark master answers at {match[0]} ({addresses.reason(error)}); check --master"
        ) from None


# -- errors ---------------------------------------------------------------------------------------


@contextmanager
def translated_errors() -> Iterator[None]:
    """Convert errors of Spark to the error of logd that caused them, or to SparkError."""
    # It prints errors that are raised anyway.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from pyspark_logd import error_code, explain

    try:
        yield
    except (PySparkException, Py4JError) as error:
        said = explain(error)
        raise (
            _of_source(said, error_code(error)) if said else translate_error(str(error))
        ) from None


def translate_error(text: str) -> Exception:
    """The error that a task raised, extracted from the tracebacks."""
    for name, said in reversed(_RAISED.findall(text)):
        kind: Any = getattr(errors, name, None)
        if name == "ConnectionLost":
            return addresses.ConnectionLost(said)
        if isinstance(kind, type) and issubclass(kind, LogdError):
            return kind(said.removeprefix(f"{kind.code}: "))
    return SparkError(f"the job failed: {_reason(text)}")


def _of_source(said: str, code: str | None) -> Exception:
    """The error for a code of the data source, which has one class for all errors."""
    if code == "data-loss":
        return errors.OutOfRange(said)
    if code == "no-connection":
        return addresses.ConnectionLost(said)
    return SparkError(said)


def _reason(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = [line for line in lines if re.match(r"(\w+\.)*\w+(Error|Exception): ", line)]
    java = [line.lstrip(": ") for line in lines if not line.startswith("An error occurred while")]
    return (python[-1:] + java + ["no reason given"])[0][:300]
