"""Small files of one hour become one: which ones, and the task that rewrites them.

An hour that is over ends up in one file, or in as few as FILE_BYTES allows. The newest hour of a
topic is still growing, so it may keep a few: to rewrite it at each run would cost more than it
saves. Files that do not continue each other are left apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from logd.archive import parquet
from logd.archive.manifest import ArchivedFile
from logd.archive.object_stores import ArchiveStore
from logd.archive.parquet import FILE_BYTES, FILE_MESSAGES, ParquetFiles, ParquetRows, ParquetSource
from logd.wire.offset_ranges import joined

GROWING_FILES = 4  # of the newest hour, before they are worth a rewrite


def due(files: Iterable[ArchivedFile]) -> list[list[ArchivedFile]]:
    """Groups of files, each to be rewritten as one."""
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
    """Neighbours of one hour that fit into one file together."""
    group: list[ArchivedFile] = []
    for file in files:
        if group and not _fits(group, file):
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def _fits(group: list[ArchivedFile], file: ArchivedFile) -> bool:
    together = [*group, file]
    return (
        (group[-1].next, group[-1].hour) == (file.first, file.hour)
        and sum(one.value_bytes for one in together) <= FILE_BYTES
        and sum(one.messages for one in together) <= FILE_MESSAGES
    )


def rewrite(store: ArchiveStore, group: list[ArchivedFile]) -> list[ArchivedFile]:
    """The same messages in new files. The old ones are left where they are."""
    added: list[ArchivedFile] = []
    source = ParquetSource(group[0].topic, group[0].topic_id)
    with ParquetFiles(store, source, added.append) as files:
        for file in sorted(group, key=lambda file: file.first):
            for batch in parquet.read(store, file, [file.range]):
                files.add(ParquetRows.of(batch))
    before, after = (joined(file.range for file in each) for each in (group, added))
    assert before == after, (before, after)
    return added
