"""An index is made from its partition: missing, stale or somebody else's, it is made again."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from logd.offline import integrity
from tests.integration.storage.small_log import State, read_files
from tests.support.byte_sweep import flip
from tests.support.repair_outcomes import accepted, open_topic, read, read_one
from tests.support.topic_loop import Loop, batch_of, close, create, one_file, push

OTHERS = {
    "longer": [350] * 40,
    "shorter": [350] * 14,
    "of smaller batches": [5] * 100,
    "of larger batches": [5000] * 12,
    "of none": [],
}


@pytest.mark.parametrize("sizes", OTHERS.values(), ids=OTHERS)
def test_the_index_of_another_topic_is_made_anew(tmp_path: Path, sizes: list[int]) -> None:
    directory, messages = one_file(tmp_path / "app", [250] * 20)
    other, _ = one_file(tmp_path / "other", sizes)
    index, log = directory / f"{0:020d}.index", directory / f"{0:020d}.log"
    right, data = index.read_bytes(), log.read_bytes()
    index.unlink()
    if sizes:
        index.write_bytes((other / index.name).read_bytes())
    topic, opened = open_topic(directory)
    assert opened.damages == ()
    assert log.read_bytes() == data
    assert list(accepted(read(topic, 0))[0].values()) == messages
    assert index.read_bytes() == right


def _reversed(data: bytes) -> bytes:
    return b"".join(data[i : i + 32] for i in range(len(data) - 32, -1, -32))


INDEXES: dict[str, Callable[[State, str], bytes | None]] = {
    "missing": lambda state, name: None,
    "empty": lambda state, name: b"",
    "as it was before more was written": lambda state, name: state.files[name][:32],
    "as it was before the seal": lambda state, name: state.files[name][:-32],
    "without its start": lambda state, name: state.files[name][32:],
    "another partition's": lambda state, name: next(
        data for other, data in state.files.items() if other.endswith(".index") and other != name
    ),
    "garbage": lambda state, name: random.Random(2).randbytes(96),
    "zeros": lambda state, name: bytes(len(state.files[name])),
    "in another order": lambda state, name: _reversed(state.files[name]),
    "followed by garbage": lambda state, name: state.files[name] + b"x" * 17,
    "followed by an entry's worth of it": lambda state, name: state.files[name] + b"x" * 32,
}


@pytest.mark.parametrize("name", ["clean", "killed"])
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("wrong", INDEXES.values(), ids=INDEXES)
def test_a_wrong_index_is_made_anew_byte_for_byte(
    topic_dir: Path,
    state: State,
    number: int,
    wrong: Callable[[State, str], bytes | None],
) -> None:
    part = state.parts[number]
    (topic_dir / part.index_name).unlink()
    content = wrong(state, part.index_name)
    if content is not None:
        (topic_dir / part.index_name).write_bytes(content)
    before = read_files(topic_dir)
    topic, opened = open_topic(topic_dir)
    assert opened.damages == ()
    for batch in state.batches:
        assert accepted(read(topic, batch.next - 1, 1))[1]
        assert read_one(topic, batch.first) == batch.messages[0]
    after = read_files(topic_dir)
    assert after[part.index_name] == part.index(sealed=part is not state.active)
    logs = [name for name in before if name.endswith(".log")]
    assert [after[name] for name in logs] == [before[name] for name in logs]


@pytest.mark.parametrize("name", ["clean", "killed"])
@pytest.mark.parametrize("number", [0, 1])
def test_an_emptied_file_is_damage_whatever_its_index_says(
    topic_dir: Path, state: State, number: int
) -> None:
    """The next one's index begins with what would close the index of an empty file."""
    part, behind = state.parts[number], state.parts[number + 1]
    (topic_dir / part.name).write_bytes(b"")
    (topic_dir / part.index_name).write_bytes(state.files[behind.index_name][:32])
    topic, opened = open_topic(topic_dir)
    assert [(damage.first, damage.next) for damage in opened.damages] == [
        (part.first, behind.first)
    ]
    for batch in state.batches:
        wanted = "faulted" if batch in part.batches else batch.messages[0]
        assert read_one(topic, batch.first) == wanted


def test_behind_damage_an_index_that_does_not_fit_leads_nowhere(tmp_path: Path) -> None:
    """Its entries are sound and lie where batches start, but are those of other offsets."""
    directories = []
    for name, messages in (("app", [b"x" * 1499]), ("other", [b"x" * 749, b"x" * 749])):
        loop = Loop()
        topic = create(tmp_path / name, loop)
        for _ in range(5):
            push(topic, loop, batch_of(messages))
        close(topic, loop)
        directories.append(tmp_path / name)
    app, other = directories
    log, index = app / f"{0:020d}.log", app / f"{0:020d}.index"
    assert log.stat().st_size == (other / log.name).stat().st_size
    assert len(index.read_bytes()) == len((other / index.name).read_bytes()) == 64
    index.write_bytes((other / index.name).read_bytes())
    data = log.read_bytes()
    log.write_bytes(flip(data, data.index(b"BATCH 1 ")))
    damages = integrity.check(app).report.damages
    assert [(damage.first, damage.next) for damage in damages] == [(1, 5)]


@pytest.mark.parametrize("name", ["rolled", "clean"])
@pytest.mark.parametrize("number", [0, 1])
def test_an_index_that_cannot_be_made_anew_does_not_stop_the_start(
    topic_dir: Path, state: State, number: int
) -> None:
    """Its closing entry fits, so nobody looks; what then needs it finds a damaged log behind it."""
    part = state.parts[number]
    index, log = topic_dir / part.index_name, topic_dir / part.name
    index.write_bytes(flip(index.read_bytes(), 0))
    log.write_bytes(flip(log.read_bytes(), 0))
    topic, _ = open_topic(topic_dir)
    for batch in state.batches:
        answer = read_one(topic, batch.first)
        if batch in part.batches:
            assert answer in (batch.messages[0], "faulted", "refused by the client")
        else:
            assert answer == batch.messages[0]
    assert read_one(topic, part.first) != part.batches[0].messages[0]
