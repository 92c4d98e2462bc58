"""The archive job: what the daemon has and the archive has not becomes Parquet, in one commit.

Spark reads the offsets that are due in parallel; each task writes files of its own and returns what
they hold. Only when all of them are there, and hold every offset that was due, one commit makes
them count. Killed before that, a run leaves nothing but files that nobody looks at. Run again, it
finds what is still due. Then small files are joined, in a commit of its own.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from logd.archive import compaction, live_topics, vacuum
from logd.archive.live_topics import LiveTopic
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
from logd.errors import ArchiveError
from logd.wire.addresses import Endpoint, Target, addresses
from logd.wire.offset_ranges import OffsetRange, count, joined, without
from logd.wire.text import counted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_TRIES = 5  # where others commit the same meanwhile, such as delete hooks

StartSpark = Callable[[], AbstractContextManager["SparkSession"]]
Say = Callable[[str], None]


class ArchiveCounts(NamedTuple):
    """What became of a topic's messages: `messages` is the sum of the five behind it."""

    topic: str
    messages: int  # in the daemon when the run began
    already: int  # in the archive before
    written: int
    lost: int  # a gap in the daemon's files: nobody has them
    gone: int  # expired while the run was on its way
    held: int  # not on the daemon's disk yet, or of a damaged topic: for a later run
    files: int
    bytes: int  # of the new files


@dataclass(slots=True)
class DueTopic:
    """One topic, and what is to be read of it."""

    live: LiveTopic
    ranges: list[OffsetRange]
    added: list[ArchivedFile] = field(default_factory=list)
    lost: list[LostOffsets] = field(default_factory=list)
    expired: list[OffsetRange] = field(default_factory=list)

    def counts(self, state: ManifestState) -> ArchiveCounts:
        """`state` is the archive's when this was committed."""
        topic, id_, first, safe, next_, _ = self.live
        written = sum(file.messages for file in self.added)
        lost = count(one.range for one in self.lost)
        gone = count(without(self.expired, state.covered(id_)))
        return ArchiveCounts(
            topic, next_ - first, safe - first - written - lost - gone, written, lost, gone,
            next_ - safe, len(self.added), sum(file.file_bytes for file in self.added),
        )  # fmt: skip


class ArchiveReport(NamedTuple):
    topics: list[ArchiveCounts]
    damaged: list[str]  # topics that were left out
    joined_files: int  # small ones that were made fewer
    into_files: int
    removed_files: int  # that did not count any more


@dataclass(slots=True)
class Archiver:
    store: ArchiveStore
    address: Target
    start_spark: StartSpark
    say: Say = lambda text: None
    _spark: SparkSession | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    def run(self, patterns: list[str], *, compacts: bool = True) -> ArchiveReport:
        """Archive these topics, by names or globs; none: all."""
        manifest = Manifest(self.store)
        with self._stack:
            for _ in range(_TRIES):
                state = manifest.state()
                with Client(self.address) as client:
                    topics = live_topics.names(client, patterns)
                    dues = [_due(client, state, topic) for topic in topics]
                try:
                    state = self._archive(manifest, state, dues)
                    break
                except CommitConflict:
                    self.say("others have archived the same meanwhile; looking again")
            else:
                raise ArchiveError(f"others archive to {self.store.url} all the time; try again")
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
            total = sum(count(due.ranges) for due in wanted)
            self.say(f"archiving {counted(total, 'message')} of {counted(len(wanted), 'topic')}")
            files = self._written(wanted)
            with Client(self.address) as client:  # a new one: much time may have passed
                for due in wanted:
                    due.added = [file for file in files if file.topic_id == due.live.id]
                    _account(client, due)
        _in_time(began_s)
        added = [file for due in dues for file in due.added]
        lost = [one for due in dues for one in due.lost]
        if added or lost or not state.number:
            commit = new_commit(secrets.token_hex(8), "archive", added=added, lost=lost)
            state = manifest.commit(commit, state)
        return state

    def _written(self, dues: list[DueTopic]) -> list[ArchivedFile]:
        ids = {due.live.topic: due.live.id for due in dues}
        frame = read_ranges(self.spark, self.address, {d.live.topic: d.ranges for d in dues})
        return collected(frame.mapInArrow(partial(_write, self.store, ids), "file binary"))

    def _compact(self, manifest: Manifest) -> tuple[int, int]:
        groups = compaction.due(manifest.state().files.values())
        if not groups:
            return 0, 0
        began_s = time.monotonic()
        old = [file for group in groups for file in group]
        self.say(f"joining {len(old)} small files")
        rows = [(msgspec.json.encode(group),) for group in groups]
        frame = sliced(self.spark, rows, "files binary", len(rows))
        new = collected(frame.mapInArrow(partial(_rewrite, self.store), "file binary"))
        removed = [file.path for file in old]
        _in_time(began_s)
        commit = new_commit(secrets.token_hex(8), "join", added=new, removed=removed)
        try:
            manifest.commit(commit)
        except CommitConflict:
            return 0, 0  # somebody else has joined them; what was written here is cleaned later
        return len(old), len(new)

    @property
    def spark(self) -> SparkSession:
        """Started when there is something to do for it."""
        if self._spark is None:
            self._spark = self._stack.enter_context(self.start_spark())
        return self._spark


