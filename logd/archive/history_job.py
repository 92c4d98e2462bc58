"""The history job: what is asked for, from the archive and from the daemon, as one sorted answer.

Where both have a message it is taken from the archive; what is left is read from the daemon by
offsets, so none comes twice. Spark sorts by time, then topic and offset, and sorts all of it before
it hands out the first: a daemon that deletes something meanwhile is noticed before anything is
shown, and the question is asked anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from logd.archive import live_topics
from logd.archive.archive_job import Say, StartSpark, read_ranges, sliced
from logd.archive.manifest import ArchivedFile, Manifest, ManifestState
from logd.archive.object_stores import ArchiveStore
from logd.archive.parquet import ParquetSource
from logd.archive.selection import TimeWindow, chosen
from logd.archive.spark_session import explained
from logd.client.client import Client
from logd.errors import BadRequest, OutOfRange
from logd.wire.addresses import Target
from logd.wire.offset_ranges import OffsetRange, count, without

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = "topic string, topic_id string, offset bigint, timestamp timestamp, value binary"
ORDER = ["timestamp", "topic", "topic_id", "offset"]
_TRIES = 10
_SAID = 5  # holes of a topic that are named one by one
_MISSING = re.compile(r"topic (\S+) has lost the offsets ([0-9]+) to ([0-9]+)")

Render = Callable[["pa.RecordBatch"], bytes]


class HistoryQuery(NamedTuple):
    patterns: list[str]
    window: TimeWindow = TimeWindow()
    grep: str | None = None  # a regular expression, searched for in the bytes of each message
    where: str | None = None  # an expression of Spark's SQL over COLUMNS and `text`
    limit: int | None = None


class HistoryCounts(NamedTuple):
    """`found` are of what was looked at: `archived` and `live` messages, as far as is known."""

    archived: int
    live: int
    found: int
    missing: int  # offsets that neither the archive nor the daemon has any more


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the answer is: files of the archive, and offsets of the daemon."""

    files: list[ArchivedFile]
    ranges: dict[ParquetSource, list[OffsetRange]]
    missing: dict[ParquetSource, list[OffsetRange]] = field(default_factory=dict)

    @property
    def live(self) -> int:
        return sum(map(count, self.ranges.values()))


@dataclass(slots=True)
class History:
    """`address` is None where the archive alone is asked."""

    store: ArchiveStore
    address: Target | None
    start_spark: StartSpark
    say: Say = lambda text: None
    counts: HistoryCounts = HistoryCounts(0, 0, 0, 0)
    damaged: list[str] = field(default_factory=list)  # topics of which the archive alone was asked
    _lost: dict[str, list[OffsetRange]] = field(
        default_factory=dict
    )  # gaps of the daemon's, by topic

    def ask(self, question: HistoryQuery, render: Render) -> Iterator[bytes]:
        """The answer in pieces, as `render` makes them. Behind the last one `counts` are known."""
        if question.grep is not None and (problem := wrong_with(question.grep)):
            raise BadRequest(f"{question.grep} is no regular expression: {problem}")
        manifest = Manifest(self.store)
        sources = self.find(manifest.existing(), question)
        with ExitStack() as stack:
            spark = stack.enter_context(self.start_spark())
            for _ in range(_TRIES):
                pieces = self._pieces(spark, sources, question, render)
                try:
                    first = [*islice(pieces, 1)]
                    break
                except OutOfRange as error:
                    self._heed(error)
                    sources = self.find(manifest.existing(), question)
            else:
                raise OutOfRange("the daemon deletes what is asked for all the time; try again")
            self._say_missing(sources)
            found = 0
            for messages, data in chain(first, pieces):
                found += messages
                yield data
        archived = sum(file.messages for file in sources.files)
        missing = sum(map(count, sources.missing.values()))
        self.counts = HistoryCounts(archived, sources.live, found, missing)

    def _say_missing(self, sources: Sources) -> None:
        for source, holes in sources.missing.items():
            for hole in holes[:_SAID]:
                self.say(f"offsets {hole} of {source.topic} are in neither, and gone")

    def find(self, state: ManifestState, question: HistoryQuery) -> Sources:
        if self.address is None:
            return self._found(state, question, [])
        with Client(self.address) as client:
            rows = [row for each in question.patterns or ["*"] for row in client.topics(each)]
            names = sorted({row.topic for row in rows})
            topics = [live_topics.look(client, topic, wait_s=0) for topic in names]
            found = self._found(state, question, topics)
            self.damaged = [topic.topic for topic in topics if topic.is_damaged]
            for topic in topics:
                if topic.is_damaged:
                    continue
                if ranges := self._in_daemon(client, state, topic, question.window):
                    found.ranges[topic.source] = ranges
        return found

    def _found(
        self, state: ManifestState, question: HistoryQuery, topics: list[live_topics.LiveTopic]
    ) -> Sources:
        sources = chosen(state, question.patterns, [topic.topic for topic in topics])
        files = [file for source in sources for file in question.window.files(state, source)]
        found = Sources(files, {})
        first_kept = {topic.source: topic.first for topic in topics}
        for source in {*sources, *first_kept}:
            if holes := _holes(state, source, first_kept.get(source), question.window):
                found.missing[source] = holes
        return found

    def _in_daemon(
        self, client: Client, state: ManifestState, topic: live_topics.LiveTopic, window: TimeWindow
    ) -> list[OffsetRange]:
        first = live_topics.offset_at(client, topic.topic, window.since_ms)
        next_ = min(topic.next, live_topics.offset_at(client, topic.topic, window.until_ms))
        taken = [*state.covered(topic.id), *self._lost.get(topic.topic, [])]
        return without([OffsetRange(first, next_)], taken)

    def _heed(self, error: OutOfRange) -> None:
        """Something was not there. A gap in the daemon's files will not come back: leave it out."""
        match = _MISSING.search(error.text)
        if match is None:
            raise error
        topic, range_ = match[1], OffsetRange(int(match[2]), int(match[3]) + 1)
        self.say(error.text.partition(";")[0])
        if "on the daemon's disk" in error.text:
            self._lost.setdefault(topic, []).append(range_)

    def _pieces(
        self, spark: SparkSession, sources: Sources, question: HistoryQuery, render: Render
    ) -> Iterator[tuple[int, bytes]]:
        with explained():
            frame = _frame(spark, self.store, self.address, sources, question)
        if frame is None:
            return
        rendered = frame.mapInArrow(partial(_render, render), "messages bigint, data binary")
        with explained():
            for row in rendered.toLocalIterator(prefetchPartitions=True):
                yield row.messages, bytes(row.data)


