"""The one place where Spark's processes connect to a daemon."""

from __future__ import annotations

from logd.client.client import Client
from pyspark_logd.options import Site

TIMEOUT_S = 30.0


def dial(site: Site) -> Client:
    """A connection to the daemon there."""
    return Client(site.endpoint or site.name, timeout_s=TIMEOUT_S)