def _in_time(began_s: float) -> None:
    """Somebody may already be cleaning up what was written when this began."""
    if time.monotonic() - began_s > vacuum.LONGEST_RUN_S:
        raise ArchiveError("this took too long to be safe; run it with fewer topics at a time")


def _due(client: Client, state: ManifestState, topic: str) -> DueTopic:
    found = live_topics.look(client, topic)
    ranges = without([OffsetRange(found.first, found.safe)], state.covered(found.id))
    return DueTopic(found, ranges)


def _account(client: Client, due: DueTopic) -> None:
    """Find out why some offsets were not read: lost or expired, and counted; else an error."""
    topic, id_ = due.live.source
    live_topics.same_topic(client, due.live)
    first = int(client.stats(topic)["first"])
    missing = without(due.ranges, [file.range for file in due.added])
    due.expired = joined(OffsetRange(r.first, min(r.next, first)) for r in missing)
    for range_ in without(missing, due.expired):
        lost = live_topics.lost_within(client, topic, range_)
        for left in without([range_], lost):
            raise live_topics.unread(topic, left)
        due.lost += [LostOffsets(topic, id_, *each) for each in lost]


# -- what Spark does ------------------------------------------------------------------------------


def read_ranges(
    spark: SparkSession,
    address: Target,
    ranges: dict[str, list[OffsetRange]],
    *,
    fails_on_loss: bool = False,
) -> DataFrame:
    """The messages at these offsets. Some may be missing: the caller compares, or it fails."""
    frames = []
    rounds = max(map(len, ranges.values()))
    for n in range(rounds):
        chosen = {topic: each[n] for topic, each in ranges.items() if n < len(each)}
        frames.append(
            spark.read.format("logd")
            .options(**_daemon(address))
            .option("subscribe", ",".join(chosen))
            .option("startingOffsets", json.dumps({t: r.first for t, r in chosen.items()}))
            .option("endingOffsets", json.dumps({t: r.next for t, r in chosen.items()}))
            .option("failOnDataLoss", str(fails_on_loss).lower())
            .load()
        )
    frame = frames[0]
    for other in frames[1:]:
        frame = frame.unionAll(other)
    return frame


def _daemon(target: Target) -> dict[str, str]:
    """Where it is and what to show it, as options of the data source."""
    options = {"host": addresses(target)[0]}
    if isinstance(target, Endpoint):
        given = {"token": target.token, "tokenFile": target.token_file, "ca": target.ca}
        given |= {"cert": target.cert, "key": target.key}
        options |= {name: value for name, value in given.items() if value is not None}
    return options


def sliced(spark: SparkSession, rows: list[tuple[bytes]], schema: str, slices: int) -> DataFrame:
    """Rows that are work to do, spread over so many tasks."""
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, max(1, slices)), schema)


def collected(frame: DataFrame) -> list[ArchivedFile]:
    return [msgspec.json.decode(row.file, type=ArchivedFile) for row in frame.collect()]


def _write(
    store: ArchiveStore, ids: dict[str, str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A task: its messages into files, which it returns."""
    import pyarrow.compute as pc

    from logd.archive.parquet import ParquetFiles, ParquetRows, ParquetSource

    added: list[ArchivedFile] = []
    with ExitStack() as stack:
        files: dict[str, ParquetFiles] = {}
        for batch in batches:
            for topic in pc.unique(batch.column("topic")).to_pylist():
                if topic not in files:
                    source = ParquetSource(topic, ids[topic])
                    files[topic] = stack.enter_context(ParquetFiles(store, source, added.append))
                ours = batch.filter(pc.equal(batch.column("topic"), topic))
                files[topic].add(ParquetRows.of(ours))
    yield _as_rows(added)


def _rewrite(store: ArchiveStore, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task: groups of small files into larger ones."""
    for batch in batches:
        for group in batch.column("files").to_pylist():
            files = compaction.rewrite(store, msgspec.json.decode(group, type=list[ArchivedFile]))
            yield _as_rows(files)


def _as_rows(files: list[ArchivedFile]) -> pa.RecordBatch:
    import pyarrow as pa

    encoded = pa.array([msgspec.json.encode(file) for file in files], pa.binary())
    return pa.RecordBatch.from_arrays([encoded], ["file"])
