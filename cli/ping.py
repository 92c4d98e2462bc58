"""`log-cli ping`: print the response time of the daemon."""

from __future__ import annotations

from time import perf_counter

import typer

from cli.arguments import connection


def ping(ctx: typer.Context, host: connection.Host = None) -> None:
    """Print the response time of the daemon.

    \b
    log-cli ping --host 127.0.0.1:1774
    """
    with connection.client(ctx, host) as client:
        start = perf_counter()
        client.ping()
        print(f"{client.address} answered in {(perf_counter() - start) * 1000:.2f} ms")
