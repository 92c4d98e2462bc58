"""Compaction: merges the small files of an hour.

The files of a past hour are merged into one file, or into as few as FILE_BYTES allows. The newest
hour of a topic is still growing and may keep a few files, since rewriting it in each run would cost
more than it saves. Only files with adjacent offsets are merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from logd.archive import parquet
from logd.archive.manifest import ArchivedFile
from logd.archive.object_stores import ArchiveStore
from logd.archive.parquet import FILE_BYTES, FILE_MESSAGES, ArchivedTopic, ParquetFiles, ParquetRows
from logd.wire.offset_ranges import merge

GROWING_FILES = 4  # the newest hour is merged from this number of files on


def groups_to_merge(files: Iterable[ArchivedFile]) -> list[list[ArchivedFile]]:
    """Groups of files to merge."""
    topics: dict[str, list[ArchivedFile]] = {}
    for file in files:
        topics.setdefault(file.topic_id, []).append(file)
    found = []
    for ours in topics.values():
        newest = max(file.hour for file in ours)
        for group in _groups(sorted(ours, key=lambda file: file.first)):
            if len(group) >= (GROWING_FILES if group[0].hour == newest else 2):
                found.append(group)
    return found


def _groups(files: list[ArchivedFile]) -> Iterator[list[ArchivedFile]]:
    """Adjacent files of one hour that merged fit into one file."""
    group: list[ArchivedFile] = []
    for file in files:
        if group and not _fits(group, file):
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def _fits(group: list[ArchivedFile], file: ArchivedFile) -> bool:
    merged = [*group, file]
    return (
        (group[-1].next, group[-1].hour) == (file.first, file.hour)
        and sum(one.value_bytes for one in merged) <= FILE_BYTES
        and sum(one.messages for one in merged) <= FILE_MESSAGES
    )


def rewrite(store: ArchiveStore, group: list[ArchivedFile]) -> list[ArchivedFile]:
    """Write the messages to new files. The old files are not removed."""
    added: list[ArchivedFile] = []
    source = ArchivedTopic(group[0].topic, group[0].topic_id)
    with ParquetFiles(store, source, added.append) as files:
        for file in sorted(group, key=lambda file: file.first):
            for batch in parquet.read(store, file, [file.range]):
                files.add(ParquetRows.of(batch))
    before, after = (merge(file.range for file in each) for each in (group, added))
    assert before == after, (before, after)
    return added
