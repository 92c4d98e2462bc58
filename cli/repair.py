"""`log-cli repair`: cut torn tails; with --accept-loss, put gaps in the place of damage."""

from __future__ import annotations

from typing import Annotated

import typer

from cli import exit_codes
from cli.check import DataDir
from cli.check_report import Output, Topics, print_reports
from cli.message_formats import Table, notice
from cli.message_output import Quiet
from cli.progress import progress

DryRun = Annotated[
    bool, typer.Option("--dry-run", "-n", help="Say what would be done, and do nothing.")
]
AcceptLoss = Annotated[
    bool,
    typer.Option("--accept-loss", help="Go on without what is damaged: a gap takes its place."),
]


def repair(
    data_dir: DataDir,
    topic: Topics = None,
    dry_run: DryRun = False,
    accept_loss: AcceptLoss = False,
    output: Output = Table.text,
    quiet: Quiet = False,
) -> None:
    """Repair the files of a stopped daemon. Exits 3 if damage is left.

    A torn tail is copied to quarantine/ and cut. Other damage is left alone unless --accept-loss is
    given: then the messages are gone for good, and a gap that readers report stands for them.

    \b
    log-cli repair --data-dir data --dry-run
    """
    from logd import store
    from logd.offline import integrity

    directories = integrity.topic_directories(data_dir, topic or [])
    lock = store.lock(data_dir)
    total_bytes = sum(map(integrity.size_of, directories))
    with progress("reading" if dry_run else "repairing", total_bytes, quiet) as advance:
        reports = [
            integrity.repair(directory, accept_loss=accept_loss, dry_run=dry_run, progress=advance)
            for directory in directories
        ]
    print_reports(reports, output, repaired=not dry_run)
    del lock
    if dry_run:
        notice("nothing was changed: --dry-run", quiet)
    if any(report.damages for report in reports):
        notice("damage is left; --accept-loss goes on without what is lost", quiet)
        raise typer.Exit(exit_codes.LOSS)
