"""The state directory: its lock, and the snapshot of the registry.

    <state-dir>/lock         locked by the forwarder that uses it
    <state-dir>/state.json   the snapshot, replaced atomically
    <state-dir>/spool/       unacknowledged batches, managed by the spooled output

A directory belongs to one topic: its positions are those of the lines in that topic.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from logd.errors import DataDirError
from logd.storage import disk

FORMAT = 1
EMPTY: dict[str, Any] = {"as_of": 0, "looked_ns": 0, "next_id": 1, "sources": []}


class StateDir:
    def __init__(self, path: Path, topic: str) -> None:
        self.path, self.topic = path, topic
        self._file = path / "state.json"
        self._save_lock = threading.Lock()
        disk.make_directories(path.absolute())
        self._lock = _locked(path)

    @property
    def spool(self) -> Path:
        return self.path / "spool"

    def load(self) -> dict[str, Any] | None:
        """The snapshot; None if there is none."""
        try:
            text = self._file.read_bytes()
        except FileNotFoundError:
            return None
        try:
            saved: dict[str, Any] = json.loads(text)
            known = saved["format"] == FORMAT and {*EMPTY} <= {*saved}
        except (ValueError, TypeError, KeyError):
            known = False
        if not known:
            raise DataDirError(
                f"{self._file} has an unknown format; restore a copy of it, or remove the directory"
                " to ship every file again from its start"
            )
        if saved["topic"] != self.topic:
            raise DataDirError(
                f"{self.path} belongs to topic {saved['topic']};"
                f" use another --state-dir for {self.topic}"
            )
        return saved

    def save(self, snapshot: Callable[[], dict[str, Any]]) -> None:
        """Replace the snapshot. It is made under the lock, so that none replaces a newer one."""
        with self._save_lock:
            whole = {"format": FORMAT, "topic": self.topic, **snapshot()}
            disk.replace(self._file, json.dumps(whole, separators=(",", ":")).encode())


def _locked(path: Path) -> disk.File:
    file = disk.File(path / "lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataDirError(
            f"{path} is in use by another forwarder; stop it, or use another --state-dir"
        ) from None
    return file


def default_path(topic: str) -> Path:
    home = os.environ.get("XDG_STATE_HOME", "")
    base = Path(home) if home.startswith("/") else Path.home() / ".local" / "state"
    return base / "logd" / "forward" / topic
