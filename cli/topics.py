"""`log-cli topics`: which topics there are, and how large."""

from __future__ import annotations

from typing import Annotated

import typer

from cli import connection_options, source
from cli.message_formats import Table, json_line, notice, stdout, table
from cli.message_output import Quiet

Glob = Annotated[str, typer.Argument(metavar="GLOB", help="Only topics that match, as in 'app-*'.")]
Output = Annotated[
    Table, typer.Option("-o", "--output", help="text: a table. json: one object per line.")
]


def topics(
    ctx: typer.Context,
    glob: Glob = "*",
    output: Output = Table.text,
    quiet: Quiet = False,
    data_dir: source.Files = None,
    host: connection_options.Host = None,
) -> None:
    """List topics with their first and next offset.

    \b
    log-cli topics 'app-*' -o json
    """
    found = source.topics(ctx, glob, host=host, data_dir=data_dir, quiet=quiet)
    with stdout() as out:
        if output is Table.json:
            out.write(b"".join(json_line(topic._asdict()) for topic in found))
        elif found:
            heads = tuple(name.upper() for name in found[0]._fields)
            out.write(f"{table([heads, *found])}\n".encode())
        else:
            notice(f"no topic matches {glob}", quiet)
