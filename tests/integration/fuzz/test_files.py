"""Data directories with several faults at once, in and between topics, opened in this process.

Whatever was done: a check changes no file, it and a start end in an answer or a `LogdError`, no
message is handed out that was not written at that offset, and nothing is kept of it in memory. Each
single byte of each file is the matter of `tests/integration/storage`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random

import pytest

from logd.errors import DamagedBatch, LogdError
from logd.offline import integrity
from logd.offline.reader import DirectoryReader
from logd.topic import Topic
from tests.integration.fuzz.failures import Failing, keep
from tests.integration.fuzz.file_faults import Files, with_faults
from tests.integration.fuzz.fuzzed_daemon import GROWTH_BYTES
from tests.integration.fuzz.memory_directory import memory_directory
from tests.integration.fuzz.random_inputs import SEED, Progress, how_many
from tests.support.byte_sweep import leave_out_syncs
from tests.support.daemon import rss_bytes
from tests.support.repair_outcomes import accepted, read
from tests.support.topic_loop import Loop, batch_of, close, create, new_topic, push

INPUTS = how_many(2_000, 250_000)
WARM = min(INPUTS // 2, 10_000)
TOPICS = ("app", "web")
Messages = dict[int, set[bytes]]  # what may be read at each offset
Truth = dict[str, Messages]  # by topic


def write(directory: Path, truth: Truth, *, clean: bool) -> Files:
    """Two topics of three small partitions each, with ids and cursors, as a stop leaves them."""
    directory.mkdir()
    for name in TOPICS:
        loop = Loop()
        topic = create(directory / name, loop, partition_age_s=60.0)
        for n in range(12):
            loop.time_s += 61 if n in (5, 9) else 0.05
            count = 1 + n * 7 % 4
            sizes = (0, 3, 40, 300)[: n % 4 + 1]
            messages = [b"%s %d " % (name.encode(), n) + b"x" * sizes[i % len(sizes)]
                        + b"\n" * (n % 5 == 0) for i in range(count)]  # fmt: skip
            id_ = f"p:{n // 3}" if n % 3 == 0 else "-"
            pushed = push(topic, loop, batch_of(messages, zstd=n % 4 == 3, id_=id_))
            assert pushed.error is None, pushed.error
            truth[name] |= {pushed.offset + i: {one} for i, one in enumerate(messages)}
            if n == 10:
                loop.pass_time(2)  # a sync is due, and moves the checkpoint
            if n % 4 == 1:
                topic.cursors.commit(f"c{n}", n, lambda error: None)
                loop.run()
        if clean:
            close(topic, loop)
    return read_files(directory)


def read_files(directory: Path) -> Files:
    found: Files = {}
    for path, _, names in os.walk(directory):
        for name in names:
            with open(f"{path}/{name}", "rb", buffering=0) as file:
                found[f"{path}/{name}"[len(str(directory)) + 1 :]] = file.read()
    return found


class Copy:
    """A data directory that is given other files for each case; only what differs is written."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir, self.root = data_dir, data_dir / "topics"
        for name in TOPICS:
            (self.root / name).mkdir(parents=True)

    def put(self, files: Files) -> None:
        there = read_files(self.root)
        for name in there.keys() - files.keys():
            os.unlink(self.root / name)
        for name, data in files.items():
            if there.get(name) != data:
                path = f"{self.root}/{name}"
                if name in there:
                    os.unlink(path)
                with open(path, "wb", buffering=0) as file:
                    file.write(data)


def look(copy: Copy, files: Files, truth: Truth, topics: list[str]) -> None:
    for name in topics:
        directory = copy.root / name
        try:
            integrity.check(directory)
        except LogdError:
            pass
        _read_offline(copy.data_dir, name, truth[name])
    assert read_files(copy.root) == files, "a check or a read has changed a file"
    for name in topics:
        _open(copy.root / name, truth[name])


def _read_offline(data_dir: Path, name: str, truth: Messages) -> None:
    """From the start to the end, and behind each place that is damaged."""
    at = 0
    for _ in range(3):
        try:
            reader = DirectoryReader(
                data_dir, name, start=at, or_first=True, on_gap=lambda gap: None
            )
            for batch in reader.batches():
                for offset, message in enumerate(batch.messages, batch.offset):
                    _must_be(truth, offset, message)
                at = batch.next
            return
        except LogdError:
            at += 5


def _open(directory: Path, truth: Messages) -> None:
    try:
        topic = new_topic(directory, Loop())
        topic.open()
    except LogdError:
        return
    next_ = topic.readable.next
    for offset in {topic.readable.first, next_ // 2, max(0, next_ - 3)}:
        _read_one(topic, offset, truth)
    for name, place in topic.cursors.cursors.items():
        assert name in ("c1", "c5", "c9"), f"cursor {name}"
        assert place.offset <= int(name[1:]), f"cursor {name} is ahead: {place}"


def _read_one(topic: Topic, offset: int, truth: Messages) -> None:
    try:
        messages, _ = accepted(read(topic, offset, 10, 2000))
    except (LogdError, DamagedBatch):
        return
    for at, message in messages.items():
        _must_be(truth, at, message)


def _must_be(truth: Messages, offset: int, message: bytes) -> None:
    assert message in truth.get(offset, ()), f"{message[:60]!r} at {offset}"


@pytest.mark.slow
def test_whatever_was_done_to_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_syncs(monkeypatch)
    with memory_directory() as directory:
        states = []
        for clean in (True, False):
            truth: Truth = {name: {} for name in TOPICS}
            files = write(directory / f"written-{clean}", truth, clean=clean)
            states.append((files, truth, _of_either(truth)))
        _try_all(Copy(directory / "data"), states)


def _try_all(copy: Copy, states: list[tuple[Files, Truth, Truth]]) -> None:
    random, slowest_s, progress = Random(SEED), 0.0, Progress("files", INPUTS)
    warm_bytes = 0
    for number in range(INPUTS):
        if number == WARM:
            warm_bytes = rss_bytes(os.getpid())
        whole, truth, mixed = random.choice(states)
        files, is_mixed = with_faults(random, whole)
        copy.put(files)
        at_s = time.process_time()
        try:
            changed = [name for name in whole if files.get(name) != whole[name]]
            topics = sorted({name.partition("/")[0] for name in changed})
            look(copy, files, mixed if is_mixed else truth, topics)
        except Exception as error:  # whatever escapes is a finding
            said = keep("files", list(files.values()), names=list(files), changed=changed)
            raise Failing(f"input {number}: {type(error).__name__} {error}\n{said}") from error
        slowest_s = max(slowest_s, time.process_time() - at_s)
        progress.at(number)
    grown_bytes = rss_bytes(os.getpid()) - warm_bytes
    told = f", {grown_bytes / 1e6:.1f} MB grown, the slowest took {slowest_s:.2f} s"
    progress.tell(INPUTS, told)
    assert slowest_s < 1
    assert grown_bytes < GROWTH_BYTES, f"it has grown by {grown_bytes} bytes"


def _of_either(truth: Truth) -> Truth:
    """A log that was swapped holds sound batches: of the other topic, at the same offsets."""
    offsets = {offset for name in TOPICS for offset in truth[name]}
    nothing: set[bytes] = set()
    both = {at: set().union(*(truth[name].get(at, nothing) for name in TOPICS)) for at in offsets}
    return dict.fromkeys(TOPICS, both)
