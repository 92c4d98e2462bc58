"""`log-cli repair`: remove torn tails; with --accept-loss, replace damage by gaps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import exit_codes
from cli.arguments.data_directory import DataDir, locked_topics, run_on_topics
from cli.arguments.topic_names import TopicNames
from cli.output.check_report import print_reports
from cli.output.progress import Advance
from cli.output.stdout import Quiet, ReportFormat, ReportOutput, notice

if TYPE_CHECKING:
    from logd.repair import RepairReport

DryRun = Annotated[
    bool, typer.Option("--dry-run", "-n", help="Print what would be done; change nothing.")
]
AcceptLoss = Annotated[
    bool, typer.Option("--accept-loss", help="Replace damaged data by a gap; this is permanent.")
]


def repair(
    data_dir: DataDir,
    topic: TopicNames = None,
    dry_run: DryRun = False,
    accept_loss: AcceptLoss = False,
    output: ReportOutput = ReportFormat.text,
    quiet: Quiet = False,
) -> None:
    """Repair the files of a stopped daemon.

    A torn tail is copied to quarantine/ and removed. Other damage is not changed without
    --accept-loss, which discards the damaged messages permanently; readers then report a gap.
    Exits with 3 if damage remains.

    \b
    log-cli repair --data-dir data --dry-run
    """
    from logd.offline import integrity

    def run(directory: Path, advance: Advance) -> RepairReport:
        return integrity.repair(
            directory, accept_loss=accept_loss, dry_run=dry_run, progress=advance
        )

    with locked_topics(data_dir, topic) as directories:
        what = "reading" if dry_run else "repairing"
        reports = run_on_topics(what, directories, quiet, run)
        print_reports(reports, output, repaired=not dry_run)
    if dry_run:
        notice("dry run: no file was changed", quiet)
    if any(report.damages for report in reports):
        notice("damage remains; use --accept-loss to discard the damaged messages", quiet)
        raise typer.Exit(exit_codes.LOSS)
