"""The history job: searches archived messages and those of the daemon, in one sorted result.

Messages that are in both are read from the archive; the remaining offsets are read from the daemon,
so no message occurs twice. Spark sorts everything by time, topic and offset before the first row is
returned. If the daemon deletes messages meanwhile, this is noticed before any output, and the query
is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from logd.archive import daemon_topics
from logd.archive.archive_job import Notify, StartSpark, decode_items, parallelize, read_ranges
from logd.archive.daemon_topics import DaemonTopic
from logd.archive.job_session import translated_errors
from logd.archive.manifest import ArchivedFile, Manifest, ManifestState
from logd.archive.object_stores import ArchiveStore
from logd.archive.parquet import ArchivedTopic
from logd.archive.selection import TimeWindow, select_topics
from logd.client.client import Client
from logd.errors import BadRequest, OutOfRange
from logd.wire.addresses import Target
from logd.wire.offset_ranges import OffsetRange, count_offsets, subtract
from pyspark_logd.errors import DATA_LOSS, LOST_ON_DISK

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = "topic string, topic_id string, offset bigint, timestamp timestamp, value binary"
ORDER = ["timestamp", "topic", "topic_id", "offset"]
_MAX_ATTEMPTS = 10
_MAX_REPORTED = 5  # missing ranges per topic

Render = Callable[["pa.RecordBatch"], bytes]


class HistoryQuery(NamedTuple):
    patterns: list[str]
    window: TimeWindow = TimeWindow()
    grep: str | None = None  # a regular expression that messages must match
    where: str | None = None  # a Spark SQL expression over COLUMNS and `text`
    limit: int | None = None


class HistoryCounts(NamedTuple):
    """`archived` and `live` messages were searched, and `found` ones match."""

    archived: int
    live: int
    found: int
    missing: int  # offsets that neither the archive nor the daemon has


@dataclass(frozen=True, slots=True)
class QuerySources:
    """The files of the archive and the offsets of the daemon that a query reads."""

    files: list[ArchivedFile]
    ranges: dict[ArchivedTopic, list[OffsetRange]]
    missing: dict[ArchivedTopic, list[OffsetRange]] = field(default_factory=dict)

    @property
    def live(self) -> int:
        return sum(map(count_offsets, self.ranges.values()))


@dataclass(slots=True)
class History:
    """`address` is None to search the archive only."""

    store: ArchiveStore
    address: Target | None
    start_spark: StartSpark
    notify: Notify = lambda text: None
    counts: HistoryCounts = HistoryCounts(0, 0, 0, 0)
    damaged: list[str] = field(default_factory=list)  # topics that were read from the archive only
    _lost: dict[str, list[OffsetRange]] = field(default_factory=dict)  # gaps of the daemon

    def ask(self, query: HistoryQuery, render: Render) -> Iterator[bytes]:
        """The rendered messages in pieces. `counts` is set after the last one."""
        if query.grep is not None and (problem := regex_problem(query.grep)):
            raise BadRequest(f"{query.grep} is not a regular expression: {problem}")
        manifest = Manifest(self.store)
        sources = self.find(manifest.existing(), query)
        with ExitStack() as stack:
            spark = stack.enter_context(self.start_spark())
            for _ in range(_MAX_ATTEMPTS):
                pieces = self._pieces(spark, sources, query, render)
                try:
                    first = [*islice(pieces, 1)]
                    break
                except OutOfRange as error:
                    self._handle_loss(error)
                    sources = self.find(manifest.existing(), query)
            else:
                raise OutOfRange("the daemon keeps deleting messages of the query; try again")
            for source, gaps in sources.missing.items():
                for gap in gaps[:_MAX_REPORTED]:
                    self.notify(f"offsets {gap} of {source.topic} are missing")
            found = 0
            for messages, data in chain(first, pieces):
                found += messages
                yield data
        archived = sum(file.messages for file in sources.files)
        missing = sum(map(count_offsets, sources.missing.values()))
        self.counts = HistoryCounts(archived, sources.live, found, missing)

    def find(self, state: ManifestState, query: HistoryQuery) -> QuerySources:
        if self.address is None:
            return self._found(state, query, [])
        with Client(self.address) as client:
            rows = [row for each in query.patterns or ["*"] for row in client.topics(each)]
            names = sorted({row.topic for row in rows})
            topics = [daemon_topics.inspect_topic(client, topic, wait_s=0) for topic in names]
            found = self._found(state, query, topics)
            self.damaged = [topic.topic for topic in topics if topic.is_damaged]
            for topic in topics:
                if topic.is_damaged:
                    continue
                if ranges := self._in_daemon(client, state, topic, query.window):
                    found.ranges[topic.source] = ranges
        return found

    def _found(
        self, state: ManifestState, query: HistoryQuery, topics: list[DaemonTopic]
    ) -> QuerySources:
        sources = select_topics(state, query.patterns, [topic.topic for topic in topics])
        files = [file for source in sources for file in query.window.files(state, source)]
        found = QuerySources(files, {})
        first_kept = {topic.source: topic.first for topic in topics}
        for source in {*sources, *first_kept}:
            if gaps := _missing_ranges(state, source, first_kept.get(source), query.window):
                found.missing[source] = gaps
        return found

    def _in_daemon(
        self, client: Client, state: ManifestState, topic: DaemonTopic, window: TimeWindow
    ) -> list[OffsetRange]:
        first = daemon_topics.offset_at(client, topic.topic, window.since_ms)
        next_ = min(topic.next, daemon_topics.offset_at(client, topic.topic, window.until_ms))
        taken = [*state.covered(topic.id), *self._lost.get(topic.topic, [])]
        return subtract([OffsetRange(first, next_)], taken)

    def _handle_loss(self, error: OutOfRange) -> None:
        """Messages were missing. A gap of the daemon is permanent, so skip it from now on."""
        match = DATA_LOSS.search(error.text)
        if match is None:
            raise error
        topic, range_ = match[1], OffsetRange(int(match[2]), int(match[3]) + 1)
        self.notify(error.text.partition(";")[0])
        if match[4].startswith(LOST_ON_DISK):
            self._lost.setdefault(topic, []).append(range_)

    def _pieces(
        self, spark: SparkSession, sources: QuerySources, query: HistoryQuery, render: Render
    ) -> Iterator[tuple[int, bytes]]:
        with translated_errors():
            frame = _frame(spark, self.store, self.address, sources, query)
        if frame is None:
            return
        rendered = frame.mapInArrow(partial(_render, render), "messages bigint, data binary")
        with translated_errors():
            for row in rendered.toLocalIterator(prefetchPartitions=True):
                yield row.messages, bytes(row.data)


def regex_problem(grep: str) -> str | None:
    """What is wrong with a regular expression; None if it is valid."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        pc.match_substring_regex(pa.array([b""]), grep)
    except pa.ArrowInvalid as error:
        return str(error)
    return None


