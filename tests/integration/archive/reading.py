"""What an archive holds, read with nothing of logd but the list of its files."""

from __future__ import annotations

import io
from collections import Counter
from datetime import datetime
from typing import NamedTuple

import pyarrow.parquet as pq

from logd import Client, Reader
from logd.archive.manifest import Manifest
from logd.archive.object_stores import ArchiveStore
from tests.support.daemon import wait_until

HOOKS_S = 300.0  # each hook starts a process that imports Arrow


class Row(NamedTuple):
    topic: str
    topic_id: str
    offset: int
    timestamp: datetime
    value: bytes


def archived(store: ArchiveStore) -> list[Row]:
    """All messages of all files that count, file by file in the order of their paths."""
    found = []
    for path in sorted(Manifest(store).state().files):
        table = pq.read_table(io.BytesIO(store.get(path)))
        rows = [Row(**row) for row in table.to_pylist()]
        assert rows == sorted(rows, key=lambda row: (row.timestamp, row.offset)), path
        hour = f"{rows[0].timestamp:%Y-%m-%dT%H}"
        assert path.startswith(f"topic={rows[0].topic}/hour={hour}/"), path
        assert {f"{row.timestamp:%Y-%m-%dT%H}" for row in rows} == {hour}
        found += rows
    return found


def check(store: ArchiveStore, written: dict[str, list[bytes]], *, all_of_it: bool) -> None:
    """Each archived message is the one that was written at its offset, and none is there twice."""
    rows = archived(store)
    for row in rows:
        assert written[row.topic][row.offset] == row.value
    seen = Counter((row.topic_id, row.offset) for row in rows)
    assert not [place for place, times in seen.items() if times > 1]
    if all_of_it:
        assert len(rows) == sum(map(len, written.values()))


def files(store: ArchiveStore) -> int:
    return len(Manifest(store).state().files)


def contents(address: str, topic: str) -> list[bytes]:
    """Everything that a topic of a daemon holds."""
    with Reader(address, topic) as reader:
        return [message.value for message in reader]


def first_kept(address: str, topic: str, partitions: int = 1) -> int:
    """The first offset of a topic, once it has no more partitions than these."""
    with Client(address) as client:
        wait_until(lambda: int(client.stats(topic)["partitions"]) <= partitions, timeout_s=HOOKS_S)
        return int(client.stats(topic)["first"])
