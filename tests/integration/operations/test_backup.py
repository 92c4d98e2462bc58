"""A copy that is made beside a daemon: what is in it, what it refuses, and killed at each step."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from logd import Client
from logd.errors import OutOfOrder
from logd.offline import backup, integrity, reader, topic_backup
from logd.offline.backup import Copied, back_up
from logd.storage import disk
from logd.storage.checkpoint import Checkpoint
from tests.integration.operations.copies import (
    assert_messages,
    assert_sound,
    assert_whole,
    daemon,
    logs,
    message,
    push_as,
    tree,
    visible,
    write,
)
from tests.support.daemon import Daemon, wait_until
from tests.support.killed_calls import is_killed
from tests.support.log_cli import log_cli
from tests.support.long_run import LONG


def copy_all(source: Path, target: Path) -> dict[str, Copied]:
    disk.make_directories((target / "topics").absolute())
    return {
        directory.name: back_up(directory, target / "topics" / directory.name)
        for directory in visible(source)
    }


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Daemon]:
    with daemon(tmp_path / "data") as running:
        yield running


def test_a_copy_beside_a_running_daemon_and_again(source: Daemon, tmp_path: Path) -> None:
    copy, scratch = tmp_path / "copy", tmp_path / "scratch"
    write(source, "app", 60)
    first = copy_all(source.data_dir, copy)["app"]
    assert (first.first, first.next, first.problem) == (0, 60, "")
    assert first.new_partitions == first.partitions > 2
    assert assert_whole(copy, scratch) == {"app": (0, 60)}
    nothing = copy_all(source.data_dir, copy)["app"]
    assert (nothing.new_bytes, nothing.new_partitions) == (0, 0)
    before = logs(copy / "topics" / "app")
    write(source, "app", 5)
    again = copy_all(source.data_dir, copy)["app"]
    assert again.new_bytes < 1500
    after = logs(copy / "topics" / "app")
    assert all(after[name].startswith(data) for name, data in before.items())
    assert logs(source.topic_dir("app")) == after
    assert assert_whole(copy, scratch) == {"app": (0, 65)}


def test_what_expired_in_the_source_goes_from_the_copy(source: Daemon, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    write(source, "app", 60)
    copy_all(source.data_dir, copy)
    write(source, "app", 40)
    expired(source, "app")
    done = copy_all(source.data_dir, copy)["app"]
    assert done.expired_partitions
    assert done.first > 0
    assert logs(copy / "topics" / "app") == logs(source.topic_dir("app"))
    assert assert_whole(copy, tmp_path / "scratch") == {"app": (done.first, 100)}


def expired(running: Daemon, topic: str) -> None:
    """Wait until retention has done its work."""
    with Client(running.address) as client:
        wait_until(lambda: int(client.stats(topic)["partitions"]) <= 4)
    wait_until(lambda: len(running.log_files(topic)) <= 4)


def test_a_copy_that_is_older_than_all_of_the_source_is_made_anew(
    source: Daemon, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    write(source, "app", 30)
    copy_all(source.data_dir, copy)
    write(source, "app", 300)
    expired(source, "app")
    done = copy_all(source.data_dir, copy)["app"]
    assert done.first > 30
    assert logs(copy / "topics" / "app") == logs(source.topic_dir("app"))
    assert [path.name for path in (copy / "topics").iterdir()] == ["app"]


def test_bytes_behind_the_copy_s_checkpoint_do_not_stay(source: Daemon, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    write(source, "app", 5)
    copy_all(source.data_dir, copy)
    with (copy / "topics" / "app" / "00000000000000000000.log").open("ab") as file:
        file.write(b"left by somebody" * 100)
    copy_all(source.data_dir, copy)
    assert logs(copy / "topics" / "app") == logs(source.topic_dir("app"))


def test_a_roll_that_was_taken_back(source: Daemon, tmp_path: Path) -> None:
    """A roll makes the next file, and removes it where it cannot be finished."""
    copy = tmp_path / "copy"
    write(source, "app", 5)
    begun = source.topic_dir("app") / "00000000000000000005.log"
    begun.touch()
    assert copy_all(source.data_dir, copy)["app"].next == 5
    begun.unlink()
    write(source, "app", 5)
    assert copy_all(source.data_dir, copy)["app"].next == 10
    assert assert_whole(copy, tmp_path / "scratch") == {"app": (0, 10)}


def test_what_is_no_topic_is_left_out(source: Daemon, tmp_path: Path) -> None:
    write(source, "app", 5)
    (source.data_dir / "topics" / "lost+found").mkdir()
    words = ("--data-dir", str(source.data_dir), "--to", str(tmp_path / "copy"))
    code, _, err = log_cli("", "backup", *words)
    assert (code, "lost+found: not a topic" in err) == (0, True)
    assert [path.name for path in (tmp_path / "copy" / "topics").iterdir()] == ["app"]


def test_a_daemon_starts_on_the_copy_and_goes_on(source: Daemon, tmp_path: Path) -> None:
    write(source, "app", 50)
    copy_all(source.data_dir, tmp_path / "copy")
    write(source, "app", 10)
    with Client(source.address) as client:
        was = client.stats("app")
    with daemon(tmp_path / "copy") as restored:
        assert_messages(restored, "app", 0, 50)
        with Client(restored.address) as client:
            now = client.stats("app")
            assert now["id"] == was["id"]
            assert (int(now["epoch"]), now["epoch_began"]) == (int(was["epoch"]) + 1, "50")
            assert client.cursor("app", "reader").offset == 50
            assert client.push("app", [message("app", 50)]).offset == 50


def test_producers_whose_partitions_have_gone_are_known_in_the_copy(
    source: Daemon, tmp_path: Path
) -> None:
    with Client(source.address) as client:
        push_as(client, "app", b"once", "old:7")
    write(source, "app", 200)
    expired(source, "app")
    copy_all(source.data_dir, tmp_path / "copy")
    with daemon(tmp_path / "copy") as restored, Client(restored.address) as client:
        assert push_as(client, "app", b"once", "old:7") == 0
        with pytest.raises(OutOfOrder):
            push_as(client, "app", b"x", "old:9")


# -- what is refused ------------------------------------------------------------------------------


def test_a_copy_that_a_daemon_has_run_on_is_not_touched(source: Daemon, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    write(source, "app", 30)
    copy_all(source.data_dir, copy)
    with daemon(copy) as restored:
        assert log_cli("", "backup", "--data-dir", str(source.data_dir), "--to", str(copy))[0] == 1
        assert restored.stop() == 0
    before = tree(copy)
    write(source, "app", 300)
    assert "a daemon has run on" in copy_all(source.data_dir, copy)["app"].problem
    assert tree(copy) == before


def test_another_daemons_data_is_not_touched(source: Daemon, tmp_path: Path) -> None:
    write(source, "app", 5)
    with daemon(tmp_path / "other") as other:
        write(other, "app", 9)
        assert other.stop() == 0
    before = tree(tmp_path / "other")
    done = copy_all(source.data_dir, tmp_path / "other")["app"]
    assert "was not made by a backup" in done.problem
    assert tree(tmp_path / "other") == before


def test_a_source_that_has_lost_what_the_copy_has(source: Daemon, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    write(source, "app", 10)
    assert source.stop() == 0
    shutil.copytree(source.data_dir, tmp_path / "older")
    source.start()
    write(source, "app", 3)
    copy_all(source.data_dir, copy)
    with daemon(tmp_path / "older") as older:
        with Client(older.address) as client:
            client.push("app", [b"y" * 300])
            client.push("app", [b"y" * 300])
        before = tree(copy)
        assert "has different messages" in copy_all(older.data_dir, copy)["app"].problem
    assert tree(copy) == before


def test_a_topic_that_was_made_anew_is_copied_and_the_old_copy_kept(
    source: Daemon, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    write(source, "app", 10)
    copy_all(source.data_dir, copy)
    old = logs(copy / "topics" / "app")
    assert source.stop() == 0
    shutil.rmtree(source.topic_dir("app"))
    source.start()
    write(source, "app", 4)
    assert copy_all(source.data_dir, copy)["app"].next == 4
    assert assert_whole(copy, tmp_path / "scratch") == {"app": (0, 4)}
    [former] = (copy / "former").iterdir()
    assert logs(former) == old
    shutil.move(former, tmp_path / "came back")
    shutil.copytree(tmp_path / "came back", former)
    assert source.stop() == 0
    shutil.move(copy / "topics" / "app", tmp_path / "second")
    shutil.move(tmp_path / "came back", copy / "topics" / "app")
    copy_all(source.data_dir, copy)
    assert sorted(path.name for path in (copy / "former").iterdir()) == [
        former.name, f"{former.name}-2",
    ]  # fmt: skip


def test_a_topic_made_anew_under_the_copying(
    source: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the copying: what is copied is one topic or the other."""
    write(source, "app", 30)
    real, looks = reader.take_snapshot, count()

    def look(directory: Path) -> Any:
        looked = real(directory)
        if next(looks) == 0:
            assert source.stop() == 0
            shutil.rmtree(source.topic_dir("app"))
            source.start()
            write(source, "app", 35)
        return looked

    monkeypatch.setattr(backup, "take_snapshot", look)
    assert copy_all(source.data_dir, tmp_path / "copy")["app"].next == 35
    assert logs(tmp_path / "copy" / "topics" / "app") == logs(source.topic_dir("app"))


