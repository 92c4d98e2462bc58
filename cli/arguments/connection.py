"""Options for the connection to the daemon: address, token, certificates.

--host is accepted before and after the subcommand, the others before it only; each has an
environment variable. The token itself is not an option, because command lines are visible to every
user of the machine: it is in a file or in LOGD_TOKEN.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from cli.exit_codes import UsageError

if TYPE_CHECKING:
    from logd.client.client import Client
    from logd.wire.addresses import Target

DEFAULT_HOST = "127.0.0.1:1774"

GlobalHost = Annotated[
    str,
    typer.Option(
        "--host", "-H", envvar="LOGD_HOST", metavar="HOST:PORT", help="Address of the daemon."
    ),
]
# Without envvar: the variable would take precedence over a --host before the subcommand.
Host = Annotated[
    str | None,
    typer.Option(
        "--host", "-H", metavar="HOST:PORT", help="Address of the daemon. [env var: LOGD_HOST]"
    ),
]


def _file(variable: str, help_: str) -> Any:
    return typer.Option(envvar=variable, metavar="FILE", help=help_)


TokenFile = Annotated[
    str | None,
    _file("LOGD_TOKEN_FILE", "File with the access token; LOGD_TOKEN can contain the token."),
]
Ca = Annotated[str | None, _file("LOGD_CA", "CA certificates (PEM) for tls:// addresses.")]
Cert = Annotated[str | None, _file("LOGD_CERT", "Client certificate (PEM).")]
Key = Annotated[str | None, _file("LOGD_KEY", "Private key of the client certificate (PEM).")]


class ConnectionOptions(NamedTuple):
    """The options before the subcommand."""

    host: str = DEFAULT_HOST
    token_file: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None


def address(ctx: typer.Context, *hosts: str | None) -> Target:
    """The addresses after the subcommand, else the one before it, with credentials if given."""
    options: ConnectionOptions = ctx.obj
    return endpoint(options, [host for host in hosts if host] or [options.host])


def endpoint(options: ConnectionOptions, hosts: list[str]) -> Target:
    from logd.wire.addresses import Endpoint, parse_address

    token = os.environ.get("LOGD_TOKEN") if options.token_file is None else None
    try:
        for host in hosts:
            parse_address(host)
        if not any((token, *options[1:])):
            return hosts if len(hosts) > 1 else hosts[0]
        return Endpoint(tuple(hosts), token or None, *options[1:])
    except ValueError as error:
        raise UsageError(str(error)) from None


def client(ctx: typer.Context, host: str | None) -> Client:
    from logd.client.client import Client

    return Client(address(ctx, host))
