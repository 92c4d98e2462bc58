"""Reading and copying a topic's files while they change: whole, in order, and nothing made up.

The model is what was acknowledged. The topic is a real one, and its changes come between any two
looks at its files.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logd.errors import NotFound, OutOfRange
from logd.offline import backup, integrity, reader, topic_backup
from logd.offline.backup import back_up
from logd.offline.reader import DirectoryReader, TopicSnapshot, take_snapshot
from logd.offline.topic_backup import TopicCopy
from logd.repair import Damage
from logd.storage import recovery
from logd.storage.producers import Producers
from tests.support.byte_sweep import leave_out_syncs
from tests.support.long_run import LONG
from tests.unit.beside import Schedule, World

EXAMPLES = 3_000 if LONG else 20
MOMENTS = range(0, 100, 1 if LONG else 4)  # looks of one copying; a reading has fewer
PUSHING = ["single", "batch", "group", "large", "large"]
RUNNING = ["expire", "expire", "time", "commit", "stop", "kill"]
FAILING = ["fail", "fail later", "fail a roll", "killed", "killed later"]
STEPS = st.lists(st.sampled_from(PUSHING + PUSHING + RUNNING + FAILING), max_size=12)
ANEW = st.lists(st.sampled_from([*PUSHING, *PUSHING, *RUNNING, "anew"]), max_size=12)
SCHEDULE = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), max_size=6)
Story = tuple[list[str], list[str], Schedule]  # before a copying, meanwhile, and when
REMOVED = "it was removed while it was being copied"
ALL = 200  # changes: more than any script has
SWEEPS: dict[str, Callable[[int], list[Story]]] = {
    "the topic is made anew": lambda moment: [
        (["large", "single", "commit"], ["anew", "large", "single"], [(moment, ALL)])],
    "a topic that has a copy is made anew": lambda moment: [
        (["single", "commit"], [], []), ([], ["anew", "single", "single"], [(moment, ALL)])],
    "a topic that has an older copy is made anew": lambda moment: [
        (["large"], [], []), (["single"], ["anew", "large", "single"], [(moment, ALL)])],
    "the topic is away for long": lambda moment: [
        (["single"], ["anew"], [(moment, 9)])],
    "all that was there expires": lambda moment: [
        (["large"], ["large", "large", "single", "expire"], [(moment, ALL)])],
    "a cursor moves": lambda moment: [
        (["single", "commit"], ["commit"], [(moment, 2)])],
    "what was full is emptied at each roll": lambda moment: [
        (["large", "large"], ["large", "expire", "large", "expire"], [(moment, 15), (1, ALL)])],
}  # fmt: skip


@contextmanager
def a_world() -> Iterator[World]:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        leave_out_syncs(patch)
        yield World(Path(name))


# -- reading --------------------------------------------------------------------------------------


@settings(max_examples=EXAMPLES)
@given(STEPS, STEPS, SCHEDULE)
def test_reading_beside_a_daemon(before: list[str], script: list[str], schedule: Schedule) -> None:
    with a_world() as world:
        world.run(before)
        first, next_ = world.first, world.next
        found: dict[int, bytes] = {}
        has_expired = False
        with world.goes_on(script, schedule):
            reader = DirectoryReader(world.data, "app")
            assert not take_snapshot(world.directory).damages
            try:
                for batch in reader.batches():
                    found |= enumerate(batch.messages, batch.offset)
            except OutOfRange:
                has_expired = True
        assert_messages(world, found)
        assert first <= reader.first
        assert next_ <= reader.next
        if has_expired:
            assert world.first > reader.first
            assert list(found) == list(range(reader.first, reader.first + len(found)))
        else:
            assert list(found) == list(range(reader.first, reader.next))


def assert_messages(world: World, found: dict[int, bytes]) -> None:
    """Each is what was acknowledged, if it was; none was refused; they came in this order."""
    messages = list(found.values())
    assert messages == sorted(set(messages))
    assert not world.refused & set(messages)
    assert all(world.acked.get(offset, message) == message for offset, message in found.items())


@pytest.mark.parametrize("then", ["single", "large"])
def test_a_write_that_fails_behind_a_whole_batch_is_no_damage(then: str) -> None:
    """The daemon cuts it off, and something else takes its place while it is read."""
    for moment in MOMENTS[:10]:
        for later in range(0, 24, 1 if LONG else 6):
            with a_world() as world:
                world.run(["single"])
                world.torn_bytes = 220
                with world.goes_on(["fail", "group", then], [(moment, 3), (later, ALL)]):
                    batches = list(DirectoryReader(world.data, "app").batches())
                assert batches[0].messages == [world.acked[0]]


def test_a_look_is_at_one_topic() -> None:
    """Made anew at any moment of it, a topic has its own checkpoint and not the other's."""
    for moment in range(30):
        with a_world() as world:
            world.run(["kill", "single"])
            ids = {world.topic.id: 2}  # the epoch of each
            with world.goes_on(["anew", "single"], [(moment, ALL)]):
                snapshot = take_snapshot(world.directory)
            ids[world.topic.id] = 1
            assert ids[snapshot.id] == snapshot.state.epoch


