"""Prints the messages of a reader; the output options of `read`, `tail` and `history`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from cli.output.message_formats import OutputFormat, Render, each_renderer, is_raw, renderer
from cli.output.output_watch import watched
from cli.output.progress import Advance
from cli.output.stdout import stdout

if TYPE_CHECKING:
    from logd.client.reader import Reader
    from logd.client.topics_reader import TopicsReader
    from logd.offline.reader import DirectoryReader

Follow = Annotated[
    bool, typer.Option("--forever", "-f", help="At the end, wait for new messages until Ctrl-C.")
]
Output = Annotated[
    OutputFormat,
    typer.Option(
        "-o",
        "--output",
        help="Output format. text: one message per line. json: one object per line, with"
        " message_base64 for a message that is not UTF-8. raw: the message bytes without"
        " separators; control characters are not escaped on a terminal.",
    ),
]
Template = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="TEMPLATE",
        help="Print a line per message. Fields: {topic} {offset} {time} {time_ms} {size} {message}"
        " (or {value}). Escapes: \\t \\n \\r \\0.",
    ),
]


class MessagePrinter:
    def __init__(self, form: OutputFormat, template: str | None) -> None:
        """UsageError if the template is not valid."""
        renderer("", form, template)
        self._form, self._template, self._raw = form, template, is_raw(form, template)

    def print_messages(
        self, topic: str, reader: Reader | DirectoryReader, *, is_following: bool, advance: Advance
    ) -> None:
        render = self._renderer(topic)
        with (
            reader,
            stdout(raw=self._raw) as out,
            watched(out.fileno(), is_following=is_following) as each,
        ):
            for batch in each(reader.batches()):
                out.write(render(batch))
                if is_following:
                    out.flush()
                advance(len(batch.messages))

    def print_consumed(
        self,
        topic: str,
        open_reader: Callable[[Callable[[], int | None]], Reader],
        *,
        is_following: bool,
        advance: Advance,
    ) -> None:
        """The same with a cursor, which advances when a message was read from stdout.

        The reader is closed, and its cursor saved, before stdout is closed.
        """
        from cli.output.consumed_messages import ConsumedMessages

        render = self._renderer(topic)
        with stdout(raw=self._raw) as out:
            consumed = ConsumedMessages(out.fileno(), lambda batch: out.rendered(render(batch)))
            with (
                open_reader(consumed.next_offset) as reader,
                watched(out.fileno(), is_following=is_following) as each,
            ):
                for batch in each(reader.batches()):
                    consumed.write(batch, reader.save_if_due)
                    advance(len(batch.messages))
                consumed.finish(reader.save_if_due)

    def print_topics(self, reader: TopicsReader, limit: int | None, *, is_following: bool) -> None:
        """The messages of several topics."""
        from logd.wire.read_state import Batch

        render_each = each_renderer(self._form, self._template)
        with reader, stdout(raw=self._raw) as out, watched(out.fileno(), is_following=True) as each:
            for message in islice(each(iter(reader)), limit):
                batch = Batch(message.offset, message.time_ms, [message.value])
                out.write(render_each(message.topic)(batch))
                if is_following:
                    out.flush()

    def _renderer(self, topic: str) -> Render:
        return renderer(topic, self._form, self._template)
