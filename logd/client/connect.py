"""A connection for a writer, and what the topic behind it looks like now."""

from __future__ import annotations

from logd.client.client import Client
from logd.client.nonblocking_socket import NonblockingSocket
from logd.errors import NotFound
from logd.wire.addresses import Target, lost
from logd.wire.topic_identity import TopicIdentity


def dial(
    target: Target, topic: str, timeout_s: float
) -> tuple[NonblockingSocket, TopicIdentity | None]:
    """Wait for a connection; None where there is no such topic yet. ConnectionLost or LogdError."""
    client = Client(target, timeout_s=timeout_s)
    try:
        seen = _seen(client, topic)
    except BaseException:
        client.close()
        raise
    connection = client.detach()
    assert connection is not None
    return NonblockingSocket(connection, client.address), seen


def _seen(client: Client, topic: str) -> TopicIdentity | None:
    try:
        return TopicIdentity.of(client.stats(topic))
    except NotFound:
        return None
    except ValueError as error:
        raise lost(client.address, str(error)) from None