# -- copying --------------------------------------------------------------------------------------


@settings(max_examples=EXAMPLES)
@given(st.lists(st.tuples(STEPS, STEPS, SCHEDULE), min_size=1, max_size=3))
def test_copying_beside_a_daemon(stories: list[Story]) -> None:
    assert_copied(stories)


@settings(max_examples=EXAMPLES)
@given(st.lists(st.tuples(ANEW, ANEW, SCHEDULE), min_size=1, max_size=3))
def test_copying_a_topic_that_is_made_anew(stories: list[Story]) -> None:
    assert_copied(stories)


@pytest.mark.parametrize("sweep", SWEEPS)
def test_each_moment_of_a_copying(sweep: str) -> None:
    for moment in MOMENTS:
        assert_copied(SWEEPS[sweep](moment))


@pytest.mark.parametrize("then", ["single", "large"])
@pytest.mark.parametrize("when", ["before", "behind"])
def test_a_failed_write_that_is_cut_off_under_the_copying(
    monkeypatch: pytest.MonkeyPatch, when: str, then: str
) -> None:
    """A whole batch of it was seen. Something else takes its place, before its bytes are copied or
    behind that: the copy does not have what was refused, and can be gone on with."""
    real = topic_backup._copy
    for moment in MOMENTS[:10]:
        with a_world() as world:

            def copy(*args: Any, world: World = world) -> None:
                if when == "before":
                    world.go_on_to_the_end()
                real(*args)
                world.go_on_to_the_end()

            monkeypatch.setattr(topic_backup, "_copy", copy)
            world.torn_bytes = 220
            story = (["single"], ["fail", "group", then], [(moment, 3)])
            assert_copies(world, [story])


def assert_copied(stories: list[Story]) -> None:
    with a_world() as world:
        assert_copies(world, stories)


def assert_copies(world: World, stories: list[Story]) -> None:
    """Each time the copy is sound and has what was there; in the end it has what is there."""
    copy = world.data / "copy" / "topics" / "app"
    copy.parent.mkdir(parents=True)
    for before, script, schedule in [*stories, ([], [], [])]:
        world.run(before)
        life, first, next_, committed = world.life, world.first, world.next, world.committed
        with world.goes_on(script, schedule):
            done = back_up(world.directory, copy)
        if world.life > life and done.problem == REMOVED:
            continue
        assert (done.problem, done.damages) == ("", [])
        state = assert_sound(world, copy)
        assert (done.first, done.next) == (state.first, state.next)
        if world.life == life:
            assert first <= state.first <= world.first
            assert next_ <= state.next
            assert committed <= state.committed
    assert logs(copy, world.first) == logs(world.directory, world.first)


