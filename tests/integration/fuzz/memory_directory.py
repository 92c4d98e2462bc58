"""A directory in memory, where the machine has one: neither the disk nor its other users are what
is tested here."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MEMORY = Path("/dev/shm")


@contextmanager
def memory_directory() -> Iterator[Path]:
    root = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    directory = Path(tempfile.mkdtemp(prefix="logd-fuzz-", dir=root))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)
