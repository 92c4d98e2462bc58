"""A connection for a writer, and what the topic behind it looks like now."""

from __future__ import annotations

from logd.addresses import Target, lost
from logd.client import Client
from logd.epochs import Seen
from logd.errors import NotFound
from logd.link import Link


def dial(target: Target, topic: str, timeout_s: float) -> tuple[Link, Seen | None]:
    """Wait for a connection; None where there is no such topic yet. ConnectionLost or LogdError."""
    client = Client(target, timeout_s=timeout_s)
    try:
        seen = _seen(client, topic)
    except BaseException:
        client.close()
        raise
    connection = client.detach()
    assert connection is not None
    return Link(connection, client.address), seen


def _seen(client: Client, topic: str) -> Seen | None:
    try:
        return Seen.of(client.stats(topic))
    except NotFound:
        return None
    except ValueError as error:
        raise lost(client.address, str(error)) from None