def test_partitions_that_go_under_the_copying(
    source: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the copying the oldest go, and a roll comes."""
    write(source, "app", 60)
    real, looks = reader.take_snapshot, count()

    def look(directory: Path) -> Any:
        looked = real(directory)
        if next(looks) == 0:
            write(source, "app", 60)
            expired(source, "app")
        return looked

    monkeypatch.setattr(backup, "take_snapshot", look)
    done = copy_all(source.data_dir, tmp_path / "copy")["app"]
    ranges = assert_whole(tmp_path / "copy", tmp_path / "scratch")
    assert ranges == {"app": (done.first, done.next)} == {"app": (done.first, 120)}


def test_partitions_that_go_while_one_is_copied_are_held(
    source: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(source, "app", 60)
    real, copied = topic_backup.TopicCopy.extend, count()

    def extend(self: Any, *arguments: Any) -> Any:
        if next(copied) == 0:
            write(source, "app", 60)
            expired(source, "app")
        return real(self, *arguments)

    monkeypatch.setattr(topic_backup.TopicCopy, "extend", extend)
    done = copy_all(source.data_dir, tmp_path / "copy")["app"]
    assert (done.first, done.next) == (0, 60)
    assert assert_whole(tmp_path / "copy", tmp_path / "scratch") == {"app": (0, 60)}


# -- damage ---------------------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_damage_that_nobody_has_met_is_reported_and_the_rest_copied(
    source: Daemon, tmp_path: Path
) -> None:
    write(source, "app", 60)
    flip(source.log_files("app")[1], 500)
    done = copy_all(source.data_dir, tmp_path / "copy")["app"]
    [damage] = done.damages
    assert damage.file == source.log_files("app")[1].name
    assert logs(tmp_path / "copy" / "topics" / "app") == logs(source.topic_dir("app"))
    words = ("backup", "--data-dir", str(source.data_dir), "--to", str(tmp_path / "second"))
    code, out, _ = log_cli("", *words)
    assert code == 3
    assert b"are damaged" in out


def test_a_good_copy_outlives_the_damage_of_its_source(source: Daemon, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    write(source, "app", 60)
    copy_all(source.data_dir, copy)
    assert source.stop() == 0
    source.log_files("app")[1].unlink()
    before = tree(copy)
    done = copy_all(source.data_dir, copy)["app"]
    assert done.damages
    assert "was not changed" in done.problem
    assert tree(copy) == before
    assert copy_all(source.data_dir, tmp_path / "second")["app"].damages
    assert logs(tmp_path / "second" / "topics" / "app") == logs(source.topic_dir("app"))


def test_bytes_that_change_on_the_way_are_noticed(
    source: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(source, "app", 60)
    monkeypatch.setattr(topic_backup, "_COMPARED_BYTES", 16)  # further back: the sums tell
    real = disk.write_at

    def write_at(file: Any, buffers: Any, position: int) -> None:
        data = b"".join(buffers)
        real(file, [data.replace(b"xxxx", b"xxyx", 1)], position)

    monkeypatch.setattr(disk, "write_at", write_at)
    with pytest.raises(Exception, match="differs from its source"):
        copy_all(source.data_dir, tmp_path / "copy")
    monkeypatch.undo()
    assert copy_all(source.data_dir, tmp_path / "copy")["app"].next == 60
    assert assert_whole(tmp_path / "copy", tmp_path / "scratch") == {"app": (0, 60)}


# -- killed at each step --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("how", ["before", "within"])
def test_killed_at_each_step_and_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Each time what is there is sound, no older than before, and in the end it is the source.

    Once for a copy from nothing, once for one that goes on: with a roll, an expiry, a topic that is
    new, one made anew, and one whose copy is too old.
    """
    monkeypatch.setattr("os.fdatasync", lambda fd: None)
    monkeypatch.setattr("os.fsync", lambda fd: None)
    with daemon(tmp_path / "data") as source:
        for topic in ("app", "anew", "old"):
            write(source, topic, 20)
        assert source.stop() == 0
        older = tmp_path / "older"
        shutil.copytree(source.data_dir, older)
        shutil.rmtree(source.topic_dir("anew"))
        source.start()
        for topic, messages in (("app", 45), ("anew", 5), ("old", 80), ("new", 3)):
            write(source, topic, messages)
        expired(source, "old")
        expired(source, "app")
        assert source.stop() == 0
    empty, begun = tmp_path / "empty", tmp_path / "begun"
    empty.mkdir()
    copy_all(older, begun)
    for base in (empty, begun):
        steps = run_though_killed(tmp_path, source.data_dir, base, monkeypatch, how)
        assert steps > 50


def run_though_killed(
    tmp_path: Path, source: Path, base: Path, patch: pytest.MonkeyPatch, how: str
) -> int:
    copy, scratch = tmp_path / "copy", tmp_path / "scratch"
    was = assert_sound(base, scratch)
    for step in count(1, 1 if LONG else 10):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(base, copy)
        was_killed = is_killed(lambda: copy_all(source, copy), step, how, patch)
        now = assert_sound(copy, scratch)
        for topic in set(was) & set(now) - {"anew"}:
            assert now[topic] >= was[topic]
        if was_killed:
            copy_all(source, copy)
        assert assert_whole(copy, scratch) == assert_sound(source, scratch)
        for directory in visible(source):
            assert logs(copy / "topics" / directory.name) == logs(directory)
        if not was_killed:
            return step
    raise AssertionError("unreachable")


def test_each_sync_comes_before_the_word_that_relies_on_it(
    source: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint speaks of bytes only when their file was synced behind their last write."""
    write(source, "app", 60)
    unsynced: set[Path] = set()
    real_write, real_sync, real_checkpoint = disk.write_at, disk.sync, Checkpoint.write

    def path_of(file: Any) -> Path:
        return Path(f"/proc/self/fd/{file.fd}").readlink()

    def write_at(file: Any, *arguments: Any) -> None:
        real_write(file, *arguments)
        unsynced.add(path_of(file))

    def sync(file: Any) -> None:
        real_sync(file)
        unsynced.discard(path_of(file))

    def checkpoint(self: Any, *arguments: Any, **options: Any) -> None:
        assert not {path for path in unsynced if path.suffix == ".log"}
        assert options == {"synced": True}
        real_checkpoint(self, *arguments, **options)

    monkeypatch.setattr(disk, "write_at", write_at)
    monkeypatch.setattr(disk, "sync", sync)
    monkeypatch.setattr(Checkpoint, "write", checkpoint)
    copy_all(source.data_dir, tmp_path / "copy")
    assert not unsynced


# -- the command ----------------------------------------------------------------------------------


def test_one_of_each_is_said_as_one(source: Daemon, tmp_path: Path) -> None:
    write(source, "app", 1)
    words = ("--data-dir", str(source.data_dir), "--to", str(tmp_path / "copy"))
    lines = log_cli("", "backup", *words, "--check")[1].decode().splitlines()
    assert re.fullmatch(
        r"app: 1 message from offset 0 in 1 file; new: [0-9]+ bytes in 1 new file", lines[0]
    )
    assert lines[1].startswith("1 topic, 1 message, ")
    assert lines[2].startswith("app: ok, 1 message, ")


def test_backup_and_restore_by_command(source: Daemon, tmp_path: Path) -> None:
    write(source, "app", 60)
    words = ("--data-dir", str(source.data_dir), "--to", str(tmp_path / "copy"))
    code, out, err = log_cli("", "backup", *words, "--check")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith(b"app: 60 messages from offset 0 in ")
    assert out.splitlines()[1].startswith(b"1 topic, 60 messages, ")
    assert out.splitlines()[2].startswith(b"app: ok, 60 messages, ")
    code, out, _ = log_cli(
        "", "restore", "--from", str(tmp_path / "copy"), "--data-dir", str(tmp_path / "new")
    )
    assert code == 0
    assert b"app: ok, 60 messages" in out
    code, _, err = log_cli(
        "", "restore", "--from", str(tmp_path / "copy"), "--data-dir", str(tmp_path / "new")
    )
    assert (code, "already contains topics" in err) == (1, True)
    with daemon(tmp_path / "new") as restored:
        assert_messages(restored, "app", 0, 60)
    assert log_cli("", "backup", *words)[0] == 0, "a restore does not use the copy up"


def test_places_that_make_no_sense(source: Daemon, tmp_path: Path) -> None:
    write(source, "app", 1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").touch()
    for to in (source.data_dir, source.data_dir / "inside", tmp_path, tmp_path / "mine"):
        code, _, err = log_cli("", "backup", "--data-dir", str(source.data_dir), "--to", str(to))
        assert code == 1
        assert err.startswith("log-cli: ")
    assert integrity.topic_directories(source.data_dir, []) == [source.topic_dir("app")]
