"""Directories and symbolic links in place of files, and files that the disk does not give out.

None of this is damage: the start stops with the error, and what is on the disk stays as it is. The
one exception is a disk without room for the copy of a torn tail: then only that topic is faulted.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from logd.errors import Faulted
from logd.offline import integrity
from logd.storage import disk, recovery
from logd.storage.disk import File
from tests.integration.storage.small_log import State, read_files
from tests.support.repair_outcomes import accepted, look, open_topic, read
from tests.support.topic_loop import Loop, batch_of, one_file, push

BOTH = pytest.mark.parametrize("name", ["clean", "killed"])

# By the number of the partition, so that it fits both states: of `.ids` the newest there is.
EVERY_FILE = ["meta.json", "checkpoint", "0.log", "2.log", "0.index", "2.index", "newest.ids"]


def path_of(file: str, topic_dir: Path, state: State) -> Path:
    stem, _, suffix = file.partition(".")
    if stem == "newest":
        return max(topic_dir.glob("*.ids"))
    if not stem.isdigit():
        return topic_dir / file
    return topic_dir / state.parts[int(stem)].name.replace("log", suffix)


def read_the_sealed_file(file: str, topic_dir: Path, state: State) -> None:
    """Make sure that a start has to read this file of the first partition."""
    if file == "0.index":
        path = topic_dir / state.parts[0].name
        path.write_bytes(path.read_bytes()[:-1])
    elif file == "0.log":
        (topic_dir / state.parts[0].index_name).write_bytes(b"")


def kept(topic_dir: Path) -> list[tuple[str, int, int]]:
    """What must not change; indexes may, since they are made from the rest."""
    return sorted(
        (path.name, path.lstat().st_ino, path.lstat().st_size)
        for path in topic_dir.iterdir()
        if path.suffix != ".index"
    )


def stops_and_changes_nothing(topic_dir: Path) -> None:
    before = kept(topic_dir)
    with pytest.raises(OSError):
        recovery.open_topic("app", topic_dir)
    assert kept(topic_dir) == before


@BOTH
@pytest.mark.parametrize("file", EVERY_FILE)
def test_a_directory_in_place_of_a_file_stops_the_start(
    topic_dir: Path, state: State, file: str
) -> None:
    path = path_of(file, topic_dir, state)
    path.unlink()
    path.mkdir()
    stops_and_changes_nothing(topic_dir)


@BOTH
@pytest.mark.parametrize("file", EVERY_FILE)
def test_a_named_pipe_in_place_of_a_file_stops_the_start(
    topic_dir: Path, state: State, file: str
) -> None:
    """Nobody waits for somebody to write to it."""
    read_the_sealed_file(file, topic_dir, state)
    path = path_of(file, topic_dir, state)
    path.unlink()
    os.mkfifo(path)
    stops_and_changes_nothing(topic_dir)


@BOTH
@pytest.mark.parametrize("file", EVERY_FILE)
def test_a_symbolic_link_in_place_of_a_file_stops_the_start(
    tmp_path: Path, topic_dir: Path, state: State, file: str
) -> None:
    """Even one that leads to the very bytes that should be there."""
    path = path_of(file, topic_dir, state)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    stops_and_changes_nothing(topic_dir)


@BOTH
def test_a_torn_tail_does_not_leave_through_a_symbolic_link(
    tmp_path: Path, topic_dir: Path, state: State
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (topic_dir / "quarantine").symlink_to(tmp_path / "elsewhere")
    path = topic_dir / state.active.name
    path.write_bytes(state.active.data + b"torn")
    try:
        _, opened = open_topic(topic_dir)
    except OSError:
        pass
    else:
        assert opened.damages
    assert os.listdir(tmp_path / "elsewhere") == []
    assert path.read_bytes() == state.active.data + b"torn"


def test_check_and_repair_do_not_follow_a_link_to_a_topic(tmp_path: Path) -> None:
    (tmp_path / "data" / "topics").mkdir(parents=True)
    one_file(tmp_path / "elsewhere", [10])
    (tmp_path / "data" / "topics" / "app").symlink_to(tmp_path / "elsewhere")
    assert integrity.topic_directories(tmp_path / "data", []) == []


# -- what the disk refuses ----------------------------------------------------------------------

REFUSALS = [errno.EIO, errno.EACCES]


@BOTH
@pytest.mark.parametrize("number", REFUSALS, ids=errno.errorcode.get)
@pytest.mark.parametrize("file", EVERY_FILE)
def test_a_file_that_cannot_be_opened_stops_the_start(
    topic_dir: Path, state: State, file: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, refused = os.open, path_of(file, topic_dir, state)

    def refuse(path: str | Path, *arguments: int) -> int:
        if Path(path) == refused:
            raise OSError(number, os.strerror(number))
        return opened(path, *arguments)

    read_the_sealed_file(file, topic_dir, state)
    monkeypatch.setattr(os, "open", refuse)
    stops_and_changes_nothing(topic_dir)
    if not file.endswith("ids"):
        with pytest.raises(OSError):
            integrity.check(topic_dir)


@BOTH
@pytest.mark.parametrize("file", EVERY_FILE)
def test_a_file_that_cannot_be_read_stops_the_start(
    topic_dir: Path, state: State, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_the_sealed_file(file, topic_dir, state)
    refuse_to_read(path_of(file, topic_dir, state), monkeypatch)
    stops_and_changes_nothing(topic_dir)


def refuse_to_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread = File.read_waiting

    def refuse(self: File, position: int, size: int) -> bytes:
        if Path(os.readlink(f"/proc/self/fd/{self.fd}")) == path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(self, position, size)

    monkeypatch.setattr(File, "read_waiting", refuse)


@BOTH
def test_a_torn_tail_is_not_cut_by_a_start_that_the_disk_stops(
    topic_dir: Path, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of producers is read last, and cannot be."""
    path = topic_dir / state.active.name
    path.write_bytes(state.active.data + b"torn")
    refuse_to_read(path_of("newest.ids", topic_dir, state), monkeypatch)
    stops_and_changes_nothing(topic_dir)


