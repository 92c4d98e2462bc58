"""The TOPIC argument of the commands, and its completion by the shell.

Completion asks the daemon, or lists the directory given with --data-dir. It prints no errors.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.arguments.connection import DEFAULT_HOST, ConnectionOptions, endpoint
from cli.exit_codes import UsageError

TIMEOUT_S = 0.5  # the user waits for it after pressing Tab


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    from logd.errors import LogdError

    try:
        names = filter(str.isprintable, _names(ctx))  # they are written to the terminal
        return sorted(name for name in names if name.startswith(incomplete))
    except (LogdError, UsageError, OSError, ValueError):
        return []


def _names(ctx: typer.Context) -> list[str]:
    data_dir = _typed(ctx, "data_dir")
    if data_dir:
        return [path.name for path in (Path(data_dir) / "topics").iterdir() if path.is_dir()]
    from logd.client.client import Client

    host = _typed(ctx, "host") or os.environ.get("LOGD_HOST") or DEFAULT_HOST
    names = ConnectionOptions._fields[1:]
    values = [_typed(ctx, name) or os.environ.get(f"LOGD_{name.upper()}") for name in names]
    target = endpoint(ConnectionOptions(host, *values), [host])
    with Client(target, timeout_s=TIMEOUT_S) as client:
        return [info.topic for info in client.topics()]


def _typed(ctx: Any, name: str) -> Any:
    """The value of an option that is already on the command line."""
    while ctx is not None:
        if value := ctx.params.get(name):
            return value
        ctx = ctx.parent
    return None


def topic_argument(help_: str) -> Any:
    return typer.Argument(
        metavar="TOPIC", help=help_, show_default=False, autocompletion=complete_topic
    )


Topic = Annotated[str, topic_argument("Topic name.")]
TopicGlobs = Annotated[
    list[str] | None,
    topic_argument("Topic names, or patterns such as 'web-*'. [default: all topics]"),
]
TopicNames = Annotated[list[str] | None, topic_argument("Topic names. [default: all topics]")]
