"""`log-cli read`: messages from any place, to the end or on and on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import connect
from cli.failures import Misuse
from cli.output import Form, notice, renderer
from cli.show import Follow, Output, Quiet, Template, Topic, say_following, show
from cli.since import parse_since

if TYPE_CHECKING:
    from logd.reading import Gap, Rewind
    from logd.requests import Where

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
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="End after N messages.")]
OrFirst = Annotated[
    bool, typer.Option("--or-first", help="Where the offset is gone, go on at the first there is.")
]


def read(
    ctx: typer.Context,
    topic: Topic,
    offset: Offset = None,
    tail: Tail = None,
    since: Since = None,
    limit: Limit = None,
    forever: Follow = False,
    or_first: OrFirst = False,
    output: Output = Form.text,
    format: Template = None,
    quiet: Quiet = False,
    host: connect.Host = None,
) -> None:
    """Print messages of a topic, from the first to the last unless told otherwise."""
    render = renderer(topic, output, format)
    place = _place(offset, tail, since)

    from logd.reader import Reader

    def on_gap(gap: Gap | Rewind) -> None:
        notice(str(gap), quiet)

    reader = Reader(
        connect.address(ctx, host),
        topic,
        **place,
        limit=limit,
        follow=forever,
        or_first=or_first,
        on_gap=on_gap,
    )
    say_following(topic, forever, quiet)
    show(reader, render, forever)


def _place(offset: str | None, tail: int | None, since: str | None) -> dict[str, Any]:
    """The reader's arguments that say where to start."""
    if sum(option is not None for option in (offset, tail, since)) > 1:
        raise Misuse("give one of --offset, --tail and --since")
    if tail is not None:
        return {"tail": tail}
    if since is not None:
        from logd.requests import At

        return {"start": At(parse_since(since, time.time_ns() // 1_000_000))}
    return {"start": "first" if offset is None else _offset(offset)}


def _offset(text: str) -> Where:
    from logd.commands import checked_where
    from logd.errors import BadRequest

    try:
        return checked_where(text)
    except BadRequest:
        raise Misuse(f"--offset {text} is no place; write a number, first or next") from None
