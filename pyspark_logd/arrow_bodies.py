"""Encodes Arrow values as bodies of batches, without a Python object per message.

Pure. Invariant: the same values in the same record batches give the same bodies, since a daemon
recognizes a repeated batch by its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logd.batch import LINES, SIZED, count_lf

BATCH_BYTES = 256 * 1024


class ArrowBody(NamedTuple):
    data: bytes
    enc: str
    messages: int


def bodies(values: pa.Array, batch_bytes: int = BATCH_BYTES) -> Iterator[ArrowBody]:
    """Bodies of up to `batch_bytes`; a larger message gets a body of its own."""
    ends: Any = np.cumsum(pc.binary_length(values).to_numpy(zero_copy_only=False), dtype=np.int64)
    start, before = 0, 0
    while start < len(values):
        stop = max(start + 1, int(np.searchsorted(ends, before + batch_bytes, "right")))
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
