"""`log-cli archive`: topics into Parquet files, by topic and hour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli import connection_options, exit_codes, spark_jobs
from cli.message_formats import Table, json_line, notice, stdout, table
from cli.message_output import Quiet
from cli.numbers import bytes_text
from logd.wire.text import counted

if TYPE_CHECKING:
    from logd.archive.archive_job import ArchiveReport

HEAD = ("TOPIC", "MESSAGES", "ALREADY", "WRITTEN", "LOST", "GONE", "HELD", "FILES", "BYTES")

List = Annotated[
    bool, typer.Option("--list", help="Print the paths of the files that count, and do no more.")
]
NoJoin = Annotated[bool, typer.Option("--no-join", help="Leave small files as they are.")]


def archive(
    ctx: typer.Context,
    archive: spark_jobs.Archive,
    topic: spark_jobs.Topics = None,
    list_: List = False,
    no_join: NoJoin = False,
    master: spark_jobs.Master = None,
    store_options: spark_jobs.StoreOptions = None,
    output: spark_jobs.Output = Table.text,
    quiet: Quiet = False,
    host: connection_options.Host = None,
) -> None:
    """Archive what the daemon has and the archive has not.

    Safe to run again at any time.

    \b
    log-cli archive /var/archive
    log-cli archive s3://bucket/logs 'web-*' --store-options keys.toml
    """
    store = spark_jobs.open_archive(archive, store_options)
    if list_:
        from logd.archive.manifest import Manifest

        files = Manifest(store).existing().files
        with stdout() as out:
            out.write("".join(f"{path}\n" for path in sorted(files)).encode())
        return
    from logd.archive.archive_job import Archiver

    start = spark_jobs.spark("archive", master, quiet)
    archiver = Archiver(
        store, connection_options.address(ctx, host), start, lambda text: notice(text, quiet)
    )
    report = archiver.run(topic or [], compacts=not no_join)
    _print(store.url, report, output)
    for name in report.damaged:
        notice(f"{name} is damaged and was left out; see `log-cli check`, then run this again")
    if report.damaged:
        raise typer.Exit(exit_codes.LOSS)


def _print(url: str, report: ArchiveReport, output: Table) -> None:
    with stdout() as out:
        if output is Table.json:
            counts = [one._asdict() for one in report.topics]
            out.write(json_line({"archive": url} | report._asdict() | {"topics": counts}))
            return
        rows = [(*counts[:-1], bytes_text(counts.bytes)) for counts in report.topics]
        out.write(f"{table([HEAD, *rows])}\n".encode())
        if report.joined_files:
            joined = f"{report.joined_files} small files became {report.into_files}"
            out.write(f"{joined}\n".encode())
        if report.removed_files:
            removed = f"removed {counted(report.removed_files, 'file')} of no more use"
            out.write(f"{removed}\n".encode())
