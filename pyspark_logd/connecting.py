"""The one place where Spark's processes connect to a daemon."""

from __future__ import annotations

from logd.client import Client

TIMEOUT_S = 30.0


def dial(address: str) -> Client:
    """A connection to the daemon there. Tokens and encryption belong here."""
    return Client(address, timeout_s=TIMEOUT_S)
