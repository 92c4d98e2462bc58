"""`log-cli tail`: the newest messages, and what comes after them."""

from __future__ import annotations

from typing import Annotated

import typer

from cli import connect
from cli.output import Form, renderer
from cli.show import Follow, Output, Quiet, Template, Topic, say_following, show

Count = Annotated[int, typer.Option("-n", "--lines", min=0, help="How many.")]


def tail(
    ctx: typer.Context,
    topic: Topic,
    lines: Count = 10,
    forever: Follow = False,
    output: Output = Form.text,
    format: Template = None,
    quiet: Quiet = False,
    host: connect.Host = None,
) -> None:
    """Print the newest messages of a topic."""
    render = renderer(topic, output, format)

    from logd.reader import Reader

    limit = None if forever else lines
    reader = Reader(connect.address(ctx, host), topic, tail=lines, limit=limit, follow=forever)
    say_following(topic, forever, quiet)
    show(reader, render, forever)
