"""Archive one partition file of a daemon: what a delete hook does before the file goes.

Without Spark: a Java machine would take longer to start than most partitions take to be written,
and a hook runs for each of them. The file is read by the one scanner, so every sum is checked. What
the archive has already is not written again. Always: when this returns, every message of the file
is in files that count and that are there; where it is not sure, it raises.
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
from logd.archive.parquet import ParquetFiles, ParquetSource
from logd.batch import GAP, scan
from logd.errors import ArchiveError, DamagedBatch, DataDirError
from logd.storage.disk import File as LogFile
from logd.storage.recovery import read_meta
from logd.wire.offset_ranges import OffsetRange, common, count, joined, without
from logd.wire.read_state import Batch, split

_TRIES = 5
_GATHERED_BYTES = 4 << 20  # small batches are cheaper together


class Archived(NamedTuple):
    """What became of the messages of one partition: `read` is the sum of the other three."""

    topic: str
    first: int
    next: int
    read: int
    already: int
    written: int
    lost: int
    files: int


def archive_partition(store: ArchiveStore, path: Path, topic: str, range_: OffsetRange) -> Archived:
    """`range_` is what the daemon says that the file holds."""
    topic_id, damages = read_meta(path.parent)
    if damages:
        raise DataDirError(f"{path.parent} has a damaged meta.json; see `log-cli check`")
    source, manifest = ParquetSource(topic, topic_id), Manifest(store)
    for _ in range(_TRIES):
        state = manifest.state()
        due = without([range_], state.covered(topic_id))
        try:
            added, lost = _copy(store, path, source, range_, due)
            if added or lost:
                run = secrets.token_hex(8)
                commit = new_commit(run, f"partition {path.name}", added=added, lost=lost)
                state = manifest.commit(commit, state)
        except CommitConflict:
            continue  # somebody else archives the same at this moment; see what is left
        _make_sure(store, state, source, range_)
        written = sum(file.messages for file in added)
        total = range_.next - range_.first
        lost_count = count([one.range for one in lost])
        return Archived(
            topic, *range_, total, total - count(due), written, lost_count, len(added)
        )  # fmt: skip
    raise ArchiveError(f"{store.url}: others archive {topic} all the time; try again")


def _copy(
    store: ArchiveStore,
    path: Path,
    source: ParquetSource,
    range_: OffsetRange,
    due: list[OffsetRange],
) -> tuple[list[ArchivedFile], list[LostOffsets]]:
    added: list[ArchivedFile] = []
    lost: list[LostOffsets] = []
    if not due:
        return added, lost
    log, at = LogFile(path), range_.first
    gathered: list[Batch] = []
    size = 0  # of the bodies behind `gathered`
    with ParquetFiles(store, source, added.append) as files:
        for found in scan(log.read_waiting, 0, log.size(), expect=range_.first):
            header = found.header
            at = header.next
            for first, next_ in common([OffsetRange(header.offset, header.next)], due):
                if header.enc == GAP:
                    lost.append(LostOffsets(*source, first, next_))
                else:
                    gathered.append(split(found, first, next_))
            size += header.size
            if size >= _GATHERED_BYTES:
                _add(files, gathered)
                gathered, size = [], 0
        _add(files, gathered)
    if at != range_.next:
        raise DamagedBatch(f"{path.name} ends at offset {at}, not {range_.next}", log.size())
    return added, [LostOffsets(*source, *each) for each in joined(one.range for one in lost)]


def _add(files: ParquetFiles, gathered: list[Batch]) -> None:
    if gathered:
        files.add(parquet.rows(gathered))


def _make_sure(
    store: ArchiveStore, state: ManifestState, source: ParquetSource, range_: OffsetRange
) -> None:
    """The last look before the daemon deletes the only other copy."""
    left = without([range_], state.covered(source.topic_id))
    if left:
        raise ArchiveError(f"{store.url} still lacks offsets {left[0]} of {source.topic}")
    for file in state.of(source.topic_id):
        if common([file.range], [range_]) and _size(store, file) != file.file_bytes:
            raise ArchiveError(f"{store.url}: {file.path} is not what its commit says")


def _size(store: ArchiveStore, file: ArchivedFile) -> int:
    try:
        return store.size(file.path)
    except FileNotFoundError:
        return -1
