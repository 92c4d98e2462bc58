"""Where an answer of `log-cli history` goes, and in which form."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from cli.exit_codes import Misuse
from cli.message_formats import OutputFormat, Render, each_renderer, is_raw, renderer, stdout

if TYPE_CHECKING:
    import pyarrow as pa

    from logd.archive.history_job import History, HistoryQuery
    from logd.wire.addresses import Target

PARQUET = ".parquet"


@dataclass(frozen=True)
class Rendering:
    """What a task makes of its messages. It travels there, so it holds nothing but words."""

    form: OutputFormat
    template: str | None
    is_several: bool  # topics: then plain text says which one

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
        """Misuse where the template is none."""
        renderer("", self.form, self.template)
        if self.is_several:
            return each_renderer(self.form, self.template)
        return partial(renderer, form=self.form, template=self.template)


def show(job: History, question: HistoryQuery, rendering: Rendering) -> None:
    rendering.by_topic()
    with stdout(raw=is_raw(rendering.form, rendering.template)) as out:
        for data in job.ask(question, rendering):
            out.write(data)
            out.flush()


def write_file(job: History, question: HistoryQuery, rendering: Rendering, path: Path) -> None:
    """The file is there when all of it is."""
    rendering.by_topic()
    with _whole(path) as out:
        if path.suffix == PARQUET:
            _write_parquet(job, question, out)
        else:
            for data in job.ask(question, rendering):
                out.write(data)


def to_topic(
    job: History, question: HistoryQuery, address: Target, topic: str, *, append: bool
) -> None:
    """In the order of the answer; the daemon gives them new offsets and times."""
    from logd.client.client import Client
    from logd.client.writer import Writer
    from logd.wire.commands import checked_topic

    checked_topic(topic)
    with Client(address) as client:
        for info in client.topics(topic):
            if info.next and not append:
                raise Misuse(
                    f"topic {topic} has messages already; choose a new name for --into, or add"
                    " --append"
                )
    with Writer(address, topic) as writer:
        for batch in _batches(job, question):
            writer.write_many(batch.column("value").to_pylist())


def _write_parquet(job: History, question: HistoryQuery, out: BinaryIO) -> None:
    import pyarrow.parquet as pq

    from logd.archive.parquet import SCHEMA

    with pq.ParquetWriter(out, SCHEMA, compression="zstd") as writer:
        for batch in _batches(job, question):
            writer.write_batch(batch.cast(SCHEMA))


def _batches(job: History, question: HistoryQuery) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for data in job.ask(question, as_stream):
        with pa.ipc.open_stream(data) as stream:
            yield from stream


def as_stream(batch: pa.RecordBatch) -> bytes:
    """The messages as they are, for this side to unpack."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    hidden = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with hidden.open("xb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        hidden.replace(path)
    finally:
        hidden.unlink(missing_ok=True)
