"""`log-cli read`: print messages from any position, to the end or continuously."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from cli.arguments import connection
from cli.arguments.data_directory import OfflineDataDir
from cli.arguments.message_source import MessageSource, is_glob
from cli.arguments.times import Since, parse_since
from cli.arguments.topic_names import topic_argument
from cli.exit_codes import UsageError
from cli.output.message_formats import OutputFormat
from cli.output.message_output import Follow, MessagePrinter, Output, Template
from cli.output.progress import LONG_BYTES, Advance, bar, is_bar_visible
from cli.output.stdout import Quiet, notice

if TYPE_CHECKING:
    from logd.client.reader import Reader
    from logd.wire.commands import TopicInfo
    from logd.wire.requests import Where

Topics = Annotated[list[str], topic_argument("Topic names, or patterns such as 'web-*'.")]
Offset = Annotated[
    str | None, typer.Option(metavar="N|first|next", help="Start at this offset. [default: first]")
]
Tail = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Start N messages before the end.")
]
Until = Annotated[
    str | None, typer.Option(metavar="N|TIME", help="Stop before this offset or time.")
]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after N messages.")]
OrFirst = Annotated[
    bool, typer.Option("--or-first", help="If the offset has expired, start at the oldest message.")
]
Cursor = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Continue where the last read with this cursor stopped; the daemon stores the"
        " position. Options for the start apply only to a new cursor.",
    ),
]
CursorFile = Annotated[
    Path | None,
    typer.Option(
        "--cursor-file", metavar="FILE", help="Like --cursor, but the position is in this file."
    ),
]
Merge = Annotated[
    str, typer.Option(metavar="time|arrival", help="Order of the messages of several topics.")
]


class CursorChoice(NamedTuple):
    """The name or the file of a cursor, and the option that is ignored if the cursor exists."""

    cursor: str | Path
    ignored: str | None


def read(
    ctx: typer.Context,
    topics: Topics,
    offset: Offset = None,
    tail: Tail = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = None,
    forever: Follow = False,
    or_first: OrFirst = False,
    cursor: Cursor = None,
    cursor_file: CursorFile = None,
    merge: Merge = "time",
    output: Output = OutputFormat.text,
    format: Template = None,
    quiet: Quiet = False,
    data_dir: OfflineDataDir = None,
    host: connection.Host = None,
) -> None:
    """Print the messages of one or more topics.

    Without options, print all messages, from the oldest to the newest. Messages of several topics
    are merged by time.

    \b
    log-cli read app --since 10m --forever
    log-cli read app --offset 100 --limit 5 --format '{offset} {message}'
    log-cli read app --cursor nightly
    log-cli read app 'web-*' -o json
    """
    now_ms = time.time_ns() // 1_000_000
    source = MessageSource(ctx, host, data_dir, quiet)
    bounds = _start(offset, tail, since, now_ms)
    end, until_ms = _end(until, now_ms)
    bounds |= {"until_ms": until_ms, "or_first": or_first}
    given = {"--offset": offset, "--tail": tail, "--since": since}
    chosen = _choose_cursor(cursor, cursor_file, data_dir, given)
    printer = MessagePrinter(output, format)
    if len(topics) == 1 and not is_glob(topics[0]):
        bounds |= {"limit": limit, "until": end}
        print_topic(source, topics[0], printer, bounds, forever, chosen)
        return
    if chosen is not None or data_dir is not None or end is not None:
        raise UsageError("a cursor, --data-dir and --until with an offset need exactly one topic")
    reader = source.topics_reader(topics, merge, follow=forever, **bounds)
    if forever:
        _notify_following(" ".join(topics), quiet)
    printer.print_topics(reader, limit, is_following=forever)


def print_topic(
    source: MessageSource,
    topic: str,
    printer: MessagePrinter,
    bounds: dict[str, Any],
    forever: bool,
    cursor: CursorChoice | None = None,
) -> None:
    """Print one topic; `bounds` are the arguments of a reader."""
    if forever and source.wait_for_topic(topic, bounds.get("until_ms")):
        bounds = _from_first(bounds)
    open_reader = partial(source.reader, topic, follow=forever, **bounds)
    if forever:
        _notify_following(topic, source.quiet)
    with _bar(source, topic, bounds, forever) as advance:
        if cursor is None:
            printer.print_messages(topic, open_reader(), is_following=forever, advance=advance)
        else:
            opened = _with_cursor(open_reader, cursor, source.quiet)
            printer.print_consumed(topic, opened, is_following=forever, advance=advance)


def _notify_following(topics: str, quiet: bool) -> None:
    notice(f"following {topics}; press Ctrl-C to stop", quiet)


# -- cursors ------------------------------------------------------------------------------------


def _choose_cursor(
    name: str | None, file: Path | None, data_dir: Path | None, given: dict[str, Any]
) -> CursorChoice | None:
    if name is not None and file is not None:
        raise UsageError("--cursor and --cursor-file cannot be used together")
    if data_dir is not None and (name or file):
        raise UsageError("a cursor needs a daemon and cannot be used with --data-dir")
    cursor = file if name is None else name
    ignored = next((option for option, value in given.items() if value is not None), None)
    return None if cursor is None else CursorChoice(cursor, ignored)


def _with_cursor(
    open_reader: Callable[..., Any], choice: CursorChoice, quiet: bool
) -> Callable[[Callable[[], int | None]], Reader]:
    def opened(consumed: Callable[[], int | None]) -> Reader:
        reader: Reader = open_reader(cursor=choice.cursor, consumed=consumed)
        if reader.resumed_at is not None and choice.ignored is not None:
            start = f"starting at its offset {reader.resumed_at}"
            notice(f"the cursor exists; {start} and ignoring {choice.ignored}", quiet)
        return reader

    return opened


# -- where to start and to stop -----------------------------------------------------------------


def _start(offset: str | None, tail: int | None, since: str | None, now_ms: int) -> dict[str, Any]:
    """The reader's arguments for the start."""
    if sum(option is not None for option in (offset, tail, since)) > 1:
        raise UsageError("only one of --offset, --tail and --since can be used")
    if tail is not None:
        return {"tail": tail}
    if since is not None:
        from logd.wire.requests import At

        return {"start": At(parse_since(since, now_ms))}
    return {"start": "first" if offset is None else _parse_offset(offset)}


