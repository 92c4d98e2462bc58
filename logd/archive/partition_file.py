"""Archives one partition file, as a delete hook of the daemon.

It does not use Spark: starting Java would take longer than writing most partitions, and the hook
runs for each one. The file is read with `batch.scan`, which verifies every checksum. Messages that
are archived already are not written again. Invariant: when this returns, every message of the file
is in existing files of the archive; in case of doubt it raises.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import NamedTuple

from logd.archive import parquet
from logd.archive.manifest import (
    ArchivedFile,
    CommitConflict,
    LostOffsets,
    Manifest,
    ManifestState,
    new_commit,
)
from logd.archive.object_stores import ArchiveStore
from logd.archive.parquet import ArchivedTopic, ParquetFiles
from logd.batch import GAP, scan
from logd.errors import ArchiveError, DamagedBatch, DataDirError
from logd.storage.disk import File as LogFile
from logd.storage.recovery import read_meta
from logd.wire.offset_ranges import OffsetRange, count_offsets, intersect, merge, subtract
from logd.wire.read_state import Batch, split

_MAX_ATTEMPTS = 5
_BUFFER_BYTES = 4 << 20  # small batches are written together


class PartitionCounts(NamedTuple):
    """The messages of a partition: `read` is the sum of `already`, `written` and `lost`."""

    topic: str
    first: int
    next: int
    read: int
    already: int
    written: int
    lost: int
    files: int


def archive_partition(
    store: ArchiveStore, path: Path, topic: str, range_: OffsetRange
) -> PartitionCounts:
    """`range_` are the offsets of the file, according to the daemon."""
    topic_id, damages = read_meta(path.parent)
    if damages:
        raise DataDirError(f"{path.parent} has a damaged meta.json; see `log-cli check`")
    source, manifest = ArchivedTopic(topic, topic_id), Manifest(store)
    for _ in range(_MAX_ATTEMPTS):
        state = manifest.state()
        due = subtract([range_], state.covered(topic_id))
        try:
            added, lost = _copy(store, path, source, range_, due)
            if added or lost:
                run = secrets.token_hex(8)
                commit = new_commit(run, f"partition {path.name}", added=added, lost=lost)
                state = manifest.commit(commit, state)
        except CommitConflict:
            continue  # another process has archived the same messages
        _verify(store, state, source, range_)
        written = sum(file.messages for file in added)
        total = range_.next - range_.first
        lost_count = count_offsets([one.range for one in lost])
        return PartitionCounts(
            topic, *range_, total, total - count_offsets(due), written, lost_count, len(added)
        )  # fmt: skip
    raise ArchiveError(f"too many concurrent commits to {store.url}; try again")


def _copy(
    store: ArchiveStore,
    path: Path,
    source: ArchivedTopic,
    range_: OffsetRange,
    due: list[OffsetRange],
) -> tuple[list[ArchivedFile], list[LostOffsets]]:
    added: list[ArchivedFile] = []
    lost: list[OffsetRange] = []
    if not due:
        return [], []
    log, at = LogFile(path), range_.first
    buffered: list[Batch] = []
    size = 0  # of the bodies of `buffered`
    with ParquetFiles(store, source, added.append) as files:
        for found in scan(log.read_waiting, 0, log.size(), expect=range_.first):
            header = found.header
            at = header.next
            wanted = intersect([OffsetRange(header.offset, header.next)], due)
            if header.enc == GAP:
                lost += wanted
            else:
                buffered += [split(found, *each) for each in wanted]
            size += header.size
            if size >= _BUFFER_BYTES:
                _add(files, buffered)
                buffered, size = [], 0
        _add(files, buffered)
    if at != range_.next:
        raise DamagedBatch(f"{path.name} ends at offset {at}, not {range_.next}", log.size())
    return added, [LostOffsets(*source, *each) for each in merge(lost)]


def _add(files: ParquetFiles, buffered: list[Batch]) -> None:
    if buffered:
        files.add(parquet.rows(buffered))


def _verify(
    store: ArchiveStore, state: ManifestState, source: ArchivedTopic, range_: OffsetRange
) -> None:
    """The last check before the daemon deletes the only other copy."""
    left = subtract([range_], state.covered(source.topic_id))
    if left:
        raise ArchiveError(f"{store.url} does not have offsets {left[0]} of {source.topic}")
    for file in state.of(source.topic_id):
        if intersect([file.range], [range_]) and _size(store, file) != file.file_bytes:
            raise ArchiveError(f"{store.url}: {file.path} differs from its commit")


def _size(store: ArchiveStore, file: ArchivedFile) -> int:
    try:
        return store.size(file.path)
    except FileNotFoundError:
        return -1
