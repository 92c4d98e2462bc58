"""Files that are missing, renamed, swapped, or followed by something that is not theirs.

Every offset below the checkpoint is either answered with exactly what was written, or `faulted`;
and what a start cannot explain, it leaves as it was.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from logd.errors import DamagedBatch, DataDirError, Faulted
from logd.offline import integrity
from logd.repair import Damage
from logd.storage.checkpoint import Checkpoint
from logd.storage.topic_files import meta_sum
from tests.integration.storage.corruptions import BESIDE, BROKEN, MISPLACED, Corruption
from tests.integration.storage.small_log import Files, State, read_files
from tests.support.repair_outcomes import accepted, at_time, look, open_topic, read, read_one
from tests.support.topic_loop import Loop, batch_of, close, create, push

BOTH = pytest.mark.parametrize("name", ["clean", "killed"])


def merged(damages: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same offsets in as few ranges as possible."""
    ranges: list[tuple[int, int]] = []
    for first, next_ in sorted(damages):
        if ranges and first <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], next_))
        elif first != next_:
            ranges.append((first, next_))
    return ranges


def offsets_of(damages: Iterable[Damage]) -> list[tuple[int, int]]:
    return merged((damage.first, damage.next) for damage in damages)


def without_indexes(files: Files) -> Files:
    """What a start must not change; indexes it may, since they are made from the rest."""
    return {name: data for name, data in files.items() if not name.endswith(".index")}


# -- damage that has a name ---------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("corruption", [*MISPLACED, *BROKEN], ids=repr)
def test_check_names_exactly_what_is_lost_and_changes_nothing(
    topic_dir: Path, state: State, corruption: Corruption
) -> None:
    corruption.corrupt(topic_dir, state)
    before = read_files(topic_dir)
    damages = integrity.check(topic_dir).report.damages
    assert all(damage.first <= damage.next for damage in damages), damages
    assert offsets_of(damages) == merged(corruption.lost(state))
    assert read_files(topic_dir) == before


@BOTH
@pytest.mark.parametrize(
    "corruption", [c for c in (*MISPLACED, *BROKEN) if c.seen_at_start], ids=repr
)
def test_a_start_is_faulted_leaves_the_logs_alone_and_reads_around_it(
    topic_dir: Path, state: State, corruption: Corruption
) -> None:
    corruption.corrupt(topic_dir, state)
    before = read_files(topic_dir)
    topic, opened = open_topic(topic_dir)
    lost = merged(corruption.lost(state))
    assert all(damage.first <= damage.next for damage in opened.damages), opened.damages
    assert offsets_of(opened.damages) == lost
    after = read_files(topic_dir)
    assert without_indexes(after) == without_indexes(before)
    for batch in state.batches:
        if batch.first < state.checkpoint.next:
            for offset, message in enumerate(batch.messages, batch.first):
                is_lost = any(first <= offset < next_ for first, next_ in lost)
                assert read_one(topic, offset) == ("faulted" if is_lost else message)
    pushing = push(topic, Loop(), batch_of([b"more"]))
    assert isinstance(pushing.error, Faulted)


@BOTH
@pytest.mark.parametrize(
    "corruption", [c for c in (*MISPLACED, *BROKEN) if c.seen_at_start], ids=repr
)
def test_around_damage_limits_and_times_lead_where_they_should(
    topic_dir: Path, state: State, corruption: Corruption
) -> None:
    """A reply ends where it was asked to, and a look-up by time passes over nothing readable."""
    corruption.corrupt(topic_dir, state)
    topic, _ = open_topic(topic_dir)
    lost = merged(corruption.lost(state))
    for batch in state.batches:
        is_lost = any(first < batch.next and batch.first < next_ for first, next_ in lost)
        if is_lost or batch.first >= state.checkpoint.next:
            continue
        for max_bytes in (1, 500, 5000):
            reply = read(topic, batch.first, max_bytes=max_bytes)
            messages, whole = accepted(reply)
            assert whole
            assert len(reply.data) <= max_bytes or reply.messages == len(batch.messages)
            assert messages[batch.first] == batch.messages[0]
        try:
            assert at_time(topic, batch.time_ms) <= batch.first
        except (Faulted, DamagedBatch):
            pass  # it lies where nobody can tell


@BOTH
@pytest.mark.parametrize("corruption", BESIDE, ids=repr)
def test_without_a_sound_meta_file_or_checkpoint_all_is_readable_and_nothing_writable(
    topic_dir: Path, state: State, corruption: Corruption
) -> None:
    corruption.corrupt(topic_dir, state)
    before = without_indexes(read_files(topic_dir))
    topic, opened = open_topic(topic_dir)
    assert [(d.first, d.next) for d in opened.damages] == corruption.lost(state)
    assert [
        (d.first, d.next) for d in integrity.check(topic_dir).report.damages
    ] == corruption.lost(state)
    messages, whole = accepted(read(topic, 0))
    assert whole
    assert list(messages.values()) == [m for batch in state.batches for m in batch.messages]
    assert isinstance(push(topic, Loop(), batch_of([b"more"])).error, Faulted)
    assert without_indexes(read_files(topic_dir)) == before


