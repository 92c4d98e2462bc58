"""What `read` and `tail` share: their options for output, and the loop from reader to stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from cli.completion import complete_topic
from cli.message_formats import OutputFormat, Render, notice, stdout
from cli.progress import Advance

if TYPE_CHECKING:
    from logd.client.reader import Reader
    from logd.client.topics_reader import TopicsReader
    from logd.offline.reader import DirectoryReader

Topic = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC", help="Its name.", show_default=False, autocompletion=complete_topic
    ),
]
Follow = Annotated[
    bool, typer.Option("--forever", "-f", help="At the end, wait for more. Ctrl-C ends it.")
]
Output = Annotated[
    OutputFormat,
    typer.Option(
        "-o",
        "--output",
        help="text: each message and a line end. json: one object per line; message_base64 where"
        " a message is not UTF-8. raw: the bytes of the messages and nothing between them,"
        " unchanged on a terminal too.",
    ),
]
Template = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="TEMPLATE",
        help="A line per message from {topic} {offset} {time} {time_ms} {size} {message} (or"
        " {value}, the same) and \\t \\n \\r \\0.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No notices on stderr.")]


def show(
    reader: Reader | DirectoryReader,
    render: Render,
    *,
    raw: bool = False,
    advance: Advance = lambda messages: None,
) -> None:
    """Write every batch of the reader to stdout."""
    with reader, stdout(raw=raw) as out:
        for batch in reader.batches():
            out.write(render(batch))
            advance(len(batch.messages))


def follow(reader: Reader | DirectoryReader, render: Render, *, raw: bool = False) -> None:
    """The same, each batch at once, and on and on."""
    from cli.follow import Watch

    with reader, stdout(raw=raw) as out, Watch(out.fileno()) as watch:
        for batch in watch.each(reader.batches()):
            out.write(render(batch))
            out.flush()


def show_consumed(
    open_reader: Callable[[Callable[[], int | None]], Reader],
    render: Render,
    *,
    is_following: bool,
    raw: bool = False,
    advance: Advance = lambda messages: None,
) -> None:
    """The same with a cursor, which moves when a message was read from stdout.

    The reader is closed, and its cursor saved, before stdout is given up.
    """
    from cli.cursor_output import Consumed
    from cli.follow import Watch

    with stdout(raw=raw) as out:
        consumed = Consumed(out.fileno(), lambda batch: out.rendered(render(batch)))
        watch = Watch(out.fileno()) if is_following else nullcontext()
        with open_reader(consumed.next_offset) as reader, watch as watching:
            batches = reader.batches() if watching is None else watching.each(reader.batches())
            for batch in batches:
                consumed.write(batch, reader.save_if_due)
                advance(len(batch.messages))
            consumed.finish(reader.save_if_due)


def show_several(
    reader: TopicsReader,
    render_each: Callable[[str], Render],
    limit: int | None,
    *,
    flushed: bool,
    raw: bool = False,
) -> None:
    """Messages of several topics; a follower's each at once."""
    from cli.follow import Watch
    from logd.wire.read_state import Batch

    with reader, stdout(raw=raw) as out, Watch(out.fileno()) as watch:
        for message in islice(watch.each(iter(reader)), limit):
            batch = Batch(message.offset, message.time_ms, [message.value])
            out.write(render_each(message.topic)(batch))
            if flushed:
                out.flush()


def say_following(topic: str, quiet: bool) -> None:
    notice(f"following {topic}; Ctrl-C ends it", quiet)


def goes_to_a_file() -> bool:
    """Is stdout not the terminal, so that a bar on stderr is in nobody's way?"""
    return sys.stdout is not None and not sys.stdout.isatty()
