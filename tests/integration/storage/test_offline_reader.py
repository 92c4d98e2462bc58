"""Reading files without a daemon: the same answers as a daemon's, and no byte of them changed."""

from __future__ import annotations

import itertools
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from logd import Client, Reader, Writer
from logd.errors import DataDirError, Faulted, LogdError, NotFound, OutOfRange
from logd.offline import reader
from logd.offline.reader import DirectoryReader, in_use, take_snapshot
from logd.storage import disk
from logd.wire.read_state import Gap, Rewind
from logd.wire.requests import At
from tests.integration.storage.corruptions import BESIDE, BROKEN, MISPLACED, Corruption
from tests.integration.storage.data_dirs import data_dir, log_cli, unchanged
from tests.integration.storage.small_log import State
from tests.support.byte_sweep import cuts, flips, positions, sweep
from tests.support.daemon import running, wait_until
from tests.support.repair_outcomes import at_time, open_topic, read_one

BOTH = pytest.mark.parametrize("name", ["clean", "killed"])
REFUSED = ("faulted", "refused by the client")
DONE, LOSS = 0, 3


def read_file(data: Path, offset: int) -> bytes | str:
    """The message at an offset, or the word that it is refused with."""
    try:
        found = [m for b in DirectoryReader(data, "app", start=offset, limit=1).batches()
                 for m in b.messages]  # fmt: skip
    except LogdError as error:
        return error.code
    return found[0] if found else "nothing"


def as_a_daemon_would(data: Path, aside: Path) -> None:
    """Every offset and some times, compared with a start on a copy of the same files."""
    directory = data / "topics" / "app"
    with unchanged(data):
        snapshot = take_snapshot(directory)
        shutil.copytree(directory, aside)
        topic, opened = open_topic(aside)
        view = topic.readable
        assert (snapshot.readable.first, snapshot.readable.next) == (view.first, view.next)
        assert snapshot.readable.size == view.size
        assert [d[:2] for d in snapshot.damages] == [d[:2] for d in opened.damages]
        offsets = {*range(min(view.first, 60), min(view.next, 80)), view.next + 1}
        for offset in offsets:
            wanted, got = read_one(topic, offset), read_file(data, offset)
            assert got == wanted or (got in REFUSED and wanted in REFUSED), (offset, got, wanted)
    shutil.rmtree(aside)


@BOTH
@pytest.mark.parametrize("corruption", [*MISPLACED, *BROKEN, *BESIDE], ids=repr)
def test_it_answers_what_a_daemon_would(
    tmp_path: Path, state: State, corruption: Corruption
) -> None:
    data = data_dir(tmp_path, state)
    corruption.corrupt(data / "topics" / "app", state)
    as_a_daemon_would(data, tmp_path / "app")


@pytest.mark.slow
@BOTH
def test_wherever_the_newest_file_is_cut_or_changed(tmp_path: Path, state: State) -> None:
    name, at = state.active.name, positions(state.active)[::7]
    cases = itertools.chain(cuts(state, name, at), flips(state, name, at))
    data = tmp_path / "data"

    def compare(directory: Path, _: State, files: object) -> None:
        as_a_daemon_would(data, tmp_path / "app")

    assert sweep(data / "topics" / "app", state, cases, compare) > 20


@BOTH
def test_times_are_found_as_a_daemon_finds_them(tmp_path: Path, state: State) -> None:
    data = data_dir(tmp_path, state)
    shutil.copytree(data / "topics" / "app", tmp_path / "app")
    topic, _ = open_topic(tmp_path / "app")
    times = {batch.time_ms + step for batch in state.batches for step in (-1, 0, 1)}
    for time_ms in times:
        reader = DirectoryReader(data, "app", start=At(time_ms), limit=1)
        found = [batch.offset for batch in reader.batches()]
        assert found == [at_time(topic, time_ms)] * (at_time(topic, time_ms) < topic.readable.next)


@pytest.mark.parametrize(
    ("place", "offsets"),
    [
        ({}, range(76)),
        ({"start": 40, "limit": 10}, range(40, 50)),
        ({"start": 3, "until": 5}, range(3, 5)),
        ({"tail": 4}, range(72, 76)),
        ({"tail": 0}, range(0)),
        ({"tail": 1000}, range(76)),
        ({"start": "next"}, range(0)),
        ({"start": 76}, range(0)),
        ({"start": 70, "until": 10}, range(0)),
    ],
)
def test_the_arguments_of_a_reader(
    tmp_path: Path, clean: State, place: dict[str, int], offsets: range
) -> None:
    truth = {b.first + i: m for b in clean.batches for i, m in enumerate(b.messages)}
    data = data_dir(tmp_path, clean)
    with DirectoryReader(data, "app", **place) as reader:  # type: ignore[arg-type]
        found = {
            offset: message
            for batch in reader.batches()
            for offset, message in enumerate(batch.messages, batch.offset)
        }
    assert found == {offset: truth[offset] for offset in offsets}


def test_places_that_are_not_there(tmp_path: Path, clean: State) -> None:
    data = data_dir(tmp_path, clean)
    with pytest.raises(NotFound, match="has no topic nope"):
        DirectoryReader(data, "nope")
    with pytest.raises(DataDirError, match="not a data directory of logd"):
        DirectoryReader(tmp_path, "app")
    with pytest.raises(OutOfRange, match="first=0 next=76"):
        list(DirectoryReader(data, "app", start=77).batches())


