"""What `read` and `tail` share: their options for output, and the loop from reader to stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Annotated

import typer

from cli.completion import complete_topic
from cli.failures import TimeUp
from cli.output import Form, Render, notice, stdout
from cli.progress import Advance

if TYPE_CHECKING:
    from logd.merging import TopicsReader
    from logd.offline_reader import DirectoryReader
    from logd.reader import Reader
    from logd.reading import Batch

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
        help="A line per message from {topic} {offset} {time} {time_ms} {size} {message} and"
        " \\t \\n \\r \\0.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No notices on stderr.")]


def show(
    reader: Reader | DirectoryReader,
    render: Render,
    *,
    until_ms: int | None = None,
    advance: Advance = lambda messages: None,
) -> None:
    """Write every batch of the reader to stdout, up to the first that is not older."""
    with reader, stdout() as out:
        for batch in _before(reader.batches(), until_ms):
            out.write(render(batch))
            advance(len(batch.messages))


def follow(reader: Reader | DirectoryReader, render: Render, until_ms: int | None = None) -> None:
    """The same, each batch at once, and on and on."""
    from cli.following import Watch

    with reader, stdout() as out, suppress(TimeUp), Watch(out.fileno(), until_ms) as watch:
        for batch in _before(watch.each(reader.batches()), until_ms):
            out.write(render(batch))
            out.flush()


def show_several(
    reader: TopicsReader,
    render_each: Callable[[str], Render],
    limit: int | None,
    until_ms: int | None,
    *,
    flushed: bool,
) -> None:
    """Messages of several topics; a follower's each at once."""
    from cli.following import Watch
    from logd.reading import Batch

    with reader, stdout() as out, suppress(TimeUp), Watch(out.fileno(), until_ms) as watch:
        for message in islice(watch.each(iter(reader)), limit):
            if until_ms is not None and message.time_ms >= until_ms:
                continue
            batch = Batch(message.offset, message.time_ms, [message.value])
            out.write(render_each(message.topic)(batch))
            if flushed:
                out.flush()


def _before(batches: Iterable[Batch], until_ms: int | None) -> Iterable[Batch]:
    """Times never go back, so the first batch that is too new ends it."""
    if until_ms is None:
        return batches
    return takewhile(lambda batch: batch.time_ms < until_ms, batches)


def say_following(topic: str, quiet: bool) -> None:
    notice(f"following {topic}; Ctrl-C ends it", quiet)


def goes_to_a_file() -> bool:
    """Is stdout not the terminal, so that a bar on stderr is in nobody's way?"""
    return sys.stdout is not None and not sys.stdout.isatty()
