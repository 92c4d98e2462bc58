"""`log-cli ping`: is the daemon there, and how far away?"""

from __future__ import annotations

from time import perf_counter

import typer

from cli import connection_options


def ping(ctx: typer.Context, host: connection_options.Host = None) -> None:
    """Print how long the daemon takes to answer.

    \b
    log-cli ping --host 127.0.0.1:1774
    """
    with connection_options.client(ctx, host) as client:
        start = perf_counter()
        client.ping()
        print(f"{client.address} answered in {(perf_counter() - start) * 1000:.2f} ms")
