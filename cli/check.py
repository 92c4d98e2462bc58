"""`log-cli check`: read every byte of a stopped daemon's topics, and change none."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli import exit_codes
from cli.check_report import Output, Topics, print_reports
from cli.message_formats import Table
from cli.message_output import Quiet
from cli.progress import progress

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
    from logd import store
    from logd.offline import integrity

    directories = integrity.topic_directories(data_dir, topic or [])
    lock = store.lock(data_dir)
    total_bytes = sum(map(integrity.size_of, directories))
    with progress("checking", total_bytes, quiet) as advance:
        reports = [integrity.check(directory, advance).report for directory in directories]
    print_reports(reports, output)
    del lock
    if any(report.damages or report.cut_bytes for report in reports):
        raise typer.Exit(exit_codes.LOSS)
