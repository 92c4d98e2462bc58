"""The import job: pushes archived messages to a daemon, in order and each once.

Before the first push, the job stores a plan in the archive: the offsets for a topic, divided into
segments. The producer name of a segment consists of the topic id and its offsets, and its messages
alone determine its batches, so the daemon recognizes batches that it has. A job that was killed
continues the same plan when it runs again, even if the archive was compacted or has grown. New
messages get a new plan.

    <archive>/_imports/<topic id>/<topic>/000001.json         a plan
    <archive>/_imports/<topic id>/<topic>/000001-<id>.done    completed, for this topic id

Topics are imported in parallel, the segments of a topic one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from logd.archive.archive_job import Notify, StartSpark, decode_items, parallelize
from logd.archive.import_push import ImportPush
from logd.archive.manifest import ArchivedFile, Manifest, ManifestState
from logd.archive.object_stores import ArchiveStore
from logd.archive.parquet import ArchivedTopic
from logd.archive.selection import TimeWindow, select_topics
from logd.client.client import Client
from logd.errors import ArchiveError, NotFound
from logd.wire.addresses import Target
from logd.wire.commands import checked_topic
from logd.wire.offset_ranges import OffsetRange, count_offsets, intersect, subtract
from logd.wire.text import counted

if TYPE_CHECKING:
    import pyarrow as pa

SEGMENT = 1 << 16  # offsets; segments end at its multiples, so that most are in all plans
_MAX_ATTEMPTS = 10
RESULT = "topic_id string, written bigint"
_PLAN = re.compile(r"([0-9]{6})(?:-([0-9a-f]+)\.done|\.json)")


class ImportPlan(msgspec.Struct, frozen=True):
    segments: list[OffsetRange]


class ImportTask(msgspec.Struct, frozen=True):
    """The work of a Spark task: the plans of one topic, in order."""

    source: ArchivedTopic
    into: str
    plans: dict[int, list[OffsetRange]]  # by number
    files: list[ArchivedFile]

    @property
    def ranges(self) -> list[OffsetRange]:
        return [each for segments in self.plans.values() for each in segments]

    @property
    def messages(self) -> int:
        return count_offsets(self.ranges)


class ImportCounts(NamedTuple):
    """`messages` is the sum of the last two fields."""

    topic: str
    topic_id: str
    into: str
    messages: int  # archived messages that were selected
    already: int
    written: int


def import_(
    store: ArchiveStore, address: Target, patterns: list[str], into: str | None, window: TimeWindow,
    start_spark: StartSpark, notify: Notify = lambda text: None,
) -> list[ImportCounts]:  # fmt: skip
    state = Manifest(store).existing()
    sources = select_topics(state, patterns)
    if not sources:
        raise NotFound(f"{store.url} has no topic like {' '.join(patterns)}")
    if into is not None and len(sources) > 1:
        names = ", ".join(f"{topic} ({id_[:8]})" for topic, id_ in sources)
        raise ArchiveError(f"--into needs one topic, but these match: {names}; choose one")
    wanted = {source: window.ranges(store, state, source) for source in sources}
    tasks = _tasks(store, state, address, wanted, into)
    due = sum(task.messages for task in tasks)
    written: dict[str, int] = {}
    if due:
        notify(f"importing {counted(due, 'message')} of {counted(len(tasks), 'topic')}")
        with start_spark() as spark:
            work = parallelize(spark, [task for task in tasks if task.plans])
            frame = work.mapInArrow(partial(_run_tasks, store, address), RESULT)
            written = {row.topic_id: row.written for row in frame.collect()}
    return [_counts(task, wanted[task.source], written) for task in tasks]


def _tasks(
    store: ArchiveStore,
    state: ManifestState,
    address: Target,
    wanted: dict[ArchivedTopic, list[OffsetRange]],
    into: str | None,
) -> list[ImportTask]:
    with Client(address) as client:
        names = {source: checked_topic(into or source.topic) for source in wanted}
        ids = {source: _topic_id(client, name) for source, name in names.items()}
    return [
        _task(store, state, source, names[source], ranges, ids[source])
        for source, ranges in wanted.items()
    ]


def _counts(task: ImportTask, wanted: list[OffsetRange], written: dict[str, int]) -> ImportCounts:
    """An unfinished plan may contain more messages than are selected now."""
    new = written.get(task.source.topic_id, 0)
    messages = max(count_offsets(wanted), count_offsets([*wanted, *task.ranges]))
    return ImportCounts(*task.source, task.into, messages, messages - new, new)


def _topic_id(client: Client, topic: str) -> str:
    try:
        return client.stats(topic)["id"]
    except NotFound:
        return ""  # the first push creates it


# -- plans ----------------------------------------------------------------------------------------


def _task(
    store: ArchiveStore,
    state: ManifestState,
    source: ArchivedTopic,
    into: str,
    ranges: list[OffsetRange],
    target_id: str,
) -> ImportTask:
    """The unfinished plans, with a new one for offsets that are in no plan."""
    for _ in range(_MAX_ATTEMPTS):
        plans, done = _plans(store, source, into)
        current = {n for n, ids in done.items() if target_id in ids}
        due = {n: plan for n, plan in plans.items() if n in current or not done.get(n)}
        planned = [each for plan in due.values() for each in plan.segments]
        if new := _segments(subtract(ranges, planned)):
            name = f"{_folder(source, into)}/{max(plans, default=0) + 1:06d}.json"
            store.create(name, msgspec.json.encode(ImportPlan(new)))
            continue  # also if another run has created this plan first
        left = {n: plan.segments for n, plan in sorted(due.items()) if n not in current}
        needed = [each for segments in left.values() for each in segments]
        files = [file for file in state.of(source.topic_id) if intersect([file.range], needed)]
        return ImportTask(source, into, left, files)
    raise ArchiveError(f"too many concurrent imports from {store.url}; try again")


def _segments(ranges: list[OffsetRange]) -> list[OffsetRange]:
    found = []
    for first, next_ in ranges:
        edges = range(first - first % SEGMENT + SEGMENT, next_, SEGMENT)
        cuts = [first, *edges, next_]
        found += [OffsetRange(*each) for each in pairwise(cuts)]
    return found


def _plans(
    store: ArchiveStore, source: ArchivedTopic, into: str
) -> tuple[dict[int, ImportPlan], dict[int, set[str]]]:
    """The plans by number, and the topic ids for which each was completed."""
    plans: dict[int, ImportPlan] = {}
    done: dict[int, set[str]] = {}
    folder = _folder(source, into)
    for found in store.list(folder):
        match = _PLAN.fullmatch(found.path.rpartition("/")[2])
        if match is None:
            continue
        if match[2]:
            done.setdefault(int(match[1]), set()).add(match[2])
        else:
            try:
                plan = msgspec.json.decode(store.get(found.path), type=ImportPlan)
            except msgspec.DecodeError as error:
                raise ArchiveError(
                    f"{store.url}: {found.path} is damaged ({error}); if you remove it, messages"
                    f" may be imported into {into} again"
                ) from None
            plans[int(match[1])] = plan
    return plans, done


def _folder(source: ArchivedTopic, into: str) -> str:
    return f"_imports/{source.topic_id}/{into}"


# -- Spark ----------------------------------------------------------------------------------------


def _run_tasks(
    store: ArchiveStore, address: Target, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for task in decode_items(batches, ImportTask):
        result = {"topic_id": [task.source.topic_id], "written": [_push(store, address, task)]}
        yield pa.RecordBatch.from_pydict(result)


def _push(store: ArchiveStore, address: Target, task: ImportTask) -> int:
    written = 0
    with closing(ImportPush(address, task.into)) as pushing:
        for number, segments in task.plans.items():
            for segment in segments:
                read = partial(_values, store, task.files, segment)
                written += pushing.push(task.source.topic_id, segment, read)
            done = f"{_folder(task.source, task.into)}/{number:06d}-{pushing.topic_id()}.done"
            store.create(done, b"")
    return written


def _values(
    store: ArchiveStore, files: list[ArchivedFile], segment: OffsetRange
) -> Iterator[bytes]:
    from logd.archive import parquet

    for file in files:
        if intersect([file.range], [segment]):
            for part in parquet.read(store, file, [segment]):
                yield from part.column("value").to_pylist()
