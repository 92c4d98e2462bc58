"""Shared by rows: sizes of messages and batches, a directory for data, and a background load."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.measure import Measure, Sample, Setting
from bench.programs import Load

MESSAGE_BYTES = 100
BATCH_BYTES = 64 * 1024
BATCH = Load(connections=16, message_bytes=MESSAGE_BYTES, batch_bytes=BATCH_BYTES)
EVEN_BATCH = replace(BATCH, batch_bytes=BATCH_BYTES // MESSAGE_BYTES * MESSAGE_BYTES)
SETTLE_S = 0.3  # until the load has reached full speed


@contextmanager
def scratch(setting: Setting) -> Iterator[Path]:
    """A temporary directory on the disk under test."""
    with TemporaryDirectory(dir=setting.directory) as name:
        yield Path(name)


def batches_for(total_bytes: int, batch: Load = BATCH) -> Load:
    return replace(batch, count=max(1, total_bytes // batch.body_bytes))


def measure_under_load(
    setting: Setting, protocol: str, port: int, load: Load, measure: Measure
) -> Sample:
    """`load` must last longer than the measurement."""
    pushes = threading.Thread(
        target=setting.programs.load, args=(protocol, port, load), daemon=True
    )
    pushes.start()
    time.sleep(SETTLE_S)
    sample = measure()
    pushes.join()
    return sample
