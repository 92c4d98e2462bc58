"""One partition file into the archive, and the hook that does it: with real daemons and kills."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from logd import Client
from logd.archive.manifest import Manifest
from logd.archive.object_stores import ArchiveStore, open_store
from logd.archive.partition_file import archive_partition
from logd.batch import encode_header
from logd.errors import ArchiveError, DamagedBatch
from logd.storage import disk
from logd.wire.offset_ranges import OffsetRange
from tests.integration.archive import old_topics
from tests.integration.archive.object_store import ObjectServer
from tests.integration.archive.reading import archived, check, first_kept
from tests.support.daemon import HANG_S, Daemon, running
from tests.support.long_run import LONG
from tests.support.topic_loop import Loop, batch_of, close, create, new_topic, push

LOG_CLI = Path(sys.executable).with_name("log-cli")


def partitions(data_dir: Path, topic: str, next_: int) -> list[tuple[Path, OffsetRange]]:
    paths = sorted((data_dir / "topics" / topic).glob("*.log"))
    edges = [int(path.stem) for path in paths] + [next_]
    return [(path, OffsetRange(*edges[n : n + 2])) for n, path in enumerate(paths)]


def test_every_byte_of_every_message_is_kept_by_hour(store: ArchiveStore, tmp_path: Path) -> None:
    written = old_topics.make(tmp_path, "app", 500, partition_bytes=2000)
    parts = partitions(tmp_path, "app", 500)
    assert len(parts) > 3
    for path, range_ in parts:
        done = archive_partition(store, path, "app", range_)
        assert done.written == done.read == range_.next - range_.first
    check(store, {"app": written}, all_of_it=True)
    assert len({row.timestamp.hour for row in archived(store)}) > 2
    meta = (parts[0][0].parent / "meta.json").read_text()
    assert all(row.topic_id in meta for row in archived(store))


def test_what_is_there_is_not_written_again(store: ArchiveStore, tmp_path: Path) -> None:
    written = old_topics.make(tmp_path, "app", 100)
    [(path, range_)] = partitions(tmp_path, "app", 100)
    assert archive_partition(store, path, "app", range_).written == 100
    again = archive_partition(store, path, "app", range_)
    assert (again.already, again.written, again.files) == (100, 0, 0)
    check(store, {"app": written}, all_of_it=True)


def test_of_a_partition_that_is_partly_there_the_rest(tmp_path: Path) -> None:
    """As where the archive job has seen it while it was still growing."""
    loop = Loop()
    topic = create(tmp_path / "app", loop)
    push(topic, loop, batch_of([b"one", b"two", b"three"]))
    close(topic, loop)
    store, path = open_store(str(tmp_path / "archive")), tmp_path / "app" / f"{0:020d}.log"
    assert archive_partition(store, path, "app", OffsetRange(0, 3)).written == 3
    topic = new_topic(tmp_path / "app", loop)
    topic.open()
    push(topic, loop, batch_of([b"four"]))
    close(topic, loop)
    done = archive_partition(store, path, "app", OffsetRange(0, 4))
    assert (done.read, done.already, done.written) == (4, 3, 1)
    check(store, {"app": [b"one", b"two", b"three", b"four"]}, all_of_it=True)


def test_an_accepted_loss_is_noted_and_the_rest_archived(tmp_path: Path) -> None:
    old_topics.make(tmp_path, "app", 10, each=5)
    [(path, _)] = partitions(tmp_path, "app", 10)
    gap = encode_header(10, 4, 0, old_topics.hour_ms(9), "gap", "2d06800538d394c2")
    path.write_bytes(path.read_bytes() + gap)
    store = open_store(str(tmp_path / "archive"))
    done = archive_partition(store, path, "app", OffsetRange(0, 14))
    assert (done.read, done.written, done.lost) == (14, 10, 4)
    assert Manifest(store).state().covered(archived(store)[0].topic_id) == [OffsetRange(0, 14)]
    assert archive_partition(store, path, "app", OffsetRange(0, 14)).already == 14


@pytest.mark.parametrize("damage", ["bit", "short", "other"])
def test_a_file_that_is_not_sound_is_not_taken_for_archived(tmp_path: Path, damage: str) -> None:
    old_topics.make(tmp_path, "app", 100)
    [(path, range_)] = partitions(tmp_path, "app", 100)
    data = bytearray(path.read_bytes())
    if damage == "bit":
        data[-3] ^= 1
    elif damage == "short":
        del data[data.rindex(b"BATCH") :]
    else:
        range_ = OffsetRange(5, 105)
    path.write_bytes(data)
    store = open_store(str(tmp_path / "archive"))
    with pytest.raises(DamagedBatch):
        archive_partition(store, path, "app", range_)
    assert archived(store) == []


@pytest.mark.parametrize("harm", ["removed", "cut"])
def test_a_partition_goes_only_if_its_files_are_really_there(
    store: ArchiveStore, tmp_path: Path, harm: str
) -> None:
    """The commit says so, but somebody has been at the files."""
    old_topics.make(tmp_path, "app", 100)
    [(path, range_)] = partitions(tmp_path, "app", 100)
    archive_partition(store, path, "app", range_)
    archived = next(iter(Manifest(store).state().files))
    content = store.get(archived)
    store.remove(archived)
    if harm == "cut":
        store.create(archived, content[:-1])
    with pytest.raises(ArchiveError, match="differs from its commit"):
        archive_partition(store, path, "app", range_)


class Unsynced:
    """What a power cut would take: contents that were not synced, and names in directories."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names = set[tuple[Path, str]]()
        self.synced = set[int]()  # inodes
        self.at_links: list[set[tuple[Path, str]]] = []
        for module, name in ((disk, "rename"), (disk, "make_directory"), (disk, "sync"),
                             (disk, "sync_directory"), (os, "link")):  # fmt: skip
            before = getattr(module, name)
            monkeypatch.setattr(module, name, partial(self._call, getattr(self, name), before))

    def _call(self, note: Callable[..., None], before: Callable[..., Any], *words: Any) -> Any:
        note(*words)
        return before(*words)

    def rename(self, old: Path, new: Path) -> None:
        assert old.stat().st_ino in self.synced, new
        self.names.add((new.parent, new.name))

    def make_directory(self, path: Path) -> None:
        self.names.add((path.parent, path.name))

    def sync(self, file: disk.File) -> None:
        self.synced.add(os.fstat(file.fd).st_ino)

    def sync_directory(self, path: Path) -> None:
        self.names = {one for one in self.names if one[0] != path}

    def link(self, old: Path, new: Path) -> None:
        assert old.stat().st_ino in self.synced, new
        self.at_links.append({one for one in self.names if one[1] != "_commits"})
        self.names.add((new.parent, new.name))