def _parse_offset(text: str) -> Where:
    from logd.errors import BadRequest
    from logd.wire.commands import checked_where

    try:
        return checked_where(text)
    except BadRequest:
        raise UsageError(
            f"invalid value {text!r} for --offset: use a number, first or next"
        ) from None


def _end(until: str | None, now_ms: int) -> tuple[int | None, int | None]:
    """The offset or the time to stop before."""
    if until is None:
        return None, None
    if re.fullmatch(r"[0-9]{1,18}", until):
        return int(until), None
    return None, parse_since(until, now_ms, "--until", "an offset, ")


def _from_first(bounds: dict[str, Any]) -> dict[str, Any]:
    """The bounds for a topic that was created while waiting: all its messages are new."""
    is_relative = bounds.get("tail") is not None or bounds.get("start") == "next"
    return bounds | {"start": "first", "tail": None} if is_relative else bounds


# -- progress -----------------------------------------------------------------------------------


def _bar(
    source: MessageSource, topic: str, bounds: dict[str, Any], forever: bool
) -> AbstractContextManager[Advance]:
    """A bar over the messages, if they are many and the terminal shows nothing else."""
    is_file = sys.stdout is not None and not sys.stdout.isatty()
    total, is_long = 0, False
    if not forever and is_file and is_bar_visible(source.quiet):
        for info in source.silent().topics(topic):
            total = expected_messages(info, bounds)
            is_long = info.bytes * total >= LONG_BYTES * max(1, info.next - info.first)
    return bar(f"reading {topic}", total, is_shown=is_long)


def expected_messages(info: TopicInfo, bounds: dict[str, Any]) -> int:
    """An upper bound: the number of messages before a time is not known."""
    start, end, limit = (bounds.get(name) for name in ("start", "until", "limit"))
    if bounds.get("tail") is not None:
        start = info.next - bounds["tail"]
    first = max(info.first, start) if isinstance(start, int) else info.first
    next_ = info.first if start == "next" else info.next if end is None else min(end, info.next)
    return max(0, min(next_ - first, info.next if limit is None else limit))
