"""`log-cli topics`: list the topics, their offsets and sizes."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.arguments import connection
from cli.arguments.data_directory import OfflineDataDir
from cli.arguments.message_source import MessageSource
from cli.output.stdout import Quiet, ReportFormat, ReportOutput, notice, print_report, table

Glob = Annotated[
    str, typer.Argument(metavar="GLOB", help="List only topics that match, such as 'app-*'.")
]


def topics(
    ctx: typer.Context,
    glob: Glob = "*",
    output: ReportOutput = ReportFormat.text,
    quiet: Quiet = False,
    data_dir: OfflineDataDir = None,
    host: connection.Host = None,
) -> None:
    """List topics with their offsets and sizes.

    FIRST is the oldest offset, NEXT the offset of the next message.

    \b
    log-cli topics 'app-*' -o json
    """
    found = MessageSource(ctx, host, data_dir, quiet).topics(glob)
    heads = [tuple(name.upper() for name in topic._fields) for topic in found[:1]]
    print_report(output, (topic._asdict() for topic in found), table([*heads, *found]))
    if not found and output is ReportFormat.text:
        notice(f"no topic matches {glob}", quiet)
