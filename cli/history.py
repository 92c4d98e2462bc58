"""`log-cli history`: search the archive and the daemon together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import exit_codes
from cli.arguments import connection, spark_jobs
from cli.arguments.message_source import is_glob
from cli.arguments.times import Since, UntilTime
from cli.arguments.topic_names import TopicGlobs
from cli.exit_codes import UsageError
from cli.output.history_output import Rendering, print_messages, write_file, write_topic
from cli.output.message_formats import OutputFormat
from cli.output.message_output import Output, Template
from cli.output.stdout import Quiet, notice, notifier
from cli.read import Limit
from logd.wire.text import counted

if TYPE_CHECKING:
    from logd.archive.history_job import HistoryCounts

Grep = Annotated[
    str | None,
    typer.Option(metavar="REGEX", help="Print only messages that match this RE2 expression."),
]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="SQL",
        help="Print only messages for which this Spark SQL condition is true. Columns: topic,"
        " topic_id, offset, timestamp, value, text (value as UTF-8).",
    ),
]
ToFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write to this file, as Parquet if it ends in .parquet."),
]
IntoTopic = Annotated[
    str | None, typer.Option(metavar="TOPIC", help="Write to this topic of the daemon.")
]
Append = Annotated[
    bool, typer.Option("--append", help="With --into, write even if the topic is not empty.")
]
ArchiveOnly = Annotated[
    bool, typer.Option("--archive-only", help="Search only the archive, not the daemon.")
]


def history(
    ctx: typer.Context,
    archive: spark_jobs.Archive,
    topic: TopicGlobs = None,
    since: Since = None,
    until: UntilTime = None,
    grep: Grep = None,
    where: Where = None,
    limit: Limit = None,
    to_file: ToFile = None,
    into: IntoTopic = None,
    append: Append = False,
    archive_only: ArchiveOnly = False,
    output: Output = OutputFormat.text,
    format: Template = None,
    master: spark_jobs.Master = None,
    store_options: spark_jobs.StoreOptions = None,
    quiet: Quiet = False,
    host: connection.Host = None,
) -> None:
    """Search the archive and the daemon together.

    Print archived messages and messages that are only in the daemon, by time, each one once.

    \b
    log-cli history /var/archive app --since 30d --grep 'status=5..'
    log-cli history /var/archive 'web-*' --grep error --to-file errors.parquet
    log-cli history /var/archive app --where "text like '%error%'"
    log-cli history /var/archive app --since 7d --into last-week
    """
    if to_file is not None and into is not None:
        raise UsageError("--to-file and --into cannot be used together")
    store = spark_jobs.open_archive(archive, store_options)
    from logd.archive.history_job import History, HistoryQuery, regex_problem

    if grep is not None and (problem := regex_problem(grep)):
        raise UsageError(f"invalid regular expression {grep!r} for --grep: {problem}")
    address = connection.address(ctx, host)
    topics = topic or []
    query = HistoryQuery(topics, spark_jobs.window(since, until), grep, where, limit)
    job = History(
        store, None if archive_only else address, spark_jobs.spark("history", master, quiet),
        notifier(quiet),
    )  # fmt: skip
    rendering = Rendering(output, format, len(topics) != 1 or is_glob(topics[0]))
    if into is not None:
        write_topic(job, query, address, into, append=append)
    elif to_file is not None:
        write_file(job, query, rendering, to_file)
    else:
        print_messages(job, query, rendering)
    notice(_summary(job.counts), quiet)
    for name in job.damaged:
        notice(f"{name} is damaged: unarchived messages were skipped; run `log-cli check`")
    if job.damaged:
        raise typer.Exit(exit_codes.LOSS)


def _summary(counts: HistoryCounts) -> str:
    searched = f"{counts.archived} in the archive and {counts.live} in the daemon"
    missing = f"; missing from both: {counts.missing}" if counts.missing else ""
    return f"found {counted(counts.found, 'message')}; searched {searched}{missing}"
