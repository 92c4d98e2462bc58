"""Which daemon to talk to: --host, before or behind the subcommand, else LOGD_HOST."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.failures import Misuse

if TYPE_CHECKING:
    from logd.client import Client

DEFAULT_HOST = "127.0.0.1:1774"

GlobalHost = Annotated[
    str,
    typer.Option("--host", "-H", envvar="LOGD_HOST", metavar="HOST:PORT", help="The daemon."),
]
# Without the variable: it would win over a --host that stands before the subcommand.
Host = Annotated[
    str | None,
    typer.Option("--host", "-H", metavar="HOST:PORT", help="The daemon. [env var: LOGD_HOST]"),
]


def address(ctx: typer.Context, host: str | None) -> str:
    from logd.addresses import parse_address

    chosen: str = host or ctx.obj
    try:
        parse_address(chosen)
    except ValueError as error:
        raise Misuse(str(error)) from None
    return chosen


def client(ctx: typer.Context, host: str | None) -> Client:
    from logd.client import Client

    return Client(address(ctx, host))
