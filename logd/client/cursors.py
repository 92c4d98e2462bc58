"""Where a reader stopped, kept for its next life: by the daemon under a name, or in a local file.

A file is replaced whole, and so is the old place or the new one. It also knows which topic it
belongs to: that of another, or of one that was made anew under the same name, is refused.
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
        """The next offset to read, and the topic as it was then; None in the first life."""

    def save(self, offset: int, seen: TopicIdentity | None) -> None: ...
    def close(self) -> None: ...


class ServerCursor:
    """Kept by the daemon. Uses a connection of its own: the reader's may wait for messages."""

    def __init__(self, target: Target, topic: str, name: str) -> None:
        self._target, self._topic, self._name = target, topic, checked_cursor(name)
        self._client: Client | None = None

    def load(self) -> tuple[int, TopicIdentity | None] | None:
        try:
            return self._connected().cursor(self._topic, self._name).offset, None
        except NotFound:
            return None

    def save(self, offset: int, seen: TopicIdentity | None) -> None:
        try:
            self._connected().commit(self._topic, self._name, offset)
        except ConnectionLost:
            self.close()
            self._connected().commit(self._topic, self._name, offset)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

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
            raise BadRequest(self._what_to_do("it is no cursor file")) from None
        try:
            offset = int(content["offset"])
            seen = (
                TopicIdentity(content["id"], int(content["epoch"]), 0) if "id" in content else None
            )
            topic = content["topic"]
        except (KeyError, TypeError, ValueError):
            raise BadRequest(self._what_to_do("it is no cursor file")) from None
        if topic != self._topic:
            raise BadRequest(self._what_to_do(f"it belongs to topic {topic}"))
        return offset, seen

    def save(self, offset: int, seen: TopicIdentity | None) -> None:
        content: dict[str, object] = {"topic": self._topic, "offset": offset}
        if seen is not None:
            content |= {"id": seen.id, "epoch": seen.epoch}
        new = self._path.with_name(f".{self._path.name}.{os.getpid()}.new")
        with new.open("w") as file:
            file.write(json.dumps(content) + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)

    def close(self) -> None:
        pass

    def _what_to_do(self, reason: str) -> str:
        return f"{self._path}: {reason}; use another file, or remove it to start anew"