def _missing_ranges(
    state: ManifestState, source: ArchivedTopic, first_kept: int | None, window: TimeWindow
) -> list[OffsetRange]:
    """Offsets that neither side has and whose times may be within the window."""
    files = state.of(source.topic_id)
    end = first_kept if first_kept is not None else files[-1].next if files else 0
    found = []
    for gap in subtract([OffsetRange(0, end)], state.covered(source.topic_id)):
        before = [file.max_time_ms for file in files if file.next <= gap.first]
        after = [file.min_time_ms for file in files if file.first >= gap.next]
        is_before = bool(after) and after[0] < window.since_ms
        if not is_before and not (before and before[-1] >= window.until_ms):
            found.append(gap)
    return found


# -- Spark ----------------------------------------------------------------------------------------


def _frame(
    spark: SparkSession,
    store: ArchiveStore,
    address: Target | None,
    sources: QuerySources,
    query: HistoryQuery,
) -> DataFrame | None:
    """The sorted result; None if there is nothing to read."""
    from pyspark.sql import functions as f

    frames = []
    if sources.files:
        work = parallelize(spark, sources.files)
        frames.append(work.mapInArrow(partial(_read, store, query), COLUMNS))
    if sources.ranges:
        assert address is not None
        ids = dict(sources.ranges.keys())
        ranges = {source.topic: each for source, each in sources.ranges.items()}
        messages = read_ranges(spark, address, ranges, fails_on_loss=True)
        frames.append(messages.mapInArrow(partial(_add_topic_ids, ids, query), COLUMNS))
    if not frames:
        return None
    frame = frames[0] if len(frames) == 1 else frames[0].unionAll(frames[1])
    if query.where is not None:
        texts = frame.withColumn("text", f.col("value").cast("string"))
        frame = texts.where(query.where).drop("text")
    frame = frame.orderBy(*ORDER)
    return frame if query.limit is None else frame.limit(query.limit)


def _read(
    store: ArchiveStore, query: HistoryQuery, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    from logd.archive import parquet

    for file in decode_items(batches, ArchivedFile):
        for messages in parquet.read(store, file, [file.range], *query.window):
            yield _matching(messages, query)


def _add_topic_ids(
    ids: dict[str, str], query: HistoryQuery, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Add topic ids to messages of the daemon, and filter them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from logd.archive.parquet import times_within

    topics, topic_ids = pa.array(ids.keys()), pa.array(ids.values())
    for batch in batches:
        found = topic_ids.take(pc.index_in(batch.column("topic"), topics))
        with_ids = batch.add_column(1, "topic_id", found)
        within = times_within(batch.column("timestamp"), *query.window)
        yield _matching(with_ids.filter(pa.array(within)), query)


def _matching(batch: pa.RecordBatch, query: HistoryQuery) -> pa.RecordBatch:
    import pyarrow.compute as pc

    if query.grep is None:
        return batch
    return batch.filter(pc.match_substring_regex(batch.column("value"), query.grep))


def _render(render: Render, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        if batch.num_rows:
            piece: dict[str, Any] = {"messages": [batch.num_rows], "data": [render(batch)]}
            yield pa.RecordBatch.from_pydict(piece)
