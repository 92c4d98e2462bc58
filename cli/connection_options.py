"""Which daemon to talk to, and what to show it.

--host, before or behind the subcommand, else LOGD_HOST; before it also --token-file, --ca, --cert
and --key, else LOGD_TOKEN_FILE or LOGD_TOKEN, LOGD_CA, LOGD_CERT and LOGD_KEY. A token itself is no
option: every user of the machine could see it in the list of processes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from cli.exit_codes import Misuse

if TYPE_CHECKING:
    from logd.client.client import Client
    from logd.wire.addresses import Target

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
TokenFile = Annotated[
    str | None,
    typer.Option(
        envvar="LOGD_TOKEN_FILE", metavar="FILE", help="Show the token in it. [or: LOGD_TOKEN]"
    ),
]
Ca = Annotated[
    str | None,
    typer.Option(envvar="LOGD_CA", metavar="FILE", help="Who may sign a tls:// daemon's cert."),
]
Cert = Annotated[
    str | None, typer.Option(envvar="LOGD_CERT", metavar="FILE", help="Your own, in PEM.")
]
Key = Annotated[str | None, typer.Option(envvar="LOGD_KEY", metavar="FILE", help="And its key.")]


class Everywhere(NamedTuple):
    """What stands before the subcommand."""

    host: str = DEFAULT_HOST
    token_file: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None


def address(ctx: typer.Context, *hosts: str | None) -> Target:
    """The daemon's address, or several; with what to show it, where there is something."""
    given: Everywhere = ctx.obj
    return endpoint(given, [host for host in hosts if host] or [given.host])


def endpoint(given: Everywhere, hosts: list[str]) -> Target:
    from logd.wire.addresses import Endpoint, parse_address

    token = os.environ.get("LOGD_TOKEN") if given.token_file is None else None
    try:
        for host in hosts:
            parse_address(host)
        if not any((token, *given[1:])):
            return hosts if len(hosts) > 1 else hosts[0]
        return Endpoint(tuple(hosts), token or None, *given[1:])
    except ValueError as error:
        raise Misuse(str(error)) from None


def client(ctx: typer.Context, host: str | None) -> Client:
    from logd.client.client import Client

    return Client(address(ctx, host))
