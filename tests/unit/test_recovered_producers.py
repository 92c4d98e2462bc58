"""What a start reads anew of producers."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from logd.batch import body_sum
from logd.storage import recovery
from tests.unit.logs import Shape, active


def test_many_batches_are_read_without_holding_them(tmp_path: Path) -> None:
    """A partition may hold millions of small ones."""
    partition, written = active(tmp_path, [Shape(id=f"p:{n}") for n in range(20_000)])
    tracemalloc.start()
    producers = recovery._load_producers(tmp_path, [], partition)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(producers) == 1
    assert producers.stored(f"p:{len(written) - 1}", body_sum(b"x" * 10 + b"\n")) is not None
    assert peak_bytes < 5 << 20
