"""`log-cli import`: write archived messages back to a daemon."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.arguments import connection, spark_jobs
from cli.arguments.times import Since, UntilTime
from cli.arguments.topic_names import TopicGlobs
from cli.output.stdout import Quiet, ReportFormat, ReportOutput, notifier, print_report, table

Into = Annotated[
    str | None,
    typer.Option(metavar="TOPIC", help="Write to this topic. [default: the original topic]"),
]
HEAD = ("TOPIC", "INTO", "MESSAGES", "SKIPPED", "WRITTEN")


def import_(
    ctx: typer.Context,
    archive: spark_jobs.Archive,
    topic: TopicGlobs = None,
    into: Into = None,
    since: Since = None,
    until: UntilTime = None,
    master: spark_jobs.Master = None,
    store_options: spark_jobs.StoreOptions = None,
    output: ReportOutput = ReportFormat.text,
    quiet: Quiet = False,
    host: connection.Host = None,
) -> None:
    """Write archived messages to a daemon.

    The messages keep their order. If the command is repeated, messages that were already imported
    are skipped.

    \b
    log-cli import /var/archive app --into app-again --since 2026-01-31T00:00:00Z
    """
    store = spark_jobs.open_archive(archive, store_options)
    from logd.archive.import_job import import_ as run

    counts = run(
        store, connection.address(ctx, host), topic or [], into, spark_jobs.window(since, until),
        spark_jobs.spark("import", master, quiet), notifier(quiet),
    )  # fmt: skip
    as_object = {"archive": store.url, "topics": [one._asdict() for one in counts]}
    rows = [(c.topic, c.into, c.messages, c.already, c.written) for c in counts]
    print_report(output, [as_object], table([HEAD, *rows]))
