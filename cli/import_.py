"""`log-cli import`: archived messages back into a daemon."""

from __future__ import annotations

from typing import Annotated

import typer

from cli import connection_options, spark_jobs
from cli.message_formats import Table, json_line, notice, stdout, table
from cli.message_output import Quiet
from cli.read import Since

Into = Annotated[
    str | None,
    typer.Option(metavar="TOPIC", help="Into this topic. [default: the one it was]"),
]
UntilTime = Annotated[str | None, typer.Option(metavar="TIME", help="End before this time.")]
HEAD = ("TOPIC", "INTO", "MESSAGES", "ALREADY", "WRITTEN")


def import_(
    ctx: typer.Context,
    archive: spark_jobs.Archive,
    topic: spark_jobs.Topics = None,
    into: Into = None,
    since: Since = None,
    until: UntilTime = None,
    master: spark_jobs.Master = None,
    store_options: spark_jobs.StoreOptions = None,
    output: spark_jobs.Output = Table.text,
    quiet: Quiet = False,
    host: connection_options.Host = None,
) -> None:
    """Write archived messages to a daemon, each once.

    In their order, and none again when it is run again.

    \b
    log-cli import /var/archive app --into app-again --since 2026-01-31T00:00:00Z
    """
    store = spark_jobs.open_archive(archive, store_options)
    from logd.archive.import_job import import_ as run

    counts = run(
        store, connection_options.address(ctx, host), topic or [], into,
        spark_jobs.window(since, until),
        spark_jobs.spark("import", master, quiet), lambda text: notice(text, quiet),
    )  # fmt: skip
    with stdout() as out:
        if output is Table.json:
            topics = [one._asdict() for one in counts]
            out.write(json_line({"archive": store.url, "topics": topics}))
        else:
            rows = [(c.topic, c.into, c.messages, c.already, c.written) for c in counts]
            out.write(f"{table([HEAD, *rows])}\n".encode())
