"""`log-cli history`: what the archive and the daemon have, as one answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import connection_options, exit_codes, source, spark_jobs
from cli.exit_codes import Misuse
from cli.history_output import Rendering, show, to_topic, write_file
from cli.import_ import UntilTime
from cli.message_formats import OutputFormat, notice
from cli.message_output import Output, Quiet, Template
from cli.read import Limit, Since
from logd.wire.text import counted

if TYPE_CHECKING:
    from logd.archive.history_job import HistoryCounts

Grep = Annotated[
    str | None,
    typer.Option(metavar="REGEX", help="Only messages in which this is found (RE2's syntax)."),
]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="SQL",
        help="Only where this holds: Spark's SQL over topic, topic_id, offset, timestamp, value"
        " and text, which is value as UTF-8.",
    ),
]
ToFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write to this file; Parquet where it ends in .parquet."),
]
IntoTopic = Annotated[
    str | None, typer.Option(metavar="TOPIC", help="Write to this topic of the daemon instead.")
]
Append = Annotated[
    bool, typer.Option("--append", help="With --into: also where the topic has messages already.")
]
ArchiveOnly = Annotated[
    bool, typer.Option("--archive-only", help="Ask no daemon for what is not archived yet.")
]


def history(
    ctx: typer.Context,
    archive: spark_jobs.Archive,
    topic: spark_jobs.Topics = None,
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
    host: connection_options.Host = None,
) -> None:
    """Search the archive and the daemon as one.

    What is archived and what is still in the daemon, by time, each message once.

    \b
    log-cli history /var/archive app --since 30d --grep 'status=5..'
    log-cli history /var/archive 'web-*' --grep error --to-file errors.parquet
    log-cli history /var/archive app --where "text like '%error%'"
    log-cli history /var/archive app --since 7d --into last-week
    """
    if to_file is not None and into is not None:
        raise Misuse("give --to-file or --into, not both")
    store = spark_jobs.open_archive(archive, store_options)
    from logd.archive.history_job import History, HistoryQuery, wrong_with

    if grep is not None and (problem := wrong_with(grep)):
        raise Misuse(f"--grep {grep} is no regular expression: {problem}")
    address = connection_options.address(ctx, host)
    topics = topic or []
    question = HistoryQuery(topics, spark_jobs.window(since, until), grep, where, limit)
    job = History(
        store, None if archive_only else address, spark_jobs.spark("history", master, quiet),
        lambda text: notice(text, quiet),
    )  # fmt: skip
    rendering = Rendering(output, format, len(topics) != 1 or source.is_glob(topics[0]))
    if into is not None:
        to_topic(job, question, address, into, append=append)
    elif to_file is not None:
        write_file(job, question, rendering, to_file)
    else:
        show(job, question, rendering)
    notice(_summary(job.counts), quiet)
    for name in job.damaged:
        notice(f"{name} is damaged, and what is not archived of it left out; see `log-cli check`")
    if job.damaged:
        raise typer.Exit(exit_codes.LOSS)


def _summary(counts: HistoryCounts) -> str:
    looked = f"{counts.archived} archived and {counted(counts.live, 'other')} in the daemon"
    missing = f"; in neither any more: {counts.missing}" if counts.missing else ""
    return f"found {counted(counts.found, 'message')}, looked at {looked}{missing}"
