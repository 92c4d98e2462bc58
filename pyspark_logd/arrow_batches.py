"""Converts batches to Arrow columns and back, without a Python object per message. Pure.

The checksum of a batch has been verified before. A body that does not match its header raises
DamagedBatch. The columns are those of `SCHEMA`, or some of them in the order of a projection.
Invariant: the same values in the same record batches give the same bodies, since a daemon
recognizes a repeated batch by its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

from logd.batch import LINES, SIZED, Buffer, ScannedBatch, count_lf, inflate, sizes_line
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
BODY_BYTES = 256 * 1024
_SCHEMA_TEXT = ", ".join(f"{name} {kinds[0].simpleString()}" for name, kinds in COLUMNS.items())
_LF = 10

Bytes = Any  # a NumPy array of uint8
Numbers = Any  # a NumPy array of int64; NumPy may not be installed where mypy runs


# -- reading --------------------------------------------------------------------------------------


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


# -- writing --------------------------------------------------------------------------------------


class ArrowBody(NamedTuple):
    data: bytes
    enc: str
    messages: int


def bodies(values: pa.Array, body_bytes: int = BODY_BYTES) -> Iterator[ArrowBody]:
    """Bodies of up to `body_bytes`; a larger message gets a body of its own."""
    sizes = pc.binary_length(values).to_numpy(zero_copy_only=False)
    ends: Numbers = np.cumsum(sizes, dtype=np.int64)
    start, before = 0, 0
    while start < len(values):
        stop = max(start + 1, int(np.searchsorted(ends, before + body_bytes, "right")))
        yield body(values.slice(start, stop - start))
        start, before = stop, int(ends[stop - 1])


def body(values: pa.Array) -> ArrowBody:
    """Encoded as lines, or as sized if a message contains LF."""
    count = len(values)
    lines = b"".join((_joined(values, b"\n"), b"\n"))
    if count_lf(lines) == count:
        return ArrowBody(lines, LINES, count)
    sizes = _joined(pc.binary_length(values).cast(pa.string()), " ")
    return ArrowBody(b"".join((sizes, b"\n", _joined(values, b""))), SIZED, count)


def _joined(values: pa.Array, separator: bytes | str) -> Any:
    one_list = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    return pc.binary_join(one_list, separator)[0].as_buffer()
