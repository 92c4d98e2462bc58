"""A cursor in a local file: the position of a reader, for the next one.

The file is replaced as a whole, so it has the old position or the new one. It names the topic that
it belongs to; a cursor of another topic, or of one that was deleted and created again, is refused.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from logd.errors import BadRequest
from logd.wire.topic_identity import TopicIdentity


class LocalCursor:
    def __init__(self, path: Path, topic: str) -> None:
        self._path, self._topic = path, topic

    def load(self) -> tuple[int, TopicIdentity | None] | None:
        """The next offset to read and the topic at that time; None if nothing was saved."""
        try:
            content = json.loads(self._path.read_bytes())
            offset, topic, identity = int(content["offset"]), content["topic"], None
            if "id" in content:
                identity = TopicIdentity(content["id"], int(content["epoch"]), 0)
        except FileNotFoundError:
            return None
        except (KeyError, TypeError, ValueError):
            raise self._refusal("it is not a cursor file") from None
        if topic != self._topic:
            raise self._refusal(f"it belongs to topic {topic}")
        return offset, identity

    def save(self, offset: int, identity: TopicIdentity | None) -> None:
        content: dict[str, object] = {"topic": self._topic, "offset": offset}
        if identity is not None:
            content |= {"id": identity.id, "epoch": identity.epoch}
        new = self._path.with_name(f".{self._path.name}.{os.getpid()}.new")
        with new.open("w") as file:
            file.write(json.dumps(content) + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)

    def _refusal(self, reason: str) -> BadRequest:
        return BadRequest(f"{self._path}: {reason}; use another file, or remove it to start again")
