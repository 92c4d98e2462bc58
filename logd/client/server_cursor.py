# Generated from aio/server_cursor.py by tools/async_to_sync.py. Do not edit.
"""A cursor that the server stores under a name: the position of a reader, for the next one.

It uses a second connection, because the reader's own may be waiting for messages.
"""

from __future__ import annotations

from logd.client.client import Client
from logd.errors import NotFound
from logd.wire.addresses import ConnectionLost, Target
from logd.wire.commands import checked_cursor


class ServerCursor:
    def __init__(self, target: Target, topic: str, name: str) -> None:
        self._target, self._topic, self._name = target, topic, checked_cursor(name)
        self._client: Client | None = None

    def load(self) -> int | None:
        """The next offset to read; None if nothing was saved."""
        try:
            client = self._connected()
            found = client.cursor(self._topic, self._name)
            return found.offset
        except NotFound:
            return None

    def save(self, offset: int) -> None:
        try:
            self._commit(offset)
        except ConnectionLost:
            self.close()
            self._commit(offset)

    def _commit(self, offset: int) -> None:
        client = self._connected()
        client.commit(self._topic, self._name, offset)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connected(self) -> Client:
        if self._client is None:
            self._client = Client(self._target)
        return self._client
