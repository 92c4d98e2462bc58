"""What readers see of a topic, and what other threads may ask meanwhile."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from logd.partition import Partition
from logd.storage.readable_range import ReadableRange


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval_s)


@pytest.mark.usefixtures("hasty_threads")
def test_first_can_be_asked_for_while_partitions_come_and_go(tmp_path: Path) -> None:
    """A sync on its thread notes it while the loop lets go of what has expired."""
    view, seen, done = ReadableRange(lambda partition: None), [0], threading.Event()
    partitions = [Partition(tmp_path, first) for first in range(20_000)]
    view.add(partitions[0])

    def ask() -> None:
        while not done.is_set():
            seen.append(view.first)

    thread = threading.Thread(target=ask)
    thread.start()
    for old, new in pairwise(partitions):
        view.add(new)
        view.remove(old)
    done.set()
    thread.join()
    assert seen == sorted(seen)
    assert view.first == 19_999