class Held(NamedTuple):
    """What a copy holds."""

    first: int
    next: int
    committed: int


def assert_sound(world: World, copy: Path) -> Held:
    report = integrity.check(copy).report
    assert (report.damages, report.cut_bytes) == ([], 0)
    scratch = world.data / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(copy.parent, scratch / "topics")
    found: dict[int, bytes] = {}
    for batch in DirectoryReader(scratch, "app").batches():
        found |= enumerate(batch.messages, batch.offset)
    opened = recovery.open_topic("app", scratch / "topics" / "app")
    first, next_ = opened.state.first, opened.partitions[-1].next
    assert (opened.damages, opened.cursors.notes) == ((), [])
    assert list(found) == list(range(first, next_))
    if opened.id == world.topic.id:
        assert_messages(world, found)
        ours, theirs = remembered(opened.producers), remembered(world.topic.producers)
        assert ours == {n: place for n, place in theirs.items() if place[0] < next_}
    else:
        assert len({message.split()[0] for message in found.values()}) <= 1
    place = opened.cursors.saved.cursors.get("reader")
    return Held(first, next_, place.offset if place else 0)


def remembered(producers: Producers) -> dict[int, tuple[int, int, int]]:
    """Where the batches of the world's one producer are."""
    known = producers._known.get("p")
    places = {n: known.find(n) for n in range(known.last + 1)} if known else {}
    return {n: place for n, place in places.items() if place}


def logs(directory: Path, first: int) -> dict[str, bytes]:
    """Without those that have expired, and the newest where nothing is in it yet."""
    paths = sorted(path for path in directory.glob("*.log") if int(path.stem) >= first)
    found = {path.name: path.read_bytes() for path in paths}
    return {name: data for name, data in found.items() if data}


# -- one by one -----------------------------------------------------------------------------------


def test_damage_found_before_it_begins_again_is_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = TopicCopy.extend, iter([False, True])

    def extend(self: TopicCopy, *args: Any) -> list[Damage]:
        if next(calls, False):
            raise FileNotFoundError
        return real(self, *args)

    monkeypatch.setattr(TopicCopy, "extend", extend)
    with a_world() as world:
        world.run(["large", "large", "single"])
        path = min(world.directory.glob("*.log"))
        path.write_bytes(path.read_bytes().replace(b"xxx", b"xyx", 1))
        done = back_up(world.directory, world.data / "copy")
    assert [damage.first for damage in done.damages] == [0]
    assert done.new_partitions == done.partitions == 3
    assert done.new_bytes == done.bytes


def test_damage_of_a_whole_topic_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the copying begins again."""
    real, tries = topic_backup.copy_files, iter([False, False, True])

    def copy_files(*args: Any) -> Any:
        if not next(tries):
            raise FileNotFoundError
        return real(*args)

    monkeypatch.setattr(backup, "copy_files", copy_files)
    with a_world() as world:
        world.run(["single"])
        (world.directory / "meta.json").write_bytes(b"{}")
        wanted = take_snapshot(world.directory).damages
        done = back_up(world.directory, world.data / "copy")
    assert wanted
    assert done.damages == list(wanted)
    assert next(tries, None) is None


def test_a_topic_that_goes_while_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_world() as world:
        real = recovery.partition_firsts

        def partition_firsts(*args: Any) -> list[int]:
            shutil.rmtree(world.directory, ignore_errors=True)
            return real(*args)

        monkeypatch.setattr(recovery, "partition_firsts", partition_firsts)
        with pytest.raises(NotFound, match="was removed while it was being read"):
            DirectoryReader(world.data, "app")


def test_a_copy_of_a_topic_that_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_world() as world:
        real = reader.take_snapshot

        def snapshot(directory: Path) -> TopicSnapshot:
            shutil.rmtree(directory, ignore_errors=True)
            return real(directory)

        monkeypatch.setattr(backup, "take_snapshot", snapshot)
        assert back_up(world.directory, world.data / "copy").problem == REMOVED
