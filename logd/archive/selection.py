"""Which archived messages are meant: by topic, by name or glob, and by time."""

from __future__ import annotations

import fnmatch
from typing import NamedTuple

from logd.archive.manifest import ArchivedFile, ManifestState
from logd.archive.object_stores import ArchiveStore
from logd.archive.parquet import EVER_MS, ParquetSource, offsets_between
from logd.errors import NotFound
from logd.wire.offset_ranges import OffsetRange, joined


def chosen(
    state: ManifestState, patterns: list[str], others: list[str] | None = None
) -> list[ParquetSource]:
    """The archived topics that these names or globs mean, once for each id that a name had.

    NotFound where a name means neither one of these nor one of `others`.
    """
    known = {*state.topics, *(others or [])}
    for pattern in patterns:
        if set(pattern).isdisjoint("*?[") and pattern not in known:
            raise NotFound(f"no topic {pattern} in the archive; it has {_some(state)}")
    return [
        ParquetSource(topic, id_)
        for topic, ids in sorted(state.topics.items())
        if not patterns or any(fnmatch.fnmatchcase(topic, pattern) for pattern in patterns)
        for id_ in sorted(ids)
    ]


def _some(state: ManifestState) -> str:
    names = sorted(state.topics)
    return ", ".join(names[:5]) + (" and others" if len(names) > 5 else "") or "none yet"


class TimeWindow(NamedTuple):
    """From a time up to, and without, another."""

    since_ms: int = 0
    until_ms: int = EVER_MS

    def touches(self, file: ArchivedFile) -> bool:
        return file.max_time_ms >= self.since_ms and file.min_time_ms < self.until_ms

    def holds(self, file: ArchivedFile) -> bool:
        return self.since_ms <= file.min_time_ms and file.max_time_ms < self.until_ms

    def files(self, state: ManifestState, source: ParquetSource) -> list[ArchivedFile]:
        return [file for file in state.of(source.topic_id) if self.touches(file)]

    def ranges(
        self, store: ArchiveStore, state: ManifestState, source: ParquetSource
    ) -> list[OffsetRange]:
        """The archived offsets whose times are within. Files at the edges are looked into."""
        return joined(
            file.range if self.holds(file) else offsets_between(store, file, *self)
            for file in self.files(state, source)
        )
