"""`log-cli tail`: the newest messages, and what comes after them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli import connection_options, source
from cli.message_formats import OutputFormat, is_raw, renderer
from cli.message_output import Follow, Output, Quiet, Template, Topic, follow, say_following, show

Count = Annotated[int, typer.Option("-n", "--lines", min=0, metavar="N", help="How many.")]


def tail(
    ctx: typer.Context,
    topic: Topic,
    lines: Count = 10,
    forever: Follow = False,
    output: Output = OutputFormat.text,
    format: Template = None,
    quiet: Quiet = False,
    data_dir: source.Files = None,
    host: connection_options.Host = None,
) -> None:
    """Print the newest messages of a topic.

    \b
    log-cli tail app -n 20 --forever
    """
    render = renderer(topic, output, format)
    place: dict[str, Any] = {"tail": lines}
    if forever and data_dir is None and source.wait_for_topic(ctx, topic, host, None, quiet):
        place = source.from_first(place)
    reader = source.reader(
        ctx,
        topic,
        host=host,
        data_dir=data_dir,
        follow=forever,
        quiet=quiet,
        limit=None if forever else lines,
        **place,
    )
    if forever:
        say_following(topic, quiet)
        follow(reader, render, raw=is_raw(output, format))
    else:
        show(reader, render, raw=is_raw(output, format))
