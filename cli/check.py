"""`log-cli check`: read every byte of a stopped daemon's topics, and change none."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli import failures
from cli.output import Table
from cli.progress import progress
from cli.reports import Output, Topics, print_reports
from cli.show import Quiet

DataDir = Annotated[
    Path,
    typer.Option("--data-dir", exists=True, file_okay=False, envvar="LOGD_DATA_DIR", metavar="DIR",
                 help="The data directory of a stopped daemon."),
]  # fmt: skip


def check(
    data_dir: DataDir,
    topic: Topics = None,
    output: Output = Table.text,
    quiet: Quiet = False,
) -> None:
    """Check the files of a stopped daemon. Exits 3 if there is damage or a torn tail.

    \b
    log-cli check --data-dir data
    """
    from logd import offline, store

    directories = offline.topic_directories(data_dir, topic or [])
    lock = store.lock(data_dir)
    total_bytes = sum(map(offline.size_of, directories))
    with progress("checking", total_bytes, quiet) as advance:
        reports = [offline.check(directory, advance).report for directory in directories]
    print_reports(reports, output)
    del lock
    if any(report.damages or report.cut_bytes for report in reports):
        raise typer.Exit(failures.LOSS)
