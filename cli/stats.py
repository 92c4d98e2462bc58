"""`log-cli stats`: what the daemon counts, overall or for one topic."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from cli import connect
from cli.output import Table, json_line, stdout

Topic = Annotated[str | None, typer.Argument(help="One topic; none: the daemon.")]
Output = Annotated[Table, typer.Option("-o", "--output", help="text, or json: one object.")]

_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_NAMES = ("topic", "id")  # text, even where it is all digits


def stats(
    ctx: typer.Context,
    topic: Topic = None,
    output: Output = Table.text,
    host: connect.Host = None,
) -> None:
    """Print counters of the daemon or of one topic."""
    with connect.client(ctx, host) as client:
        counters = client.stats(topic)
    with stdout() as out:
        if output is Table.json:
            out.write(json_line({name: _value(name, text) for name, text in counters.items()}))
        else:
            out.write("".join(f"{name}: {text}\n" for name, text in counters.items()).encode())


def _value(name: str, text: str) -> int | str:
    return int(text) if name not in _NAMES and _NUMBER.fullmatch(text) else text
