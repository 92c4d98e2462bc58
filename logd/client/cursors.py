# Generated from aio/cursors.py by tools/async_to_sync.py. Do not edit.
"""The position of a reader, saved for the next one: by the server under a name, or in a local file.

A file is replaced as a whole, so it has the old position or the new one. It names the topic that it
belongs to; a cursor of another topic, or of one that was deleted and created again, is refused.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Protocol

from logd.client.client import Client
from logd.errors import BadRequest, NotFound
from logd.wire.addresses import ConnectionLost, Target
from logd.wire.commands import checked_cursor
from logd.wire.topic_identity import TopicIdentity


class SavedCursor(Protocol):
    def load(self) -> tuple[int, TopicIdentity | None] | None:
        """The next offset to read and the topic at that time; None if nothing was saved."""

    def save(self, offset: int, identity: TopicIdentity | None) -> None: ...
    def close(self) -> None: ...


class ServerCursor:
    """Saved by the server, over a second connection: the reader's own may wait for messages."""

    def __init__(self, target: Target, topic: str, name: str) -> None:
        self._target, self._topic, self._name = target, topic, checked_cursor(name)
        self._client: Client | None = None

    def load(self) -> tuple[int, TopicIdentity | None] | None:
        try:
            client = self._connected()
            found = client.cursor(self._topic, self._name)
            return found.offset, None
        except NotFound:
            return None

    def save(self, offset: int, identity: TopicIdentity | None) -> None:
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


class LocalCursor:
    def __init__(self, path: Path, topic: str) -> None:
        self._path, self._topic = path, topic

    def load(self) -> tuple[int, TopicIdentity | None] | None:
        try:
            content = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            raise self._refusal("it is not a cursor file") from None
        try:
            offset, topic, identity = int(content["offset"]), content["topic"], None
            if "id" in content:
                identity = TopicIdentity(content["id"], int(content["epoch"]), 0)
        except (KeyError, TypeError, ValueError):
            raise self._refusal("it is not a cursor file") from None
        if topic != self._topic:
            raise self._refusal(f"it belongs to topic {topic}")
        return offset, identity

    def save(self, offset: int, identity: TopicIdentity | None) -> None:
        content: dict[str, object] = {"topic": self._topic, "offset": offset}
        if identity is not None:
            content |= {"id": identity.id, "epoch": identity.epoch}
        self._write(json.dumps(content) + "\n")  # it syncs

    def close(self) -> None:
        pass

    def _write(self, text: str) -> None:
        new = self._path.with_name(f".{self._path.name}.{os.getpid()}.new")
        with new.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)

    def _refusal(self, reason: str) -> BadRequest:
        return BadRequest(f"{self._path}: {reason}; use another file, or remove it to start again")
