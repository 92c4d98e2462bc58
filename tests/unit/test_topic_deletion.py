"""An expired partition's files go, and their names with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from logd.partition import Partition
from logd.storage import disk, topic_files


def test_a_removal_ends_with_a_sync_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = Partition.create(tmp_path, 7)
    partition.index_path.write_bytes(b"")
    calls: list[tuple[str, str]] = []
    remove, sync_directory = disk.remove, disk.sync_directory

    def noting_remove(path: Path) -> None:
        calls.append(("remove", path.suffix))
        remove(path)

    def noting_sync(path: Path) -> None:
        calls.append(("sync", path.name))
        sync_directory(path)

    monkeypatch.setattr(disk, "remove", noting_remove)
    monkeypatch.setattr(disk, "sync_directory", noting_sync)
    topic_files.remove(partition)
    assert calls == [("remove", ".log"), ("remove", ".index"), ("sync", tmp_path.name)]
    assert list(tmp_path.iterdir()) == []
