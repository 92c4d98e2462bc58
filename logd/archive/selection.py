"""Selects archived messages by topic name or glob, and by time."""

from __future__ import annotations

import fnmatch
from typing import NamedTuple

from logd.archive.manifest import ArchivedFile, ManifestState
from logd.archive.object_stores import ArchiveStore
from logd.archive.parquet import MAX_TIME_MS, ArchivedTopic, offsets_between
from logd.errors import NotFound
from logd.wire.offset_ranges import OffsetRange, merge


def select_topics(
    state: ManifestState, patterns: list[str], others: list[str] | None = None
) -> list[ArchivedTopic]:
    """The archived topics that match these names or globs, once per topic id.

    NotFound if a name matches neither one of these nor one of `others`.
    """
    known = {*state.topics, *(others or [])}
    for pattern in patterns:
        if set(pattern).isdisjoint("*?[") and pattern not in known:
            raise NotFound(f"no topic {pattern} in the archive; it contains {_some(state)}")
    return [
        ArchivedTopic(topic, id_)
        for topic, ids in sorted(state.topics.items())
        if not patterns or any(fnmatch.fnmatchcase(topic, pattern) for pattern in patterns)
        for id_ in sorted(ids)
    ]


def _some(state: ManifestState) -> str:
    names = sorted(state.topics)
    return ", ".join(names[:5]) + (" and others" if len(names) > 5 else "") or "none yet"


class TimeWindow(NamedTuple):
    """From `since_ms` to before `until_ms`."""

    since_ms: int = 0
    until_ms: int = MAX_TIME_MS

    def overlaps(self, file: ArchivedFile) -> bool:
        return file.max_time_ms >= self.since_ms and file.min_time_ms < self.until_ms

    def contains(self, file: ArchivedFile) -> bool:
        return self.since_ms <= file.min_time_ms and file.max_time_ms < self.until_ms

    def files(self, state: ManifestState, source: ArchivedTopic) -> list[ArchivedFile]:
        return [file for file in state.of(source.topic_id) if self.overlaps(file)]

    def ranges(
        self, store: ArchiveStore, state: ManifestState, source: ArchivedTopic
    ) -> list[OffsetRange]:
        """The archived offsets within the window. Files at its ends are read."""
        return merge(
            file.range if self.contains(file) else offsets_between(store, file, *self)
            for file in self.files(state, source)
        )
