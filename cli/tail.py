"""`log-cli tail`: print the newest messages, and optionally those that follow."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.arguments import connection
from cli.arguments.data_directory import OfflineDataDir
from cli.arguments.message_source import MessageSource
from cli.arguments.topic_names import Topic
from cli.output.message_formats import OutputFormat
from cli.output.message_output import Follow, MessagePrinter, Output, Template
from cli.output.stdout import Quiet
from cli.read import print_topic

Count = Annotated[
    int, typer.Option("-n", "--lines", min=0, metavar="N", help="Number of messages.")
]


def tail(
    ctx: typer.Context,
    topic: Topic,
    lines: Count = 10,
    forever: Follow = False,
    output: Output = OutputFormat.text,
    format: Template = None,
    quiet: Quiet = False,
    data_dir: OfflineDataDir = None,
    host: connection.Host = None,
) -> None:
    """Print the newest messages of a topic.

    \b
    log-cli tail app -n 20 --forever
    """
    source = MessageSource(ctx, host, data_dir, quiet)
    bounds = {"tail": lines, "limit": None if forever else lines}
    print_topic(source, topic, MessagePrinter(output, format), bounds, forever)
