"""What the commands on Spark share: their options, the session, and a look at its tasks."""

from __future__ import annotations

import os
import re
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.completion import complete_topic
from cli.exit_codes import Misuse
from cli.message_formats import Table, notice
from cli.points_in_time import parse_since
from cli.progress import is_watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from logd.archive.archive_job import StartSpark
    from logd.archive.object_stores import ArchiveStore
    from logd.archive.selection import TimeWindow

LOOK_S = 0.2  # between two looks at how far the tasks are

Archive = Annotated[
    str,
    typer.Argument(metavar="ARCHIVE", help="A directory, or a URL such as s3://bucket/logs."),
]
Topics = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TOPIC",
        help="Their names, or globs such as 'web-*'; none: all.",
        show_default=False,
        autocompletion=complete_topic,
    ),
]
Master = Annotated[
    str | None,
    typer.Option(metavar="URL", help="A Spark cluster: spark://host:7077. [default: local[*]]"),
]
Output = Annotated[Table, typer.Option("-o", "--output", help="text: a table. json: one object.")]
StoreOptions = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        metavar="FILE",
        help="TOML with what the object store needs: endpoint, region, access_key_id, ...",
    ),
]


def open_archive(url: str, options: Path | None, *packages: str) -> ArchiveStore:
    """Where the packages that the command needs are there; without names, those of a Spark job.

    Keys come from a file or from the environment, never from the command line.
    """
    from logd.archive.spark_session import check_installed

    check_installed(*packages)
    from logd.archive.object_stores import open_store

    settings: dict[str, str] = {}
    if options is not None:
        try:
            settings = {
                name: str(value) for name, value in tomllib.loads(options.read_text()).items()
            }
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise Misuse(
                f'{options} is no TOML ({error}); write lines such as region = "eu-1"'
            ) from None
    return open_store(url, settings)


def window(since: str | None, until: str | None) -> TimeWindow:
    """A stretch of time; from the first on, or without an end, as far as nothing is given."""
    from logd.archive.selection import TimeWindow

    chosen, now_ms = TimeWindow(), time.time_ns() // 1_000_000
    if since is not None:
        chosen = chosen._replace(since_ms=parse_since(since, now_ms))
    if until is not None:
        chosen = chosen._replace(until_ms=parse_since(until, now_ms, "--until"))
    return chosen


def spark(name: str, master: str | None, quiet: bool) -> StartSpark:
    """Starts a session, where a job finds that it needs one."""
    if master is not None and not re.fullmatch(
        r"(local(\[[0-9*,]+\])?|(spark|k8s|yarn).*)", master
    ):
        raise Misuse(f"--master {master} is no Spark master; write spark://host:7077 or local[2]")

    @contextmanager
    def start() -> Iterator[SparkSession]:
        from logd.archive.spark_session import session

        if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has started it
            notice(f"starting Spark ({master or 'on this machine'})", quiet)
        with session(f"log-cli {name}", master) as spark, _watched(spark, name, quiet):
            yield spark

    return start


@contextmanager
def _watched(spark: SparkSession, name: str, quiet: bool) -> Iterator[None]:
    """A bar over the tasks of whatever runs, where somebody looks at it."""
    if not is_watched(quiet):
        yield
        return
    from rich.console import Console
    from rich.progress import Progress

    over = threading.Event()
    with Progress(console=Console(stderr=True), transient=True, redirect_stdout=False) as shown:
        bar = shown.add_task(name, total=None)

        def look() -> None:
            while not over.wait(LOOK_S):
                done, total = _tasks(spark)
                shown.update(bar, completed=done, total=total or None)

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


def _tasks(spark: SparkSession) -> tuple[int, int]:
    """How many tasks of the stages that run are done, and how many they have."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return sum(s.numCompletedTasks for s in known), sum(s.numTasks for s in known)
