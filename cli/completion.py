"""Topic names for the shell's Tab key. Asks the daemon, and says nothing where it cannot."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

from cli import connection_options
from cli.exit_codes import Misuse

TIMEOUT_S = 0.5  # a person waits for it


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    from logd.errors import LogdError

    try:
        names = filter(str.isprintable, _names(ctx))  # they go to the terminal
        return sorted(name for name in names if name.startswith(incomplete))
    except (LogdError, Misuse, OSError, ValueError):
        return []  # the line is being typed: no place for an error


def _names(ctx: typer.Context) -> list[str]:
    data_dir = _typed(ctx, "data_dir")
    if data_dir:
        return [path.name for path in (Path(data_dir) / "topics").iterdir() if path.is_dir()]
    from logd.client.client import Client

    host = _typed(ctx, "host") or os.environ.get("LOGD_HOST") or connection_options.DEFAULT_HOST
    names = connection_options.Everywhere._fields[1:]
    shown = [_typed(ctx, name) or os.environ.get(f"LOGD_{name.upper()}") for name in names]
    target = connection_options.endpoint(connection_options.Everywhere(host, *shown), [host])
    with Client(target, timeout_s=TIMEOUT_S) as client:
        return [info.topic for info in client.topics()]


def _typed(ctx: Any, name: str) -> Any:
    """An option as it was typed so far, behind the command or before it."""
    while ctx is not None:
        if value := ctx.params.get(name):
            return value
        ctx = ctx.parent
    return None
