"""`log-cli archive`: archive topics as Parquet files, by topic and hour."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from cli import exit_codes
from cli.arguments import connection, spark_jobs
from cli.arguments.topic_names import TopicGlobs
from cli.output.number_text import bytes_text
from cli.output.stdout import (
    Quiet,
    ReportFormat,
    ReportOutput,
    notice,
    notifier,
    print_report,
    table,
)
from logd.wire.text import counted

if TYPE_CHECKING:
    from logd.archive.archive_job import ArchiveReport

HEAD = (
    "TOPIC", "MESSAGES", "ARCHIVED", "WRITTEN", "LOST", "EXPIRED", "PENDING", "FILES", "BYTES",
)  # fmt: skip

List = Annotated[
    bool, typer.Option("--list", help="Print the paths of the archive's current files and exit.")
]
NoJoin = Annotated[bool, typer.Option("--no-join", help="Do not join small files.")]


def archive(
    ctx: typer.Context,
    archive: spark_jobs.Archive,
    topic: TopicGlobs = None,
    list_: List = False,
    no_join: NoJoin = False,
    master: spark_jobs.Master = None,
    store_options: spark_jobs.StoreOptions = None,
    output: ReportOutput = ReportFormat.text,
    quiet: Quiet = False,
    host: connection.Host = None,
) -> None:
    """Archive the messages that are not in the archive yet.

    This command can be repeated at any time.

    \b
    log-cli archive /var/archive
    log-cli archive s3://bucket/logs 'web-*' --store-options keys.toml
    """
    store = spark_jobs.open_archive(archive, store_options)
    if list_:
        from logd.archive.manifest import Manifest

        print_report(ReportFormat.text, [], sorted(Manifest(store).existing().files))
        return
    from logd.archive.archive_job import Archiver

    start = spark_jobs.spark("archive", master, quiet)
    archiver = Archiver(store, connection.address(ctx, host), start, notifier(quiet))
    report = archiver.run(topic or [], compacts=not no_join)
    counts = [one._asdict() for one in report.topics]
    as_object = {"archive": store.url} | report._asdict() | {"topics": counts}
    print_report(output, [as_object], _lines(report))
    for name in report.damaged:
        notice(f"skipped {name}: it is damaged; run `log-cli check`, then repeat this command")
    if report.damaged:
        raise typer.Exit(exit_codes.LOSS)


def _lines(report: ArchiveReport) -> Iterator[str]:
    yield from table([HEAD, *((*each[:-1], bytes_text(each.bytes)) for each in report.topics)])
    if report.joined_files:
        yield f"joined {report.joined_files} small files into {report.into_files}"
    if report.removed_files:
        yield f"removed {counted(report.removed_files, 'obsolete file')}"
