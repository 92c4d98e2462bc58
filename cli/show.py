"""What `read` and `tail` share: their options for output, and the loop from reader to stdout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.output import Form, Render, notice, stdout

if TYPE_CHECKING:
    from logd.reader import Reader

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Its name.", show_default=False)]
Follow = Annotated[
    bool, typer.Option("--forever", "-f", help="At the end, wait for more. Ctrl-C ends it.")
]
Output = Annotated[
    Form,
    typer.Option(
        "-o",
        "--output",
        help="text: each message and a line end. json: one object per line; message_base64 where"
        " a message is not UTF-8. raw: the bytes of the messages and nothing between them.",
    ),
]
Template = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="TEMPLATE",
        help="A line per message made from {topic} {offset} {time} {time_ms} {message}, \\t, \\n.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No notices on stderr.")]


def show(reader: Reader, render: Render, follow: bool) -> None:
    """Write every batch of the reader to stdout; a follower's at once."""
    with reader, stdout() as out:
        for batch in reader.batches():
            out.write(render(batch))
            if follow:
                out.flush()


def say_following(topic: str, follow: bool, quiet: bool) -> None:
    if follow:
        notice(f"following {topic}; Ctrl-C ends it", quiet)
