"""Creates a large topic of sparse files, with many partitions, in little time and space.

Each batch is one message of zeros, of which only the header and the line end are written.
Checksums, indexes and the checkpoint are those that the daemon would write, and `log-cli check`
finds no errors. Rows then push real messages to it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from logd.batch import LINES, body_sum, encode_header
from logd.storage import topic_files
from logd.storage.checkpoint import Checkpoint, CheckpointState
from logd.storage.index import Index, IndexEntry
from logd.storage.producers import Producers

PARTITION_BYTES = 256 << 20  # the default of the daemon
BODY_BYTES = 256 << 10


def make_topic(directory: Path, total_bytes: int) -> None:
    """A topic of about `total_bytes`, as after a clean stop, with an empty newest partition."""
    directory.mkdir(parents=True)
    time_ms = time.time_ns() // 1_000_000 - 1_000_000
    offset = size = 0
    for _ in range(total_bytes // PARTITION_BYTES):
        path = directory / f"{offset:020d}.log"
        offset, size = _make_partition(path, offset, time_ms)
        ids = Producers().encode(offset, size)
    path.with_suffix(".ids").write_bytes(ids)
    (directory / f"{offset:020d}.log").touch()
    state = CheckpointState(partition=offset, next=offset, since_ms=time_ms)
    (directory / topic_files.CHECKPOINT).write_bytes(Checkpoint.blank(state))
    (directory / topic_files.META).write_bytes(topic_files.encode_meta("0" * 32, time_ms))


def _make_partition(path: Path, first: int, time_ms: int) -> tuple[int, int]:
    """Write a partition and its index; returns its next offset and its size."""
    sum_, index, position, offset = _zeros_sum(), Index(), 0, first
    with path.open("xb") as file:
        while position < PARTITION_BYTES:
            header = encode_header(offset, 1, BODY_BYTES, time_ms, LINES, sum_)
            end = position + len(header) + BODY_BYTES
            os.pwrite(file.fileno(), header, position)
            os.pwrite(file.fileno(), b"\n", end - 1)
            index.note(offset, position, time_ms)
            offset, position = offset + 1, end
    index.append(IndexEntry(offset, position, time_ms))
    path.with_suffix(".index").write_bytes(index.encoded())
    return offset, position


def _zeros_sum() -> str:
    return body_sum(bytes(BODY_BYTES - 1) + b"\n")
