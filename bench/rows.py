"""All rows, in the order in which they are measured."""

from __future__ import annotations

from bench import (
    client_rows,
    daemon_rows,
    follow_rows,
    growth_rows,
    http_rows,
    push_rows,
    read_rows,
    spark_rows,
    tls_rows,
)

_SERVERS = (*push_rows.ROWS, *read_rows.ROWS, *follow_rows.ROWS)
_CLIENTS = (*client_rows.ROWS, *http_rows.ROWS, *tls_rows.ROWS, *spark_rows.ROWS)
ROWS = (*_SERVERS, *_CLIENTS, *growth_rows.ROWS, *daemon_rows.ROWS)
