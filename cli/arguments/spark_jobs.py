"""Options of the commands that run Spark jobs, the archive they use, and their Spark session."""

from __future__ import annotations

import os
import re
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments.times import parse_since
from cli.exit_codes import UsageError
from cli.output.progress import is_bar_visible, repeated
from cli.output.stdout import notice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from logd.archive.archive_job import StartSpark
    from logd.archive.object_stores import ArchiveStore
    from logd.archive.selection import TimeWindow

PROGRESS_INTERVAL_S = 0.2

Archive = Annotated[
    str, typer.Argument(metavar="ARCHIVE", help="Directory, or URL such as s3://bucket/logs.")
]
Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Spark master, such as spark://host:7077. [default: local[*]]"
    ),
]
StoreOptions = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        metavar="FILE",
        help="TOML file with options of the object store: endpoint, region, access_key_id, ...",
    ),
]


def open_archive(url: str, options: Path | None, *packages: str) -> ArchiveStore:
    """Check that `packages` (by default those of a Spark job) are installed; open the archive.

    Keys are read from a file or from the environment, never from the command line.
    """
    from logd.archive.job_session import check_installed

    check_installed(*packages)
    from logd.archive.object_stores import open_store

    return open_store(url, _read_options(options) if options is not None else {})


def _read_options(file: Path) -> dict[str, str]:
    try:
        return {name: str(value) for name, value in tomllib.loads(file.read_text()).items()}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f'{file} is not valid TOML ({error}); expected lines such as region = "eu-1"'
        ) from None


def window(since: str | None, until: str | None) -> TimeWindow:
    """The time range between --since and --until, each of which may be missing."""
    from logd.archive.selection import TimeWindow

    chosen, now_ms = TimeWindow(), time.time_ns() // 1_000_000
    if since is not None:
        chosen = chosen._replace(since_ms=parse_since(since, now_ms))
    if until is not None:
        chosen = chosen._replace(until_ms=parse_since(until, now_ms, "--until"))
    return chosen


def spark(name: str, master: str | None, quiet: bool) -> StartSpark:
    """A function that starts the session, for a job that needs one only if there is work."""
    if master is not None and not re.fullmatch(
        r"(local(\[[0-9*,]+\])?|(spark|k8s|yarn).*)", master
    ):
        raise UsageError(f"invalid Spark master {master!r}: use spark://host:7077 or local[2]")

    @contextmanager
    def start() -> Iterator[SparkSession]:
        from logd.archive.job_session import job_session

        if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has started it
            notice(f"starting Spark ({master or 'on this machine'})", quiet)
        with job_session(f"log-cli {name}", master) as spark, _task_progress(spark, name, quiet):
            yield spark

    return start


@contextmanager
def _task_progress(spark: SparkSession, name: str, quiet: bool) -> Iterator[None]:
    """A bar over the tasks of the active stages."""
    if not is_bar_visible(quiet):
        yield
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, redirect_stdout=False) as shown:
        bar = shown.add_task(name, total=None)

        def update() -> None:
            done, total = _count_tasks(spark)
            shown.update(bar, completed=done, total=total or None)

        with repeated(update, PROGRESS_INTERVAL_S):
            yield


def _count_tasks(spark: SparkSession) -> tuple[int, int]:
    """Completed tasks and all tasks of the active stages."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return sum(s.numCompletedTasks for s in known), sum(s.numTasks for s in known)