def test_a_gap_is_told_and_what_has_expired_is_skipped_on_demand(
    tmp_path: Path, clean: State
) -> None:
    data = data_dir(tmp_path, clean)
    (data / "topics" / "app" / clean.parts[1].name).unlink()
    assert log_cli("repair", "--data-dir", data, "--accept-loss").code == DONE
    gaps: list[Gap | Rewind] = []
    reader = DirectoryReader(data, "app", start=43, on_gap=gaps.append)
    assert next(iter(batch.offset for batch in reader.batches() if batch.offset > 43)) == 58
    assert gaps == [Gap(44, 14, "they were lost on disk")]


def test_expired_offsets(tmp_path: Path) -> None:
    settings = {"partition_bytes": 1, "max_partitions": 2}
    with running(tmp_path, **settings) as daemon, Client(daemon.address) as client:
        for n in range(5):
            client.push("app", [b"m%d" % n])
        first = 3  # of five, two are left
        wait_until(lambda: client.topics()[0].first == first)
        daemon.stop()
    data = daemon.data_dir
    with pytest.raises(OutOfRange, match=f"first={first} "):
        list(DirectoryReader(data, "app", start=0).batches())
    ran = log_cli("read", "--data-dir", data, "app", "--offset", "0")
    assert (ran.code, ran.out) == (LOSS, "")
    assert "--or-first" in ran.err
    ran = log_cli("read", "--data-dir", data, "app", "--offset", "0", "--or-first")
    assert ran.code == DONE
    assert ran.out.split() == [f"m{n}" for n in range(first, 5)]
    assert f"skipped offsets 0 to {first - 1}: they have expired" in ran.err


def test_beside_a_daemon_that_writes(tmp_path: Path) -> None:
    """Whatever moment it looks at, it gets a whole prefix, and never calls it damaged."""
    with running(tmp_path, partition_bytes=20_000, max_partitions=3) as daemon:
        data = daemon.data_dir
        with Writer(daemon.address, "app", batch_bytes=2000, linger_s=None) as writer:
            for n in range(60):
                writer.write_many([b"%06d" % i for i in range(n * 100, n * 100 + 100)])
                writer.flush()
                with DirectoryReader(data, "app") as reader:
                    try:
                        batches = list(reader.batches())
                    except OutOfRange:  # the daemon let go of it meanwhile
                        continue
                found = [int(m) for batch in batches for m in batch.messages]
                assert found == list(range(reader.first, n * 100 + 100))
        assert in_use(data)
        ran = log_cli("read", "--data-dir", data, "app", "--tail", "1")
        assert ran.out == "005999\n"
        assert "a daemon is using" in ran.err
        daemon.stop()
        assert not in_use(data)


def test_a_lock_is_not_kept(tmp_path: Path, clean: State) -> None:
    data = data_dir(tmp_path, clean)
    reader = DirectoryReader(data, "app")
    with running(tmp_path) as daemon, Reader(daemon.address, "app", limit=3) as other:
        assert len(list(other)) == 3
        assert sum(len(batch.messages) for batch in reader.batches()) == 76


def test_files_that_never_stand_still(
    tmp_path: Path, clean: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_dir(tmp_path, clean)
    (data / "topics" / "app" / clean.parts[0].name).unlink()
    real, steps = reader._state, itertools.count(1)
    assert take_snapshot(data / "topics" / "app").damages

    def moving(directory: Path) -> object:
        state = real(directory)
        assert state is not None
        return replace(state, sequence=next(steps))

    monkeypatch.setattr(reader, "_state", moving)
    with pytest.raises(DataDirError, match="keeps changing while it is read"):
        take_snapshot(data / "topics" / "app")


def test_damage_is_met_with_its_offset(tmp_path: Path, clean: State) -> None:
    data = data_dir(tmp_path, clean)
    corruption = next(c for c in BROKEN if c.name == "an indexed body")
    corruption.corrupt(data / "topics" / "app", clean)
    reader = DirectoryReader(data, "app")
    offsets: list[int] = []
    with pytest.raises(Faulted, match="offset 22 or a later one is damaged"):
        offsets.extend(batch.offset for batch in reader.batches())
    ran = log_cli("read", "--data-dir", data, "app", "--format", "{offset}")
    assert (ran.code, ran.out.split()[-1]) == (LOSS, "21")
    assert "check" in ran.err
    behind = log_cli("read", "--data-dir", data, "app", "--format", "{offset}", "--offset", "37")
    assert (behind.code, behind.out.split()[0], behind.out.split()[-1]) == (DONE, "37", "75")


def test_files_that_are_not_in_the_cache(tmp_path: Path, clean: State) -> None:
    """It waits for the disk, where a daemon's loop would not."""
    data = data_dir(tmp_path, clean)
    for offset in range(0, 76, 5):
        for path in (data / "topics" / "app").iterdir():
            file = disk.File(path)
            os.fsync(file.fd)
            disk.drop_cache(file)
        (batch,) = DirectoryReader(data, "app", start=offset, limit=1).batches()
        assert batch.offset == offset
