"""Decodes batches into Arrow columns, without a Python object per message.

The checksum of a batch has been verified before. A body that does not match its header raises
DamagedBatch. The columns are those of `SCHEMA`, or some of them in the order of a projection.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from logd.batch import SIZED, Buffer, ScannedBatch, inflate, sizes_line
from logd.errors import BadRequest, DamagedBatch
from pyspark_logd.errors import BadOption

COLUMNS: dict[str, tuple[DataType, pa.DataType]] = {
    "topic": (StringType(), pa.string()),
    "offset": (LongType(), pa.int64()),
    "timestamp": (TimestampType(), pa.timestamp("us", tz="UTC")),
    "value": (BinaryType(), pa.binary()),
}
SCHEMA = StructType([StructField(name, kinds[0]) for name, kinds in COLUMNS.items()])
MAX_INFLATED_BYTES = 1 << 30
_SCHEMA_TEXT = ", ".join(f"{name} {kinds[0].simpleString()}" for name, kinds in COLUMNS.items())
_LF = 10

Bytes = Any  # a NumPy array of uint8
Numbers = Any  # a NumPy array of int64; NumPy may not be installed where mypy runs


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of these columns; BadOption if logd does not have one of them."""
    for field in schema.fields:
        if field.name not in COLUMNS or field.dataType != COLUMNS[field.name][0]:
            raise BadOption(
                f"logd has no column {field.name} {field.dataType.simpleString()};"
                f" the columns are {_SCHEMA_TEXT}"
            )
    return pa.schema([pa.field(f.name, COLUMNS[f.name][1], f.nullable) for f in schema.fields])


class ColumnChunk(NamedTuple):
    """The messages of a batch, concatenated. `ends` is None if each message ends in LF."""

    offset: int
    messages: int
    time_ms: int
    data: Bytes
    ends: Numbers


def decode_batch(found: ScannedBatch) -> ColumnChunk:
    header = found.header
    try:
        body: Buffer = found.body
        if header.enc.endswith("+zstd"):
            body = inflate(body, MAX_INFLATED_BYTES)
        data: Bytes = np.frombuffer(body, np.uint8)
        ends: Numbers = None
        if header.enc.startswith(SIZED):
            line, start = sizes_line(bytes(body))
            sizes: Numbers = np.fromstring(bytes(line), dtype=np.int64, sep=" ")
            data, ends = data[start:], np.cumsum(sizes)
            if len(ends) != header.messages or ends[-1] != len(data):
                raise BadRequest("the sizes in the body do not match its length")
    except BadRequest as error:
        raise DamagedBatch(error.text, found.position) from None
    return ColumnChunk(header.offset, header.messages, header.time_ms, data, ends)


def record_batch(
    topic: str, chunks: Sequence[ColumnChunk], start: int, stop: int, schema: pa.Schema
) -> pa.RecordBatch:
    """The messages of these chunks with offsets from `start` to before `stop`."""
    counts: Numbers = np.array([one.messages for one in chunks])
    firsts: Numbers = np.array([one.offset for one in chunks])
    # Offsets increase by one within a chunk; there may be a gap between two chunks.
    before = np.cumsum(counts) - counts
    offsets: Numbers = np.arange(counts.sum()) + np.repeat(firsts - before, counts)
    from_, to = int(np.searchsorted(offsets, start)), int(np.searchsorted(offsets, stop))
    columns: dict[str, Any] = {}
    for name in schema.names:
        if name == "topic":
            columns[name] = pa.repeat(pa.scalar(topic, pa.string()), to - from_)
        elif name == "offset":
            columns[name] = pa.array(offsets[from_:to])
        elif name == "timestamp":
            times_us: Numbers = np.repeat(np.array([one.time_ms for one in chunks]) * 1000, counts)
            columns[name] = pa.array(times_us[from_:to]).cast(COLUMNS[name][1])
        else:
            columns[name] = values(chunks).slice(from_, to - from_)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def values(chunks: Sequence[ColumnChunk]) -> pa.Array:
    """One value per message. Consecutive chunks of lines are split in one step."""
    runs = [
        _lines(list(run)) if is_lines else _sized(list(run))
        for is_lines, run in groupby(chunks, lambda one: one.ends is None)
    ]
    return runs[0] if len(runs) == 1 else pa.concat_arrays(runs)


def _lines(run: list[ColumnChunk]) -> pa.Array:
    data: Bytes = run[0].data if len(run) == 1 else np.concatenate([one.data for one in run])
    ends: Numbers = np.flatnonzero(data == _LF) + 1
    if len(ends) != sum(one.messages for one in run) or ends[-1] != len(data):
        raise DamagedBatch("the number of lines differs from the headers")
    return pc.binary_slice(_array(data, ends), 0, -1)


def _sized(run: list[ColumnChunk]) -> pa.Array:
    return pa.concat_arrays([_array(one.data, one.ends) for one in run])


def _array(data: Bytes, ends: Numbers) -> pa.Array:
    offsets: Numbers = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(ends), buffers)