def wrong_with(grep: str) -> str | None:
    """Why this is no regular expression; None where it is one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        pc.match_substring_regex(pa.array([b""]), grep)
    except pa.ArrowInvalid as error:
        return str(error)
    return None


def _holes(
    state: ManifestState, source: ParquetSource, first_kept: int | None, window: TimeWindow
) -> list[OffsetRange]:
    """Offsets that are gone for good, where their times may be asked for."""
    files = state.of(source.topic_id)
    end = first_kept if first_kept is not None else files[-1].next if files else 0
    found = []
    for hole in without([OffsetRange(0, end)], state.covered(source.topic_id)):
        before = [file.max_time_ms for file in files if file.next <= hole.first]
        behind = [file.min_time_ms for file in files if file.first >= hole.next]
        is_before = bool(behind) and behind[0] < window.since_ms
        if not is_before and not (before and before[-1] >= window.until_ms):
            found.append(hole)
    return found


# -- what Spark does ------------------------------------------------------------------------------


def _frame(
    spark: SparkSession,
    store: ArchiveStore,
    address: Target | None,
    sources: Sources,
    question: HistoryQuery,
) -> DataFrame | None:
    """The answer, sorted; None where there is nothing to look at."""
    from pyspark.sql import functions as f

    frames = []
    if sources.files:
        rows = [(msgspec.json.encode(file),) for file in sources.files]
        work = sliced(spark, rows, "file binary", min(len(rows), 10_000))
        frames.append(work.mapInArrow(partial(_read, store, question), COLUMNS))
    if sources.ranges:
        assert address is not None
        ids = dict(sources.ranges.keys())
        ranges = {source.topic: each for source, each in sources.ranges.items()}
        messages = read_ranges(spark, address, ranges, fails_on_loss=True)
        frames.append(messages.mapInArrow(partial(_stamp, ids, question), COLUMNS))
    if not frames:
        return None
    frame = frames[0] if len(frames) == 1 else frames[0].unionAll(frames[1])
    if question.where is not None:
        texts = frame.withColumn("text", f.col("value").cast("string"))
        frame = texts.where(question.where).drop("text")
    frame = frame.orderBy(*ORDER)
    return frame if question.limit is None else frame.limit(question.limit)


def _read(
    store: ArchiveStore, question: HistoryQuery, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    from logd.archive import parquet

    for batch in batches:
        for encoded in batch.column("file").to_pylist():
            file = msgspec.json.decode(encoded, type=ArchivedFile)
            for messages in parquet.read(store, file, [file.range], *question.window):
                yield _matching(messages, question)


def _stamp(
    ids: dict[str, str], question: HistoryQuery, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Add the topics' ids to what the daemon has, and leave out what is not asked for."""
    import pyarrow as pa
    import pyarrow.compute as pc

    since, until = (pa.scalar(ms * 1000, pa.int64()) for ms in question.window)
    for batch in batches:
        topics = batch.column("topic")
        known = pc.unique(topics).to_pylist()
        if len(known) == 1:
            found = pa.repeat(pa.scalar(ids[known[0]]), len(topics))
        else:
            found = pa.array([ids[topic] for topic in topics.to_pylist()], pa.string())
        columns = [topics, found, *(batch.column(n) for n in ("offset", "timestamp", "value"))]
        stamped = pa.RecordBatch.from_arrays(
            columns, ["topic", "topic_id", "offset", "timestamp", "value"]
        )
        times = batch.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        within = pc.and_(pc.greater_equal(times, since), pc.less(times, until))
        yield _matching(stamped.filter(within), question)


def _matching(batch: pa.RecordBatch, question: HistoryQuery) -> pa.RecordBatch:
    import pyarrow.compute as pc

    if question.grep is None:
        return batch
    return batch.filter(pc.match_substring_regex(batch.column("value"), question.grep))


def _render(render: Render, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        if batch.num_rows:
            piece: dict[str, Any] = {"messages": [batch.num_rows], "data": [render(batch)]}
            yield pa.RecordBatch.from_pydict(piece)
