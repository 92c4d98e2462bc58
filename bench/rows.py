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
from bench.measure import Row

ROWS: tuple[Row, ...] = (
    *push_rows.ROWS,
    *read_rows.ROWS,
    *follow_rows.ROWS,
    *daemon_rows.STEADY_ROWS,
    *client_rows.ROWS,
    *http_rows.ROWS,
    *tls_rows.ROWS,
    *spark_rows.ROWS,
    *growth_rows.ROWS,
    *daemon_rows.ROWS,
)
