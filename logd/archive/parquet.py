"""Parquet files of messages: one file per topic id, hour and contiguous range of offsets.

Invariants: the offsets of a file are contiguous and of one hour, so its path describes its content;
times do not decrease within a file. Messages that are added out of order result in more files. The
messages of a file have at most FILE_BYTES, or it contains a single larger one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from logd.archive.manifest import ArchivedFile
from logd.archive.object_stores import ArchiveStore
from logd.errors import ArchiveError
from logd.wire.offset_ranges import OffsetRange
from logd.wire.read_state import Batch

FILE_BYTES = 128 << 20  # of messages; a task keeps one compressed file in memory
FILE_MESSAGES = 2 << 20
GROUP_BYTES = 8 << 20
HOUR_US = 3_600_000_000
MAX_TIME_MS = 1 << 50  # later than any message
READ_MESSAGES = 10_000  # in one record batch

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("topic_id", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
    ]
)


class ArchivedTopic(NamedTuple):
    topic: str
    topic_id: str


class ParquetRows(NamedTuple):
    """Messages of a topic, as arrays of the same length."""

    offsets: pa.Array  # int64
    times_us: pa.Array  # int64
    values: pa.Array  # binary

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> ParquetRows:
        """From a record batch of Spark or of a file."""
        offset, timestamp = batch.column("offset"), batch.column("timestamp")
        value = batch.column("value").cast(pa.binary())
        return cls(offset, timestamp.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()), value)

    def slice(self, start: int, stop: int) -> ParquetRows:
        return ParquetRows(*(array.slice(start, stop - start) for array in self))


def rows(batches: list[Batch]) -> ParquetRows:
    """From batches of the daemon."""
    sizes = [len(batch.messages) for batch in batches]
    offsets: list[Any] = [np.arange(batch.offset, batch.next, dtype=np.int64) for batch in batches]
    times: Any = np.repeat(np.array([batch.time_ms * 1000 for batch in batches], np.int64), sizes)
    values = pa.array(chain.from_iterable(batch.messages for batch in batches), pa.binary())
    return ParquetRows(pa.array(np.concatenate(offsets)), pa.array(times), values)


class ParquetFiles:
    """Writes the files of a topic to a store; calls `done` for each finished file."""

    def __init__(
        self, store: ArchiveStore, source: ArchivedTopic, done: Callable[[ArchivedFile], None]
    ) -> None:
        self._store, self._source, self._done = store, source, done
        self._file: _OpenFile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self.finish()
        elif self._file is not None:
            self._file.drop()

    def add(self, new: ParquetRows) -> None:
        for part in _runs(new):
            start, size = 0, len(part.offsets)
            while start < size:
                file = self._fitting(part.slice(start, size))
                stop = start + file.room(part.slice(start, size))
                file.add(part.slice(start, stop))
                start = stop

    def finish(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            self._done(file.finish())

    def _fitting(self, part: ParquetRows) -> _OpenFile:
        """The open file, if it has the same hour, the previous offset and space; or a new one."""
        first, hour = part.offsets[0].as_py(), part.times_us[0].as_py() // HOUR_US
        if self._file is not None and not self._file.takes(first, hour):
            self.finish()
        if self._file is None:
            self._file = _OpenFile(self._store, self._source, first, hour)
        return self._file


def _runs(new: ParquetRows) -> Iterator[ParquetRows]:
    """Split at gaps of offsets and at ends of hours."""
    offsets, times = new.offsets.to_numpy(), new.times_us.to_numpy()
    cuts = (np.diff(offsets) != 1) | (np.diff(times // HOUR_US) != 0)
    edges = [0, *(np.flatnonzero(cuts) + 1).tolist(), len(offsets)]
    for start, stop in pairwise(edges):
        if start < stop:
            yield new.slice(start, stop)


class _OpenFile:
    def __init__(self, store: ArchiveStore, source: ArchivedTopic, first: int, hour: int) -> None:
        self._store, self._source, self._hour = store, source, hour
        self._first = self._next = first
        self._waiting: list[ParquetRows] = []
        self._waiting_bytes = self._bytes = 0
        self._times_us: list[int] = []
        self._folder = f"topic={source.topic}/hour={np.datetime64(hour, 'h')}"
        self._draft: Path = store.draft(f"{self._folder}/draft")
        self._writer = pq.ParquetWriter(
            self._draft, SCHEMA, compression="zstd", use_dictionary=["topic", "topic_id"],
            column_encoding={"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
            sorting_columns=[pq.SortingColumn(2)],
        )  # fmt: skip

    def takes(self, first: int, hour: int) -> bool:
        full = self._bytes >= FILE_BYTES or self._next - self._first >= FILE_MESSAGES
        return first == self._next and hour == self._hour and not full

    def room(self, part: ParquetRows) -> int:
        """The number of messages that fit; at least one, to make progress."""
        ends = pc.cumulative_sum(pc.cast(pc.binary_length(part.values), pa.int64())).to_numpy()
        fit = int(np.searchsorted(ends, FILE_BYTES - self._bytes, side="right"))
        return max(1, min(fit, FILE_MESSAGES - (self._next - self._first)))

    def add(self, part: ParquetRows) -> None:
        size = pc.sum(pc.binary_length(part.values)).as_py()
        self._bytes += size
        self._waiting_bytes += size + 16 * len(part.offsets)
        self._next += len(part.offsets)
        self._times_us += [part.times_us[0].as_py(), part.times_us[-1].as_py()]
        self._times_us = [min(self._times_us), max(self._times_us)]
        self._waiting.append(part)
        if self._waiting_bytes >= GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        tables = [self._table(part) for part in self._waiting]
        self._writer.write_table(pa.concat_tables(tables))
        self._waiting, self._waiting_bytes = [], 0

    def _table(self, part: ParquetRows) -> pa.Table:
        size = len(part.offsets)
        columns = [
            pa.repeat(pa.scalar(self._source.topic), size),
            pa.repeat(pa.scalar(self._source.topic_id), size),
            part.offsets,
            part.times_us.cast(pa.timestamp("us", tz="UTC")),
            part.values,
        ]
        return pa.table(columns, schema=SCHEMA)

    def finish(self) -> ArchivedFile:
        if self._waiting:
            self._write()
        self._writer.close()
        name = f"{self._first:020d}-{self._next:020d}-{secrets.token_hex(8)}"
        path = f"{self._folder}/{name}.parquet"
        file_bytes = self._draft.stat().st_size
        self._store.put(path, self._draft)
        return ArchivedFile(
            path, *self._source, str(np.datetime64(self._hour, "h")), self._first, self._next,
            self._bytes, file_bytes, self._times_us[0] // 1000, self._times_us[-1] // 1000,
        )  # fmt: skip

    def drop(self) -> None:
        self._writer.close()
        self._draft.unlink(missing_ok=True)


def read(
    store: ArchiveStore,
    file: ArchivedFile,
    wanted: Iterable[OffsetRange],
    since_ms: int = 0,
    until_ms: int = MAX_TIME_MS,
) -> Iterator[pa.RecordBatch]:
    """The messages of a file in these ranges, in order, with SCHEMA."""
    opened = _open(store, file)
    ranges = list(wanted)
    for group in range(opened.num_row_groups):
        table = opened.read_row_group(group)
        offsets = table["offset"].to_numpy()
        kept = times_within(table["timestamp"], since_ms, until_ms)
        kept &= np.logical_or.reduce([(offsets >= r.first) & (offsets < r.next) for r in ranges])
        yield from table.filter(pa.array(kept)).to_batches(max_chunksize=READ_MESSAGES)


def offsets_between(
    store: ArchiveStore, file: ArchivedFile, since_ms: int, until_ms: int
) -> OffsetRange:
    """The offsets within a time range; contiguous, since times do not decrease."""
    table = _open(store, file).read(["timestamp"])
    within = np.flatnonzero(times_within(table["timestamp"], since_ms, until_ms))
    if not len(within):
        return OffsetRange(file.first, file.first)
    return OffsetRange(file.first + int(within[0]), file.first + int(within[-1]) + 1)


def times_within(timestamps: Any, since_ms: int, until_ms: int) -> Any:
    """A NumPy array of bool."""
    times_us = timestamps.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy()
    return (times_us >= since_ms * 1000) & (times_us < until_ms * 1000)


def _open(store: ArchiveStore, file: ArchivedFile) -> pq.ParquetFile:
    try:
        data = store.get(file.path)
        opened = pq.ParquetFile(pa.BufferReader(data))
    except FileNotFoundError:
        raise ArchiveError(
            f"{store.url}: {file.path}, with offsets {file.range} of {file.topic}, is missing;"
            " restore it from a copy of the archive"
        ) from None
    except pa.ArrowInvalid as error:
        raise ArchiveError(f"{store.url}: {file.path} is damaged ({error})") from None
    if opened.metadata.num_rows != file.messages or opened.schema_arrow != SCHEMA:
        raise ArchiveError(f"{store.url}: {file.path} differs from its commit")
    return opened
