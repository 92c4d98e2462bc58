"""`log-cli read`: messages from any place, to the end or on and on."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import connection_options, source
from cli.completion import complete_topic
from cli.exit_codes import Misuse
from cli.message_formats import OutputFormat, each_renderer, is_raw, notice, renderer
from cli.message_output import (
    Follow,
    Output,
    Quiet,
    Template,
    follow,
    goes_to_a_file,
    say_following,
    show,
    show_consumed,
    show_several,
)
from cli.points_in_time import parse_since
from cli.progress import LONG_BYTES, Advance, bar, is_watched

if TYPE_CHECKING:
    from logd.client.reader import Reader
    from logd.wire.commands import TopicInfo
    from logd.wire.requests import Where

Offset = Annotated[
    str | None, typer.Option(metavar="N|first|next", help="Start here. [default: first]")
]
Tail = Annotated[int | None, typer.Option(min=0, metavar="N", help="Start N before the end.")]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Start at this time: 10m (ago), 2026-01-31T12:00:00Z (local without a zone), @<ms>.",
    ),
]
Until = Annotated[
    str | None, typer.Option(metavar="N|TIME", help="End before this offset or time.")
]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="End after N messages.")]
OrFirst = Annotated[
    bool, typer.Option("--or-first", help="Where the offset is gone, go on at the first there is.")
]


Topics = Annotated[
    list[str],
    typer.Argument(
        metavar="TOPIC",
        help="Their names, or globs such as 'web-*'.",
        show_default=False,
        autocompletion=complete_topic,
    ),
]
Cursor = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Continue where the last read with this name ended; the daemon keeps the position."
        " The options for a start apply to a new cursor only.",
    ),
]
CursorFile = Annotated[
    Path | None,
    typer.Option("--cursor-file", metavar="FILE", help="The same, kept in this file."),
]
Merge = Annotated[
    str,
    typer.Option(metavar="time|arrival", help="How several topics are put in order."),
]


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
    data_dir: source.Files = None,
    host: connection_options.Host = None,
) -> None:
    """Print messages of a topic, or of several.

    From the first to the last, unless told otherwise. Several come in the order of time.

    \b
    log-cli read app --since 10m --forever
    log-cli read app --offset 100 --limit 5 --format '{offset} {message}'
    log-cli read app --cursor nightly
    log-cli read app 'web-*' -o json
    """
    now_ms = time.time_ns() // 1_000_000
    place = _place(offset, tail, since, now_ms)
    end, until_ms = _end(until, now_ms)
    bounds: dict[str, Any] = {**place, "until_ms": until_ms, "or_first": or_first}
    origin: dict[str, Any] = {"host": host, "data_dir": data_dir, "quiet": quiet}
    mark = _mark(cursor, cursor_file, data_dir)
    places = {"--offset": offset, "--tail": tail, "--since": since}
    ignored = next((name for name, value in places.items() if value is not None), None)
    raw = is_raw(output, format)
    if len(topics) > 1 or source.is_glob(topics[0]):
        if mark is not None or data_dir is not None or end is not None:
            raise Misuse("a cursor, --data-dir and --until with an offset are for one topic")
        several = source.several(ctx, topics, host, merge, forever, quiet, **bounds)
        render_each = each_renderer(output, format)
        source.say_missing(several, topics, forever, quiet)
        if forever:
            say_following(" ".join(topics), quiet)
        show_several(several, render_each, limit, flushed=forever, raw=raw)
        return
    (topic,) = topics
    render = renderer(topic, output, format)
    if forever and data_dir is None and source.wait_for_topic(ctx, topic, host, until_ms, quiet):
        bounds |= source.from_first(bounds)
    open_reader = partial(
        source.reader, ctx, topic, follow=forever, limit=limit, until=end, **origin, **bounds
    )
    if forever:
        say_following(topic, quiet)
        if mark is None:
            follow(open_reader(), render, raw=raw)
        else:
            opened = _marked(open_reader, mark, ignored, quiet)
            show_consumed(opened, render, is_following=True, raw=raw)
        return
    infos = []
    if goes_to_a_file() and is_watched(quiet):
        infos = source.topics(ctx, topic, host=host, data_dir=data_dir, quiet=True)
    with _bar(infos, place, limit, end) as advance:
        if mark is None:
            show(open_reader(), render, raw=raw, advance=advance)
        else:
            opened = _marked(open_reader, mark, ignored, quiet)
            show_consumed(opened, render, is_following=False, raw=raw, advance=advance)


def _marked(
    open_reader: Callable[..., Any], mark: str | Path, ignored: str | None, quiet: bool
) -> Callable[[Callable[[], int | None]], Reader]:
    """With a cursor. `ignored` is the option for a place, which only a new cursor needs."""

    def opened(consumed: Callable[[], int | None]) -> Reader:
        reader: Reader = open_reader(cursor=mark, consumed=consumed)
        if reader.resumed_at is not None and ignored is not None:
            at = f"reading from its offset {reader.resumed_at}"
            notice(f"the cursor exists: {at}, and ignoring {ignored}", quiet)
        return reader

    return opened


def _mark(cursor: str | None, cursor_file: Path | None, data_dir: Path | None) -> str | Path | None:
    """What keeps the place: a name, or a file."""
    if cursor is not None and cursor_file is not None:
        raise Misuse("give --cursor or --cursor-file, not both")
    if data_dir is not None and (cursor or cursor_file):
        raise Misuse("cursors need a daemon: leave out --data-dir")
    return cursor if cursor is not None else cursor_file


def _place(offset: str | None, tail: int | None, since: str | None, now_ms: int) -> dict[str, Any]:
    """The reader's arguments that say where to start."""
    if sum(option is not None for option in (offset, tail, since)) > 1:
        raise Misuse("give one of --offset, --tail and --since")
    if tail is not None:
        return {"tail": tail}
    if since is not None:
        from logd.wire.requests import At

        return {"start": At(parse_since(since, now_ms))}
    return {"start": "first" if offset is None else _offset(offset)}


def _offset(text: str) -> Where:
    from logd.errors import BadRequest
    from logd.wire.commands import checked_where

    try:
        return checked_where(text)
    except BadRequest:
        raise Misuse(f"--offset {text} is no place; write a number, first or next") from None


def _end(until: str | None, now_ms: int) -> tuple[int | None, int | None]:
    """The offset or the time before which to end."""
    if until is None:
        return None, None
    if re.fullmatch(r"[0-9]{1,18}", until):
        return int(until), None
    return None, parse_since(until, now_ms, "--until", "an offset, ")


@contextmanager
def _bar(
    infos: list[TopicInfo], place: dict[str, Any], limit: int | None, end: int | None
) -> Iterator[Advance]:
    """A bar over the messages to come, if they are many."""
    total = expected_messages(infos[0], place, limit, end) if infos else 0
    if not total or infos[0].bytes * total < LONG_BYTES * (infos[0].next - infos[0].first):
        yield lambda messages: None
        return
    with bar(f"reading {infos[0].topic}", total) as advance:
        yield advance


def expected_messages(
    info: TopicInfo, place: dict[str, Any], limit: int | None, end: int | None
) -> int:
    """How many there are to read, at most: where a time is asked for, nobody knows yet."""
    start = place.get("start")
    if place.get("tail") is not None:
        start = info.next - place["tail"]
    first = max(info.first, start) if isinstance(start, int) else info.first
    next_ = info.first if start == "next" else info.next if end is None else min(end, info.next)
    return max(0, min(next_ - first, info.next if limit is None else limit))