CHANGES = ["create", "write_at", "cut", "make_directory"]


def refusing(function: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(disk, function, refuse)


@pytest.mark.parametrize("name", ["killed"])
@pytest.mark.parametrize("function", CHANGES)
def test_an_error_of_the_disk_while_a_tail_is_set_aside_stops_the_start(
    topic_dir: Path, state: State, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = topic_dir / state.active.name
    path.write_bytes(state.active.data + b"torn")
    refusing(function, errno.EIO, monkeypatch)
    with pytest.raises(OSError):
        recovery.open_topic("app", topic_dir)
    assert path.read_bytes() == state.active.data + b"torn"


@pytest.mark.parametrize("name", ["killed"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
@pytest.mark.parametrize("function", ["create", "write_at", "make_directory"])
def test_without_room_for_the_copy_the_topic_is_faulted(
    topic_dir: Path, state: State, function: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = topic_dir / state.active.name
    path.write_bytes(state.active.data + b"torn")
    with monkeypatch.context() as patch:
        refusing(function, number, patch)
        topic, opened = open_topic(topic_dir)
    assert "room" in opened.damages[0].reason
    assert path.read_bytes() == state.active.data + b"torn"
    messages, whole = accepted(read(topic, 0))
    assert whole
    assert list(messages.values()) == [m for batch in state.batches for m in batch.messages]
    assert isinstance(push(topic, Loop(), batch_of([b"more"])).error, Faulted)
    look(topic_dir, state, read_files(topic_dir))  # with room again


@pytest.mark.parametrize("name", ["killed"])
@pytest.mark.parametrize("function", ["sync", "sync_directory"])
def test_a_failed_sync_stops_the_start(
    topic_dir: Path, state: State, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = topic_dir / state.active.name
    path.write_bytes(state.active.data + b"torn")

    def fail(*_: object) -> None:
        raise disk.SyncFailed("EIO")

    before = read_files(topic_dir)
    monkeypatch.setattr(disk, function, fail)
    with pytest.raises(disk.SyncFailed):
        recovery.open_topic("app", topic_dir)
    assert read_files(topic_dir) == before
