"""`log-cli check`: read every byte of a stopped daemon's topics. Changes nothing."""

from __future__ import annotations

from pathlib import Path

import typer

from cli import exit_codes
from cli.arguments.data_directory import DataDir, locked_topics, run_on_topics
from cli.arguments.topic_names import TopicNames
from cli.output.check_report import print_reports
from cli.output.stdout import Quiet, ReportFormat, ReportOutput


def check(
    data_dir: DataDir,
    topic: TopicNames = None,
    output: ReportOutput = ReportFormat.text,
    quiet: Quiet = False,
) -> None:
    """Check the files of a stopped daemon.

    Exits with 3 if there is damage or a torn tail.

    \b
    log-cli check --data-dir data
    """
    with locked_topics(data_dir, topic) as directories:
        is_ok = check_topics(directories, output, quiet)
    if not is_ok:
        raise typer.Exit(exit_codes.LOSS)


def check_topics(directories: list[Path], output: ReportFormat, quiet: bool) -> bool:
    from logd.offline.integrity import check

    reports = run_on_topics(
        "checking", directories, quiet, lambda topic, advance: check(topic, advance).report
    )
    print_reports(reports, output)
    return not any(report.damages or report.cut_bytes for report in reports)
