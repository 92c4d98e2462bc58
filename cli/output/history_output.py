"""The destinations of `log-cli history`: stdout, a file, a topic; and their formats."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from cli.exit_codes import UsageError
from cli.output.message_formats import OutputFormat, Render, each_renderer, is_raw, renderer
from cli.output.stdout import stdout

if TYPE_CHECKING:
    import pyarrow as pa

    from logd.archive.history_job import History, HistoryQuery
    from logd.wire.addresses import Target

PARQUET = ".parquet"


@dataclass(frozen=True)
class Rendering:
    """Converts messages to output bytes in a Spark task, so it must be picklable."""

    form: OutputFormat
    template: str | None
    is_several: bool  # topics; each line of plain text then starts with the topic

    def __post_init__(self) -> None:
        renderer("", self.form, self.template)  # UsageError if the template is not valid

    def __call__(self, batch: pa.RecordBatch) -> bytes:
        from logd.archive.parquet import ParquetRows
        from logd.wire.read_state import Batch

        render = self.by_topic()
        topics, offsets, values = (
            batch.column(name).to_pylist() for name in ("topic", "offset", "value")
        )
        times_us = ParquetRows.of(batch).times_us.to_pylist()
        rows = zip(topics, offsets, times_us, values, strict=True)
        return b"".join(
            render(topic)(Batch(offset, time_us // 1000, [value]))
            for topic, offset, time_us, value in rows
        )

    def by_topic(self) -> Callable[[str], Render]:
        if self.is_several:
            return each_renderer(self.form, self.template)
        return partial(renderer, form=self.form, template=self.template)


def print_messages(job: History, query: HistoryQuery, rendering: Rendering) -> None:
    with stdout(raw=is_raw(rendering.form, rendering.template)) as out:
        for data in job.ask(query, rendering):
            out.write(data)
            out.flush()


def write_file(job: History, query: HistoryQuery, rendering: Rendering, path: Path) -> None:
    """The file appears when it is complete."""
    with _complete_file(path) as out:
        if path.suffix == PARQUET:
            _write_parquet(job, query, out)
        else:
            for data in job.ask(query, rendering):
                out.write(data)


def write_topic(
    job: History, query: HistoryQuery, address: Target, topic: str, *, append: bool
) -> None:
    """Write the messages in order; the daemon assigns new offsets and times."""
    from logd.client.client import Client
    from logd.client.writer import Writer
    from logd.wire.commands import checked_topic

    checked_topic(topic)
    with Client(address) as client:
        for info in client.topics(topic):
            if info.next and not append:
                raise UsageError(
                    f"topic {topic} is not empty: use --append, or another topic for --into"
                )
    with Writer(address, topic) as writer:
        for batch in _batches(job, query):
            writer.write_many(batch.column("value").to_pylist())


def _write_parquet(job: History, query: HistoryQuery, out: BinaryIO) -> None:
    import pyarrow.parquet as pq

    from logd.archive.parquet import SCHEMA

    with pq.ParquetWriter(out, SCHEMA, compression="zstd") as writer:
        for batch in _batches(job, query):
            writer.write_batch(batch.cast(SCHEMA))


def _batches(job: History, query: HistoryQuery) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for data in job.ask(query, as_arrow_stream):
        with pa.ipc.open_stream(data) as stream:
            yield from stream


def as_arrow_stream(batch: pa.RecordBatch) -> bytes:
    """The messages unchanged; `_batches` decodes them."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


@contextmanager
def _complete_file(path: Path) -> Iterator[BinaryIO]:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
