"""Batch and streaming writes: each task pushes its rows with a producer name of its own.

The name is the same when Spark repeats the task, because it failed or because a micro-batch is
replayed after a crash. So no message is stored twice if the task has the same rows in the same
order.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StringType, StructType

from logd.wire.commands import checked_topic
from pyspark_logd.arrow_batches import bodies
from pyspark_logd.batch_sender import BatchSender
from pyspark_logd.errors import BadOption, one_line_errors
from pyspark_logd.options import SourceWriteOptions

BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    messages: int


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SourceWriteOptions, schema: StructType) -> None:
        check_columns(options, schema)
        self._options = options
        self._job = secrets.token_hex(8)  # chosen once, on the driver

    @one_line_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        producer = f"spark-{self._job}.{context.partitionId()}" if context else None
        return write(iterator, self._options, producer)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SourceWriteOptions, schema: StructType) -> None:
        check_columns(options, schema)
        self._options = options

    @one_line_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write(iterator, self._options, _stream_producer(TaskContext.get()))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Messages are readable as soon as a task has pushed them."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The daemon recognizes the messages when the task is repeated."""


def _stream_producer(context: TaskContext | None) -> str | None:
    """None if Spark does not provide the ids; a replay then stores the rows again."""
    query = context.getLocalProperty(QUERY_ID) if context else None
    batch = context.getLocalProperty(BATCH_ID) if context else None
    if context is None or query is None or batch is None:
        return None
    return f"spark-{query.replace('-', '')}.{batch}.{context.partitionId()}"


def check_columns(options: SourceWriteOptions, schema: StructType) -> None:
    """`value`, string or binary, and `topic` unless it is set as an option; no others."""
    kinds = {field.name: field.dataType for field in schema.fields}
    if not isinstance(kinds.pop("value", None), BinaryType | StringType):
        raise BadOption("rows need a column value of type string or binary")
    if "topic" in kinds and not isinstance(kinds.pop("topic"), StringType):
        raise BadOption("the column topic must be a string")
    if kinds:
        raise BadOption(
            f"logd cannot store the column {next(iter(kinds))}; select value and possibly topic;"
            " to_json(struct(*)) combines several columns into one value"
        )
    if options.topic is None and "topic" not in schema.names:
        raise BadOption("set the option topic, or select a column topic")
    if options.topic is not None and "topic" in schema.names:
        raise BadOption(
            "the option topic and a column topic exclude each other; remove one of them"
        )


def write(
    rows: Iterator[pa.RecordBatch], options: SourceWriteOptions, producer: str | None
) -> Written:
    messages = 0
    with BatchSender(options.location, producer, compresses=options.compresses) as sender:
        for batch in rows:
            messages += batch.num_rows
            for topic, values in by_topic(batch, options.topic):
                for body in bodies(values):
                    sender.send(topic, body)
    return Written(messages)


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.Array]]:
    """The values of each topic in row order; topics in the order of their first row."""
    values = batch.column("value").cast(pa.binary())
    if values.null_count:
        raise BadOption("a row has no value (null); remove it with filter('value is not null')")
    if topic is not None:
        yield topic, values
        return
    topics = batch.column("topic")
    for name in pc.unique(topics).to_pylist():
        if name is None:
            raise BadOption("a row has no topic (null); set one, or remove the row")
        yield checked_topic(name), values.filter(pc.equal(topics, name))
