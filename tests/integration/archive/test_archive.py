"""The archive job with real daemons: what is due is read, once, and counted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from logd import Client
from logd.archive import daemon_topics
from logd.archive.archive_job import ArchiveCounts, Archiver
from logd.archive.manifest import Manifest
from logd.archive.object_stores import ArchiveStore, open_store
from logd.archive.partition_file import archive_partition
from logd.errors import NotFound
from logd.wire.offset_ranges import OffsetRange
from tests.integration.archive import old_topics
from tests.integration.archive.conftest import Start
from tests.integration.archive.reading import archived, check, files, first_kept
from tests.support.daemon import Daemon, lasting_address, running


def run(store: ArchiveStore, daemon: Daemon, start: Start, *topics: str) -> list[ArchiveCounts]:
    report = Archiver(store, daemon.address, start).run([*topics])
    for counts in report.topics:
        assert counts.messages == sum(counts[2:7]), counts
    return report.topics


def test_everything_once_and_then_only_what_is_new(
    store: ArchiveStore, tmp_path: Path, start: Start
) -> None:
    """Several topics, hours and partitions, every encoding, a directory and an object store."""
    written = {
        "app": old_topics.make(tmp_path / "data", "app", 600, partition_bytes=3000),
        "web": old_topics.make(tmp_path / "data", "web", 50, hours=1),
    }
    with running(tmp_path) as daemon:
        app, web = run(store, daemon, start)
        assert (app.messages, app.written, web.written) == (600, 600, 50)
        check(store, written, all_of_it=True)
        assert len({row.timestamp.hour for row in archived(store) if row.topic == "app"}) > 2

        again = run(store, daemon, start)
        assert [(c.already, c.written) for c in again] == [(600, 0), (50, 0)]
        assert start.times == 1  # nothing to do, so Spark was not even started

        with Client(daemon.address) as client:
            client.push("web", [b"one more", b"and\nanother"])
        written["web"] += [b"one more", b"and\nanother"]
        app, web = run(store, daemon, start)
        assert (app.written, web.already, web.written) == (0, 50, 2)
        check(store, written, all_of_it=True)


def test_many_runs_leave_few_files(tmp_path: Path, start: Start) -> None:
    store, written = open_store(str(tmp_path / "archive")), list[bytes]()
    old = old_topics.make(tmp_path / "data", "app", 60, hours=2, each=10)
    with running(tmp_path) as daemon, Client(daemon.address) as client:
        written += old
        joined = 0
        for n in range(9):
            written += [b"run %d" % n]
            client.push("app", written[-1:])
            report = Archiver(store, daemon.address, start).run([])
            joined += report.joined_files - report.into_files
            check(store, {"app": written}, all_of_it=True)
            assert files(store) <= 3 + 4  # one for each hour that is over, some of the newest
    hours = {row.timestamp.hour for row in archived(store) if row.value.startswith(b"run ")}
    assert joined >= 7 - len(hours)  # where an hour ended meanwhile, one may be left


def test_only_the_topics_that_are_asked_for(tmp_path: Path, daemon: Daemon, start: Start) -> None:
    store = open_store(str(tmp_path / "archive"))
    with Client(daemon.address) as client:
        for topic in ("app", "web-1", "web-2"):
            client.push(topic, [b"hello"])
    run(store, daemon, start, "web-*")
    assert {row.topic for row in archived(store)} == {"web-1", "web-2"}
    with pytest.raises(NotFound, match="no topic nope"):
        run(store, daemon, start, "app", "nope")


def test_no_topics_make_an_empty_archive(tmp_path: Path, daemon: Daemon, start: Start) -> None:
    store = open_store(str(tmp_path / "archive"))
    assert run(store, daemon, start) == []
    assert Manifest(store).existing().files == {}
    assert start.times == 0


def test_a_topic_that_was_made_anew_is_another(tmp_path: Path, start: Start) -> None:
    store = open_store(str(tmp_path / "archive"))
    for life in (b"first", b"second"):
        with running(tmp_path) as daemon, Client(daemon.address) as client:
            client.push("app", [life] * 3)
            assert [counts.written for counts in run(store, daemon, start)] == [3]
        shutil.rmtree(tmp_path / "data" / "topics" / "app")
    rows = archived(store)
    assert sorted((row.value, row.offset) for row in rows) == [
        (life, n) for life in (b"first", b"second") for n in range(3)
    ]
    assert len({row.topic_id for row in rows}) == 2


def test_a_gap_is_counted_and_left_out(tmp_path: Path, start: Start) -> None:
    """What `log-cli repair --accept-loss` leaves in the place of damage."""
    written = old_topics.make(tmp_path / "data", "app", 30, each=10, hours=1)
    old_topics.lose(tmp_path / "data", "app", 10, 20)
    store = open_store(str(tmp_path / "archive"))
    with running(tmp_path) as daemon:
        [counts] = run(store, daemon, start)
        assert (counts.messages, counts.written, counts.lost) == (30, 20, 10)
        [counts] = run(store, daemon, start)
        assert (counts.already, counts.lost) == (30, 0)
    check(store, {"app": written}, all_of_it=False)
    assert [row.offset for row in archived(store)] == [*range(10), *range(20, 30)]


def test_what_is_not_synced_waits(tmp_path: Path, start: Start, monkeypatch: Any) -> None:
    """A power cut may take it, and then others get its offsets."""
    monkeypatch.setattr(daemon_topics, "SYNC_S", 0.0)
    store = open_store(str(tmp_path / "archive"))
    with running(tmp_path, fsync="never", partition_bytes=100) as daemon:
        with Client(daemon.address) as client:
            client.push("app", [b"x" * 60])
            client.push("app", [b"y" * 60])
        [counts] = run(store, daemon, start)
        assert (counts.written, counts.held) == (1, 1)
    with running(tmp_path) as daemon:  # stopped, it was synced
        [counts] = run(store, daemon, start)
        assert (counts.already, counts.written, counts.held) == (1, 1, 0)


def test_a_damaged_topic_is_left_out_and_named(tmp_path: Path, start: Start) -> None:
    """It expires nothing before it is repaired, so there is time."""
    old_topics.make(tmp_path / "data", "app", 50, partition_bytes=300)
    web = old_topics.make(tmp_path / "data", "web", 50)
    (tmp_path / "data" / "topics" / "app" / "meta.json").write_text("damaged")
    store = open_store(str(tmp_path / "archive"))
    with running(tmp_path) as daemon:
        report = Archiver(store, daemon.address, start).run([])
    assert report.damaged == ["app"]
    assert [(c.topic, c.written, c.held) for c in report.topics] == [("app", 0, 50), ("web", 50, 0)]
    check(store, {"web": web}, all_of_it=True)


class Meanwhile:
    """A start of Spark in which something else happens first."""

    def __init__(self, start: Start, happens: Callable[[], object]) -> None:
        self._start, self._happens = start, happens

    def __call__(self) -> AbstractContextManager[Any]:
        self._happens()
        return self._start()


def test_a_hook_that_is_quicker_wins(tmp_path: Path, start: Start) -> None:
    """It archives two partitions between the plan of the job and its commit."""
    written = old_topics.make(tmp_path / "data", "app", 100, partition_bytes=300, hours=1)
    store = open_store(str(tmp_path / "archive"))
    with running(tmp_path) as daemon, Client(daemon.address) as client:
        parts = client.partitions("app")
        assert len(parts) > 3

        def hook() -> None:
            for part in parts[:2]:
                path = daemon.topic_dir("app") / f"{part.first:020d}.log"
                archive_partition(store, path, "app", OffsetRange(part.first, part.next))

        done = Archiver(store, daemon.address, Meanwhile(start, hook)).run([]).topics[0]
        assert (done.already, done.written) == (parts[1].next, 100 - parts[1].next)
    check(store, {"app": written}, all_of_it=True)


def test_what_expires_while_it_runs_is_counted(tmp_path: Path, start: Start) -> None:
    old_topics.make(tmp_path / "data", "app", 100, partition_bytes=300, hours=1)
    store = open_store(str(tmp_path / "archive"))
    server = running(tmp_path, host=lasting_address()).start()
    with Client(server.address) as client:
        parts = client.partitions("app")
    address = server.address

    def expire() -> None:
        """The same daemon at the same address, with less patience for old messages."""
        nonlocal server
        server.stop()
        server = running(tmp_path, max_partitions=1, host=address).start()
        assert first_kept(address, "app") == parts[-1].first

    try:
        counts = Archiver(store, address, Meanwhile(start, expire)).run([]).topics[0]
    finally:
        server.__exit__()
    assert counts.gone == parts[-1].first
    assert counts.written == 100 - parts[-1].first
    assert counts.messages == sum(counts[2:7])