def test_what_a_commit_names_is_on_disk_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the commit itself before the partition may go."""
    old_topics.make(tmp_path, "app", 100)
    [(path, range_)] = partitions(tmp_path, "app", 100)
    unsynced = Unsynced(monkeypatch)
    archive_partition(open_store(str(tmp_path / "archive")), path, "app", range_)
    assert unsynced.at_links == [set()]
    assert unsynced.names == set()


def test_directories_of_a_run_that_was_killed_before_it_synced_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_topics.make(tmp_path, "app", 100)
    [(path, range_)] = partitions(tmp_path, "app", 100)
    store = open_store(str(tmp_path / "archive"))
    archive_partition(store, path, "app", range_)
    for left in (tmp_path / "archive").rglob("*.*"):
        left.unlink()
    unsynced = Unsynced(monkeypatch)
    unsynced.names |= {(left.parent, left.name) for left in (tmp_path / "archive").rglob("*")}
    archive_partition(store, path, "app", range_)
    assert unsynced.at_links == [set()]
    assert unsynced.names == set()


# -- as a hook ----------------------------------------------------------------------------------


def hooked(tmp_path: Path, *words: object) -> Daemon:
    """A daemon that keeps one partition, and archives all others first."""
    hook = ", ".join(f"'{word}'" for word in (LOG_CLI, "archive-partition", *words))
    settings = tmp_path / "logd.toml"
    settings.write_text(f"partition-bytes = 2000\nmax-partitions = 1\ndelete-hook = [{hook}]\n")
    return running(tmp_path, config=settings)


def push_until(daemon: Daemon, topic: str, messages: int) -> list[bytes]:
    written = [b"%d of %s" % (n, topic.encode()) for n in range(messages)]
    with Client(daemon.address) as client:
        for n in range(0, messages, 10):
            client.push(topic, written[n : n + 10])
    return written


def test_a_daemon_deletes_what_the_hook_has_archived(tmp_path: Path) -> None:
    """In the daemon's small environment, and of three topics side by side."""
    url = tmp_path / "archive"
    with hooked(tmp_path, url) as daemon:
        written = {topic: push_until(daemon, topic, 300) for topic in ("app", "web", "db")}
        kept = {topic: first_kept(daemon.address, topic) for topic in written}
        daemon.wait_said("archived app 0..")
        assert all(kept.values())
    store = open_store(str(url))
    check(store, written, all_of_it=False)
    for topic, next_ in kept.items():
        assert [r.offset for r in archived(store) if r.topic == topic] == list(range(next_))


