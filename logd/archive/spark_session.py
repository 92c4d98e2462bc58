"""A Spark session for a job, and what went wrong in one as a sentence.

Under `spark-submit` the session is the one that it made. Otherwise one is started: on this machine,
or with `master` on a cluster. Spark talks much; it talks into a file.
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
def session(name: str, master: str | None = None) -> Iterator[SparkSession]:
    """A session that ends with the block."""
    check_installed()
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not is_submitted:
        check_java()
        check_master(master)
    with tempfile.TemporaryFile() as log:
        spark = _start(name, None if is_submitted else master or "local[*]", log)
        try:
            with explained():
                yield spark
        finally:
            spark.stop()


def _start(name: str, master: str | None, log: IO[bytes]) -> SparkSession:
    from pyspark.errors import PySparkException

    from pyspark_logd import DefaultSource
    from pyspark_logd.spark_session import spark_session

    if (master or "").startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    try:
        with _stderr_to(log if master is not None else None):
            spark = spark_session(name, master, **_SETTINGS)
    except (PySparkException, _java_error()) as error:
        raise SparkError(f"Spark does not start: {_reason(str(error))}{_said(log)}") from None
    # Spark finds the source by its name only where it is installed for good, not from a checkout.
    spark.dataSource.register(DefaultSource)
    return spark


@contextmanager
def _stderr_to(log: IO[bytes] | None) -> Iterator[None]:
    """Java inherits it; this process has its own back at once."""
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


def _said(log: IO[bytes]) -> str:
    log.seek(0)
    lines = [line for line in log.read(1 << 20).decode("utf-8", "replace").splitlines() if line]
    return f" ({lines[-1].strip()[:300]})" if lines else ""


# -- what has to be there -------------------------------------------------------------------------


def check_installed(*names: str) -> None:
    """Are these packages there? Without names: those that a job needs."""
    for name in names or ("numpy", "pandas", "pyarrow", "pyspark"):
        if importlib.util.find_spec(name) is None:
            raise SparkError(f"this needs {name}, which is not installed here: {INSTALL}")


def check_java() -> None:
    from pyspark_logd.spark_session import java_problem

    if reason := java_problem():
        raise SparkError(reason)


def check_master(master: str | None) -> None:
    """Spark itself would try for a minute, and then not say why."""
    match = _MASTER.match(master or "")
    if match is None:
        return
    try:
        socket.create_connection((match[1], int(match[2])), 10).close()
    except OSError as error:
        raise SparkError(
            f"no Spark master answers at {match[0]} ({addresses.reason(error)}); check --master"
        ) from None


# -- what went wrong ------------------------------------------------------------------------------


@contextmanager
def explained() -> Iterator[None]:
    """Errors of Spark as one of logd's own, where it is one; else as one sentence."""
    logging.getLogger("SQLQueryContextLogger").disabled = True  # it prints what is raised, too
    from pyspark.errors import PySparkException

    from pyspark_logd import error_code, explain

    try:
        yield
    except (PySparkException, _java_error()) as error:
        said = explain(error)
        raise (_of_source(said, error_code(error)) if said else translated(str(error))) from None


def translated(text: str) -> Exception:
    """The error that a task raised, out of the traces around it."""
    for name, said in reversed(_RAISED.findall(text)):
        kind: Any = getattr(errors, name, None)
        if name == "ConnectionLost":
            return addresses.ConnectionLost(said)
        if isinstance(kind, type) and issubclass(kind, LogdError):
            return kind(said.removeprefix(f"{kind.code}: "))
    return SparkError(f"the job failed: {_reason(text)}")


def _of_source(said: str, code: str | None) -> Exception:
    """The data source has one class of errors for all of them."""
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


def _java_error() -> type[Exception]:
    from py4j.protocol import Py4JError

    error: type[Exception] = Py4JError
    return error