def test_swapped_files_of_one_size_are_refused_by_whoever_reads_them(tmp_path: Path) -> None:
    """Nothing about them is wrong but the offsets in them, which a start does not read."""
    loop = Loop()
    topic = create(tmp_path / "app", loop, partition_bytes=1)
    for word in (b"one", b"two", b"six"):
        push(topic, loop, batch_of([word]))
    close(topic, loop)
    one, two = sorted((tmp_path / "app").glob("*.log"))[:2]
    assert one.stat().st_size == two.stat().st_size
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)
    topic, _ = open_topic(tmp_path / "app")
    for offset in (0, 1):
        assert read_one(topic, offset) in ("faulted", "refused by the client")
    damages = integrity.check(tmp_path / "app").report.damages
    assert offsets_of(damages) == [(0, 2)]


# -- bytes behind the end -----------------------------------------------------------------------

TAILS = {
    f"{kind} of {size}": data
    for size in (1, 7, 66, 100, 4096, 70_001)
    for kind, data in (("zeros", bytes(size)), ("garbage", random.Random(size).randbytes(size)))
}


@pytest.mark.parametrize("name", ["clean", "killed", "ahead", "rolled"])
@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
def test_bytes_behind_the_end_are_cut_and_kept_aside(
    topic_dir: Path, state: State, tail: bytes
) -> None:
    path = topic_dir / state.active.name
    path.write_bytes(path.read_bytes() + tail)
    look(topic_dir, state, read_files(topic_dir))


@pytest.mark.parametrize("name", ["clean", "rolled"])
def test_a_tail_larger_than_what_is_copied_at_once(topic_dir: Path, state: State) -> None:
    tail = random.Random(5).randbytes(5 << 20)
    path = topic_dir / state.active.name
    path.write_bytes(path.read_bytes() + tail)
    look(topic_dir, state, read_files(topic_dir))


@BOTH
def test_two_torn_tails_of_one_place_and_size_are_both_kept(topic_dir: Path, state: State) -> None:
    """The second crash tears the log just where the first one did."""
    path = topic_dir / state.active.name
    for tail in (b"first tear", b"other tear"):
        path.write_bytes(path.read_bytes() + tail)
        open_topic(topic_dir)
    copies = [data for name, data in read_files(topic_dir).items() if "quarantine" in name]
    assert sorted(copies) == [b"first tear", b"other tear"]


# -- what belongs to somebody else --------------------------------------------------------------


STRANGERS = ["notes.txt", "00000000000000000044.log.bak", "44.log", "0000000000000000004x.log",
             "00000000000000000044.LOG", "000000000000000000044.log", "checkpoint~", "4x.ids",
             "7.ids", "0000000000000000004x.index", ".00000000000000000044.index.new",
             ".checkpoint.new", "١٢٣٤٥٦٧٨٩٠١٢٣٤٥٦٧٨٩٠.log"]  # fmt: skip


@BOTH
def test_files_that_are_none_of_its_own_are_left_alone(topic_dir: Path, state: State) -> None:
    for stranger in STRANGERS:
        (topic_dir / stranger).write_bytes(b"mine")
    (topic_dir / "backup").mkdir()
    (topic_dir / "backup" / "00000000000000000044.log").write_bytes(b"mine")
    look(topic_dir, state, read_files(topic_dir))
    visible = {stranger for stranger in STRANGERS if not stranger.startswith(".")}
    assert visible <= set(os.listdir(topic_dir))


@BOTH
@pytest.mark.parametrize("first", [43, 60, 10**6])
def test_a_checkpoint_that_belongs_to_another_log_costs_no_file(
    topic_dir: Path, state: State, first: int
) -> None:
    """What it calls expired is kept: no partition begins where it says that the log does."""
    before = {part.name: part.data for part in state.parts}
    checkpoint = Checkpoint(topic_dir / "checkpoint")
    assert checkpoint.state is not None
    later = 10**6 if first > 1000 else checkpoint.state.next
    checkpoint.write(replace(checkpoint.state, first=first, partition=first, next=later))
    topic, opened = open_topic(topic_dir)
    assert opened.damages[0].file == "checkpoint"
    messages = [message for batch in state.batches for message in batch.messages]
    assert list(accepted(read(topic, 0))[0].values()) == messages
    files = read_files(topic_dir)
    assert {name: files.get(name) for name in before} == before
    integrity.repair(topic_dir, accept_loss=True)
    topic, opened = open_topic(topic_dir)
    assert opened.damages == ()
    assert list(accepted(read(topic, 0, len(messages)))[0].values()) == messages


@BOTH
def test_a_name_that_no_offset_can_have_is_none_of_its_own(topic_dir: Path, state: State) -> None:
    stranger = topic_dir / f"{2**63:020d}.log"
    stranger.write_bytes(b"mine")
    _, opened = open_topic(topic_dir)
    assert opened.damages == ()
    assert integrity.check(topic_dir).report.damages == []
    assert stranger.read_bytes() == b"mine"


@BOTH
def test_a_topic_of_a_later_format_is_refused_and_not_touched(
    topic_dir: Path, state: State
) -> None:
    """Its sum is sound: somebody's newer logd wrote it, and only that knows how to read it."""
    content = {"format": 2, "id": "x", "created": 1}
    (topic_dir / "meta.json").write_text(json.dumps({**content, "sum": meta_sum(content)}))
    before = read_files(topic_dir)
    for work in (open_topic, integrity.check, lambda d: integrity.repair(d, accept_loss=True)):
        with pytest.raises(DataDirError, match="format 2"):
            work(topic_dir)
    assert read_files(topic_dir) == before


@pytest.mark.parametrize("name", ["clean"])
def test_a_meta_file_of_nothing_but_brackets(topic_dir: Path, state: State) -> None:
    (topic_dir / "meta.json").write_bytes(b"[" * 60_000)
    assert [damage.file for damage in open_topic(topic_dir)[1].damages] == ["meta.json"]
