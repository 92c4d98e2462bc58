"""kill -9 in the middle of real runs of log-cli, and run again: each message exactly once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from logd import Client
from logd.archive.archive_job import Archiver
from logd.archive.import_job import import_
from logd.archive.object_stores import open_store
from logd.archive.selection import TimeWindow
from tests.integration.archive import old_topics
from tests.integration.archive.commands import HANG_S, killed_at, killed_when
from tests.integration.archive.conftest import Start
from tests.integration.archive.reading import archived, check, contents, files
from tests.support.daemon import running
from tests.support.long_run import LONG

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0 if LONG else 2 * HANG_S)]  # Spark starts


def total(address: str, topic: str) -> int:
    """How many messages a topic has had so far; 0 where there is none."""
    with Client(address) as client:
        return sum(info.next for info in client.topics(topic))


def test_an_archive_that_is_killed_again_and_again(tmp_path: Path, start: Start) -> None:
    """In the middle of writing files, then at each step of publishing them, and of joining them."""
    written = {
        "app": old_topics.make(tmp_path / "data", "app", 400, partition_bytes=1000),
        "web": old_topics.make(tmp_path / "data", "web", 100),
    }
    url = tmp_path / "archive"
    store = open_store(str(url))
    with running(tmp_path) as daemon, Client(daemon.address) as client:

        def more(message: bytes) -> None:
            client.push("app", [message])
            written["app"].append(message)

        publishes = ("before", "_commits", "1")
        killed_when(
            lambda: any(url.rglob("*.parquet")), "archive", url, host=daemon, at_latest=publishes
        )
        assert archived(store) == []
        if LONG:
            killed_at("before", "_commits", 1, "archive", url, host=daemon)
            assert archived(store) == []
            killed_at("after", "_commits", 1, "archive", url, host=daemon)
            check(store, written, all_of_it=True)

        for n in range(4):
            more(b"a file of its own, %d" % n)
            Archiver(store, daemon.address, start).run([], compacts=False)
        before = files(store)
        more(b"archived before its run is killed while it joins files")
        killed_at("before", "_commits", 2, "archive", url, host=daemon)
        check(store, written, all_of_it=True)
        assert files(store) == before + 1
        if LONG:
            killed_at("after", "_commits", 1, "archive", url, host=daemon)
            check(store, written, all_of_it=True)
            assert files(store) < before

        more(b"the last one")
        app, web = Archiver(store, daemon.address, start).run([]).topics
        assert (app.already, app.written, web.already) == (405, 1, 100)
        check(store, written, all_of_it=True)
        assert files(store) < before


def test_an_import_that_is_killed_again_and_again(tmp_path: Path, start: Start) -> None:
    """While messages arrive; also when the archive grows, and its files are joined, in between."""
    written = [b"%d of many messages" % n for n in range(300_000 if LONG else 60_000)]
    url = tmp_path / "archive"
    store = open_store(str(url))
    with running(tmp_path) as daemon, Client(daemon.address) as client:

        def arrived(at_least: int) -> Callable[[], bool]:
            return lambda: total(daemon.address, "again") >= at_least

        for n in range(0, len(written), 10_000):
            client.push("app", written[n : n + 10_000])
        Archiver(store, daemon.address, start).run(["app"])
        words = ("import", url, "app", "--into", "again")
        if LONG:
            killed_at("after", "_imports", 1, *words, host=daemon)  # the plan is there, no more
        killed_when(arrived(1), *words, host=daemon)
        client.push("app", [b"meanwhile"])
        written += [b"meanwhile"]
        Archiver(store, daemon.address, start).run(["app"])
        if LONG:
            killed_when(arrived(total(daemon.address, "again") + 1), *words, host=daemon)
        [counts] = import_(store, daemon.address, ["app"], "again", TimeWindow(), start)
        assert counts.messages == counts.already + counts.written == len(written)
        assert contents(daemon.address, "again") == written
