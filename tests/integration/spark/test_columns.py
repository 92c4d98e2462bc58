"""Columns and bodies made with NumPy are what the plain code of `logd.batch` makes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logd.batch import ENCODINGS, LINES, SIZED, Header, ScannedBatch, body_sum, split_body
from logd.errors import DamagedBatch
from pyspark_logd.arrow_batches import SCHEMA, arrow_schema, bodies, decode_batch, record_batch
from tests.integration.spark.rows import encoded

SCHEMA_OF_ALL = arrow_schema(SCHEMA)
messages = st.lists(st.binary(max_size=20) | st.sampled_from([b"", b"\n", b"\0"]), min_size=1)


def found(offset: int, body: bytes, enc: str, count: int, time_ms: int = 0) -> ScannedBatch:
    header = Header(offset, count, len(body), time_ms, enc, body_sum(body), "-", 0)
    return ScannedBatch(0, header, memoryview(body))


@given(
    batches=st.lists(
        st.tuples(messages, st.sampled_from(ENCODINGS), st.integers(0, 3)), min_size=1
    ),
    cut=st.tuples(st.integers(0, 20), st.integers(0, 20)),
)
def test_any_batches(batches: list[tuple[list[bytes], str, int]], cut: tuple[int, int]) -> None:
    """Any messages in any encodings, gaps between them, and any cut at both ends."""
    chunks, expected, offset = [], [], 0
    for n, (batch, enc, gap) in enumerate(batches):
        offset += gap
        push = encoded("app", batch, enc)
        chunks.append(decode_batch(found(offset, bytes(push.body), push.enc, len(batch), n)))
        expected += [
            ("app", at, n * 1000, value)
            for at, value in enumerate(split_body(push.body, push.enc), offset)
        ]
        offset += len(batch)
    start, stop = cut[0], max(cut[0], offset - cut[1])
    table = record_batch("app", chunks, start, stop, SCHEMA_OF_ALL)
    table.validate(full=True)
    columns = [column.to_pylist() for column in table.set_column(
        2, "timestamp", table.column("timestamp").cast(pa.int64())
    ).columns]  # fmt: skip
    rows = list(zip(*columns, strict=True))
    assert rows == [row for row in expected if start <= row[1] < stop]


@pytest.mark.parametrize(
    ("body", "enc", "count"),
    [
        (b"one\ntwo\n", LINES, 1),
        (b"one\ntwo\n", LINES, 3),
        (b"one\ntwo", LINES, 2),
        (b"one\ntwo", LINES, 1),
        (b"3 3\nonetwo", SIZED, 3),
        (b"3 4\nonetwo", SIZED, 2),
        (b"3 2\nonetwo", SIZED, 2),
        (b"3  3\nonetwo", SIZED, 2),
        (b"-3 9\nonetwo", SIZED, 2),
        (b"3 3", SIZED, 2),
        (b"99999999999 3\nonetwo", SIZED, 2),
        (b"no zstd", f"{LINES}+zstd", 1),
    ],
)
def test_a_body_that_does_not_add_up(body: bytes, enc: str, count: int) -> None:
    with pytest.raises(DamagedBatch):
        record_batch("app", [decode_batch(found(0, body, enc, count))], 0, count, SCHEMA_OF_ALL)


@given(values=messages, batch_bytes=st.integers(1, 50), slice_at=st.integers(0, 5))
def test_bodies_hold_what_they_were_made_of(
    values: list[bytes], batch_bytes: int, slice_at: int
) -> None:
    array = pa.array(values, pa.binary()).slice(slice_at)
    made = list(bodies(array, batch_bytes))
    split = [split_body(body.data, body.enc) for body in made]
    assert [value for part in split for value in part] == values[slice_at:]
    assert [len(part) for part in split] == [body.messages for body in made]
    for body, part in zip(made, split, strict=True):
        assert len(part) == 1 or sum(map(len, part)) <= batch_bytes
        assert (body.enc == LINES) == (not any(b"\n" in value for value in part))