def test_an_object_store_by_a_file_with_its_keys(
    tmp_path: Path, object_server: ObjectServer
) -> None:
    """There is nothing of them in the hook's environment."""
    keys = tmp_path / "keys.toml"
    keys.write_text("".join(f'{k} = "{v}"\n' for k, v in object_server.options.items()))
    url = object_server.new_bucket()
    with hooked(tmp_path, url, "--store-options", keys) as daemon:
        written = push_until(daemon, "app", 200)
        next_ = first_kept(daemon.address, "app")
    store = open_store(url, object_server.options)
    check(store, {"app": written}, all_of_it=False)
    assert len(archived(store)) == next_ > 0


def test_without_room_for_the_archive_nothing_is_deleted(tmp_path: Path) -> None:
    in_the_way = tmp_path / "archive"
    in_the_way.write_text("no directory")
    with hooked(tmp_path, in_the_way) as daemon:
        push_until(daemon, "app", 300)
        daemon.wait_said("exit 1; the partition is kept")
        assert "archive exists and is not a directory" in daemon.log
        assert first_kept(daemon.address, "app", 99) == 0


# -- killed -------------------------------------------------------------------------------------

CALLS = ("mkdir", "fdatasync", "rename", "fsync", "link", "unlink")  # that change an archive


def run_hook(archive: Path, path: Path, range_: OffsetRange, *before: str) -> int:
    done = subprocess.run(
        [*before, str(LOG_CLI), "archive-partition", str(archive), str(path)],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONDONTWRITEBYTECODE": "1",  # else Python itself renames files
            "LOGD_TOPIC": "app",
            "LOGD_FIRST": str(range_.first),
            "LOGD_NEXT": str(range_.next),
        },
        capture_output=True,
        timeout=4 * HANG_S,  # strace stops it at each call
    )
    return done.returncode


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_killed_before_each_call_that_changes_the_archive(tmp_path: Path, call: str) -> None:
    """And run again: each message once, whatever was left. The short run takes every second."""
    if not shutil.which("strace"):
        pytest.skip("no strace; `make packages` installs it")
    written = old_topics.make(tmp_path, "app", 100, hours=1)
    [(path, range_)] = partitions(tmp_path, "app", 100)
    for nth in range(1, 100, 1 if LONG else 2):
        archive = tmp_path / f"archive-{nth}"
        inject = f"inject={call}:signal=SIGKILL:when={nth}"
        tracer = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}"]
        code = run_hook(archive, path, range_, *tracer, "-e", inject)
        store = open_store(str(archive))
        check(store, {"app": written}, all_of_it=code == 0)
        if code == 0:
            break
        assert archive_partition(store, path, "app", range_).read == 100
        check(store, {"app": written}, all_of_it=True)
    assert nth > 1
