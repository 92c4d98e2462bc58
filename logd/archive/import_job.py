"""The import job: archived messages back into a daemon, in their order, each once.

Before anything is pushed, a plan is kept in the archive: which offsets go to which topic, cut into
segments. A segment is pushed under a producer's name that is made of the topic's id and its
offsets, in batches that its messages alone decide, so the daemon recognises what it has already.
Killed anywhere and run again, the same plan is carried out again, also when the archive was
compacted or has grown meanwhile; what has come since gets a plan of its own.

    <archive>/_imports/<topic id>/<topic>/000001.json         a plan
    <archive>/_imports/<topic id>/<topic>/000001-<id>.done    carried out, into this topic id

Topics go side by side, the segments of one topic one behind the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from logd.archive.archive_job import Say, StartSpark, sliced
from logd.archive.import_push import ImportPush
from logd.archive.manifest import ArchivedFile, Manifest, ManifestState
from logd.archive.object_stores import ArchiveStore
from logd.archive.parquet import ParquetSource
from logd.archive.selection import TimeWindow, chosen
from logd.client.client import Client
from logd.errors import ArchiveError, NotFound
from logd.wire.addresses import Target
from logd.wire.commands import checked_topic
from logd.wire.offset_ranges import OffsetRange, common, count, without
from logd.wire.text import counted

if TYPE_CHECKING:
    import pyarrow as pa

SEGMENT = 1 << 16  # offsets: at its multiples all plans cut, so that most of their segments agree
_TRIES = 10
RESULT = "topic_id string, written bigint"
_PLAN = re.compile(r"([0-9]{6})(?:-([0-9a-f]+)\.done|\.json)")


class ImportPlan(msgspec.Struct, frozen=True):
    segments: list[OffsetRange]


class ImportTask(msgspec.Struct, frozen=True):
    """What one of Spark's tasks does: the plans of one topic, one behind the other."""

    source: ParquetSource
    into: str
    plans: dict[int, list[OffsetRange]]  # by their numbers
    files: list[ArchivedFile]

    @property
    def ranges(self) -> list[OffsetRange]:
        return [each for segments in self.plans.values() for each in segments]

    @property
    def messages(self) -> int:
        return count(self.ranges)


class ImportCounts(NamedTuple):
    """`messages` is the sum of the two behind it."""

    topic: str
    topic_id: str
    into: str
    messages: int  # in the archive, as far as they were asked for
    already: int
    written: int


def import_(
    store: ArchiveStore, address: Target, patterns: list[str], into: str | None, window: TimeWindow,
    start_spark: StartSpark, say: Say = lambda text: None,
) -> list[ImportCounts]:  # fmt: skip
    state = Manifest(store).existing()
    sources = chosen(state, patterns)
    if not sources:
        raise NotFound(f"{store.url} has no topic like {' '.join(patterns)}")
    if into is not None and len(sources) > 1:
        names = ", ".join(f"{topic} ({id_[:8]})" for topic, id_ in sources)
        raise ArchiveError(f"--into takes one topic, and there are several: {names}; choose one")
    wanted = {source: window.ranges(store, state, source) for source in sources}
    tasks = _tasks(store, state, address, wanted, into)
    due = sum(task.messages for task in tasks)
    written: dict[str, int] = {}
    if due:
        say(f"importing {counted(due, 'message')} of {counted(len(tasks), 'topic')}")
        with start_spark() as spark:
            rows = [(msgspec.json.encode(task),) for task in tasks if task.plans]
            work = sliced(spark, rows, "task binary", len(rows))
            frame = work.mapInArrow(partial(_carry_out, store, address), RESULT)
            written = {row.topic_id: row.written for row in frame.collect()}
    return [_counts(task, wanted[task.source], written) for task in tasks]


def _tasks(
    store: ArchiveStore,
    state: ManifestState,
    address: Target,
    wanted: dict[ParquetSource, list[OffsetRange]],
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
    """An unfinished plan may hold more than is asked for now."""
    new = written.get(task.source.topic_id, 0)
    messages = max(count(wanted), count([*wanted, *task.ranges]))
    return ImportCounts(*task.source, task.into, messages, messages - new, new)


def _topic_id(client: Client, topic: str) -> str:
    try:
        return client.stats(topic)["id"]
    except NotFound:
        return ""  # the first push makes it


# -- plans ----------------------------------------------------------------------------------------


def _task(
    store: ArchiveStore,
    state: ManifestState,
    source: ParquetSource,
    into: str,
    ranges: list[OffsetRange],
    target_id: str,
) -> ImportTask:
    """The plans that are still to be carried out, a new one for what no plan has included."""
    for _ in range(_TRIES):
        plans, done = _plans(store, source, into)
        current = {n for n, ids in done.items() if target_id in ids}
        due = {n: plan for n, plan in plans.items() if n in current or not done.get(n)}
        planned = [each for plan in due.values() for each in plan.segments]
        if new := _segments(without(ranges, planned)):
            name = f"{_folder(source, into)}/{max(plans, default=0) + 1:06d}.json"
            store.create(name, msgspec.json.encode(ImportPlan(new)))
            continue  # also where another run was quicker: look again
        left = {n: plan.segments for n, plan in sorted(due.items()) if n not in current}
        needed = [each for segments in left.values() for each in segments]
        files = [file for file in state.of(source.topic_id) if common([file.range], needed)]
        return ImportTask(source, into, left, files)
    raise ArchiveError(f"others import from {store.url} all the time; try again")


def _segments(ranges: list[OffsetRange]) -> list[OffsetRange]:
    found = []
    for first, next_ in ranges:
        edges = range(first - first % SEGMENT + SEGMENT, next_, SEGMENT)
        cuts = [first, *edges, next_]
        found += [OffsetRange(*each) for each in pairwise(cuts)]
    return found


def _plans(
    store: ArchiveStore, source: ParquetSource, into: str
) -> tuple[dict[int, ImportPlan], dict[int, set[str]]]:
    """Plans by number, and into which topic ids each was carried out."""
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
                    f"{store.url}: {found.path} is damaged ({error}); remove it only if what it"
                    f" imported into {into} does not matter"
                ) from None
            plans[int(match[1])] = plan
    return plans, done


def _folder(source: ParquetSource, into: str) -> str:
    return f"_imports/{source.topic_id}/{into}"


# -- what Spark does ------------------------------------------------------------------------------


def _carry_out(
    store: ArchiveStore, address: Target, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        for encoded in batch.column("task").to_pylist():
            task = msgspec.json.decode(encoded, type=ImportTask)
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
        if common([file.range], [segment]):
            for part in parquet.read(store, file, [segment]):
                yield from part.column("value").to_pylist()
