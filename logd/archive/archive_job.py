"""The archive job: writes the messages that are not archived yet to Parquet, in one commit.

Spark reads the missing offsets in parallel. Each task writes files and returns their metadata. When
all files exist and contain every expected offset, one commit adds them to the manifest. If the job
is killed before, it leaves only files that the manifest does not list, and the next run writes the
messages again. Then small files are merged in a second commit.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from logd.archive import compaction, daemon_topics, vacuum
from logd.archive.daemon_topics import DaemonTopic
from logd.archive.manifest import (
    ArchivedFile,
    CommitConflict,
    LostOffsets,
    Manifest,
    ManifestState,
    new_commit,
)
from logd.archive.object_stores import ArchiveStore
from logd.client.client import Client
from logd.errors import ArchiveError, Faulted, OutOfRange
from logd.wire.addresses import Endpoint, Target, addresses
from logd.wire.offset_ranges import OffsetRange, count_offsets, merge, subtract
from logd.wire.text import counted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_MAX_ATTEMPTS = 5  # delete hooks may commit the same offsets at the same time
_MAX_TASKS = 10_000

T = TypeVar("T")
StartSpark = Callable[[], AbstractContextManager["SparkSession"]]
Notify = Callable[[str], None]


class ArchiveCounts(NamedTuple):
    """The messages of a topic: `messages` is the sum of the next five fields."""

    topic: str
    messages: int  # in the daemon at the start of the run
    already: int  # archived before
    written: int
    lost: int  # a gap in the files of the daemon
    gone: int  # expired during the run
    held: int  # not synced yet, or of a damaged topic: left for a later run
    files: int
    bytes: int  # of the new files


@dataclass(slots=True)
class DueTopic:
    """A topic and its offsets to archive."""

    live: DaemonTopic
    ranges: list[OffsetRange]
    added: list[ArchivedFile] = field(default_factory=list)
    lost: list[LostOffsets] = field(default_factory=list)
    expired: list[OffsetRange] = field(default_factory=list)

    def counts(self, state: ManifestState) -> ArchiveCounts:
        """`state` is the state of the manifest after the commit."""
        topic, id_, first, safe, next_, _ = self.live
        written = sum(file.messages for file in self.added)
        lost = count_offsets(one.range for one in self.lost)
        gone = count_offsets(subtract(self.expired, state.covered(id_)))
        return ArchiveCounts(
            topic, next_ - first, safe - first - written - lost - gone, written, lost, gone,
            next_ - safe, len(self.added), sum(file.file_bytes for file in self.added),
        )  # fmt: skip


class ArchiveReport(NamedTuple):
    topics: list[ArchiveCounts]
    damaged: list[str]  # topics that were skipped
    joined_files: int  # small files that were merged
    into_files: int
    removed_files: int  # no longer listed in the manifest


@dataclass(slots=True)
class Archiver:
    store: ArchiveStore
    address: Target
    start_spark: StartSpark
    notify: Notify = lambda text: None
    _spark: SparkSession | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    def run(self, patterns: list[str], *, compacts: bool = True) -> ArchiveReport:
        """Archive the topics with these names or globs; all if there are none."""
        manifest = Manifest(self.store)
        with self._stack:
            for _ in range(_MAX_ATTEMPTS):
                state = manifest.state()
                with Client(self.address) as client:
                    topics = daemon_topics.names(client, patterns)
                    dues = [_find_due(client, state, topic) for topic in topics]
                try:
                    state = self._archive(manifest, state, dues)
                    break
                except CommitConflict:
                    self.notify("another process archived the same messages; retrying")
            else:
                raise ArchiveError(f"too many concurrent commits to {self.store.url}; try again")
            before, into = self._compact(manifest) if compacts else (0, 0)
            removed = vacuum.clean(manifest, time.time())
        damaged = [due.live.topic for due in dues if due.live.is_damaged]
        return ArchiveReport([due.counts(state) for due in dues], damaged, before, into, removed)

    def _archive(
        self, manifest: Manifest, state: ManifestState, dues: list[DueTopic]
    ) -> ManifestState:
        began_s = time.monotonic()
        wanted = [due for due in dues if due.ranges]
        if wanted:
            total = sum(count_offsets(due.ranges) for due in wanted)
            self.notify(f"archiving {counted(total, 'message')} of {counted(len(wanted), 'topic')}")
            files = self._write_files(wanted)
            with Client(self.address) as client:  # a new one, since the job may have taken long
                for due in wanted:
                    due.added = [file for file in files if file.topic_id == due.live.id]
                    _explain_missing(client, due)
        _check_duration(began_s)
        added = [file for due in dues for file in due.added]
        lost = [one for due in dues for one in due.lost]
        if added or lost or not state.number:
            commit = new_commit(secrets.token_hex(8), "archive", added=added, lost=lost)
            state = manifest.commit(commit, state)
        return state

    def _write_files(self, dues: list[DueTopic]) -> list[ArchivedFile]:
        ids = {due.live.topic: due.live.id for due in dues}
        frame = read_ranges(self.spark, self.address, {d.live.topic: d.ranges for d in dues})
        return collect_files(frame.mapInArrow(partial(_write, self.store, ids), "file binary"))

    def _compact(self, manifest: Manifest) -> tuple[int, int]:
        groups = compaction.groups_to_merge(manifest.state().files.values())
        if not groups:
            return 0, 0
        began_s = time.monotonic()
        old = [file for group in groups for file in group]
        self.notify(f"merging {len(old)} small files")
        frame = parallelize(self.spark, groups)
        new = collect_files(frame.mapInArrow(partial(_rewrite, self.store), "file binary"))
        removed = [file.path for file in old]
        _check_duration(began_s)
        commit = new_commit(secrets.token_hex(8), "join", added=new, removed=removed)
        try:
            manifest.commit(commit)
        except CommitConflict:
            return 0, 0  # another process merged them; vacuum removes these files later
        return len(old), len(new)

    @property
    def spark(self) -> SparkSession:
        """Started at first use."""
        if self._spark is None:
            self._spark = self._stack.enter_context(self.start_spark())
        return self._spark


def _check_duration(began_s: float) -> None:
    """Another process may already be removing the first files of this run."""
    if time.monotonic() - began_s > vacuum.LONGEST_RUN_S:
        raise ArchiveError("the run took too long to commit safely; archive fewer topics at a time")


def _find_due(client: Client, state: ManifestState, topic: str) -> DueTopic:
    found = daemon_topics.inspect_topic(client, topic)
    ranges = subtract([OffsetRange(found.first, found.safe)], state.covered(found.id))
    return DueTopic(found, ranges)


def _explain_missing(client: Client, due: DueTopic) -> None:
    """Count offsets that were not read because they are lost or expired; others are an error."""
    topic, id_ = due.live.source
    stats = client.stats(topic)
    if stats["id"] != id_:
        raise OutOfRange(f"{topic} was deleted and created again; run the command again")
    first = int(stats["first"])
    missing = subtract(due.ranges, [file.range for file in due.added])
    due.expired = merge(OffsetRange(r.first, min(r.next, first)) for r in missing)
    for range_ in subtract(missing, due.expired):
        lost = daemon_topics.lost_within(client, topic, range_)
        for left in subtract([range_], lost):
            raise Faulted(f"offsets {left} of {topic} could not be read; see `log-cli check`")
        due.lost += [LostOffsets(topic, id_, *each) for each in lost]


# -- Spark ----------------------------------------------------------------------------------------


def read_ranges(
    spark: SparkSession,
    address: Target,
    ranges: dict[str, list[OffsetRange]],
    *,
    fails_on_loss: bool = False,
) -> DataFrame:
    """The messages at these offsets. Without `fails_on_loss` some may be missing."""
    frames = []
    rounds = max(map(len, ranges.values()))
    for n in range(rounds):
        select_topics = {topic: each[n] for topic, each in ranges.items() if n < len(each)}
        frames.append(
            spark.read.format("logd")
            .options(**_connection_options(address))
            .option("subscribe", ",".join(select_topics))
            .option("startingOffsets", json.dumps({t: r.first for t, r in select_topics.items()}))
            .option("endingOffsets", json.dumps({t: r.next for t, r in select_topics.items()}))
            .option("failOnDataLoss", str(fails_on_loss).lower())
            .load()
        )
    frame = frames[0]
    for other in frames[1:]:
        frame = frame.unionAll(other)
    return frame


def _connection_options(target: Target) -> dict[str, str]:
    """The address and the credentials, as options of the data source."""
    options = {"host": addresses(target)[0]}
    if isinstance(target, Endpoint):
        given = {"token": target.token, "tokenFile": target.token_file, "ca": target.ca}
        given |= {"cert": target.cert, "key": target.key}
        options |= {name: value for name, value in given.items() if value is not None}
    return options


def parallelize(spark: SparkSession, items: Sequence[object]) -> DataFrame:
    """Items of work, one per task. The tasks get them from `decode_items`."""
    rows = [(msgspec.json.encode(item),) for item in items]
    slices = max(1, min(len(rows), _MAX_TASKS))
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, slices), "item binary")


def decode_items(batches: Iterable[pa.RecordBatch], kind: type[T]) -> Iterator[T]:
    for batch in batches:
        for encoded in batch.column("item").to_pylist():
            yield msgspec.json.decode(encoded, type=kind)


def collect_files(frame: DataFrame) -> list[ArchivedFile]:
    return [msgspec.json.decode(row.file, type=ArchivedFile) for row in frame.collect()]


def _write(
    store: ArchiveStore, ids: dict[str, str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A Spark task: writes its messages to files and returns their metadata."""
    import pyarrow.compute as pc

    from logd.archive.parquet import ArchivedTopic, ParquetFiles, ParquetRows

    added: list[ArchivedFile] = []
    with ExitStack() as stack:
        files: dict[str, ParquetFiles] = {}
        for batch in batches:
            for topic in pc.unique(batch.column("topic")).to_pylist():
                if topic not in files:
                    source = ArchivedTopic(topic, ids[topic])
                    files[topic] = stack.enter_context(ParquetFiles(store, source, added.append))
                ours = batch.filter(pc.equal(batch.column("topic"), topic))
                files[topic].add(ParquetRows.of(ours))
    yield _as_rows(added)


def _rewrite(store: ArchiveStore, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A Spark task: merges groups of small files."""
    for group in decode_items(batches, list[ArchivedFile]):
        yield _as_rows(compaction.rewrite(store, group))


def _as_rows(files: list[ArchivedFile]) -> pa.RecordBatch:
    import pyarrow as pa

    encoded = pa.array([msgspec.json.encode(file) for file in files], pa.binary())
    return pa.RecordBatch.from_arrays([encoded], ["file"])
