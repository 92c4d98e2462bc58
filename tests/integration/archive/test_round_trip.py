"""History and import: each message once, wherever it lives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cli.output.history_output import as_arrow_stream
from logd import Client
from logd.archive.archive_job import Archiver
from logd.archive.history_job import History, HistoryQuery
from logd.archive.import_job import ImportCounts, import_
from logd.archive.manifest import Manifest
from logd.archive.object_stores import ArchiveStore, open_store
from logd.archive.selection import TimeWindow
from logd.errors import ArchiveError, BadRequest, NotFound, SparkError
from tests.integration.archive import old_topics
from tests.integration.archive.conftest import Start
from tests.integration.archive.reading import check, contents, first_kept
from tests.support.daemon import Daemon, lasting_address, running

Found = tuple[str, int, bytes]
EVER = TimeWindow()


def ask(
    store: ArchiveStore, address: str | None, start: Start, *patterns: str, **question: Any
) -> list[Found]:
    job = History(store, address, start)
    found: list[Found] = []
    for data in job.ask(HistoryQuery([*patterns], **question), as_arrow_stream):
        with pa.ipc.open_stream(data) as stream:
            rows = stream.read_all().select(["topic", "offset", "value"]).to_pylist()
        found += [(row["topic"], row["offset"], row["value"]) for row in rows]
    assert job.counts.found == len(found)
    return found


def archive(store: ArchiveStore, daemon: Daemon, start: Start) -> None:
    Archiver(store, daemon.address, start).run([])


def bring_back(
    store: ArchiveStore, daemon: Daemon, start: Start, *patterns: str, into: str | None = None,
    window: TimeWindow = EVER,
) -> list[ImportCounts]:  # fmt: skip
    counts = import_(store, daemon.address, [*patterns], into, window, start)
    for one in counts:
        assert one.messages == one.already + one.written
    return counts


def expected(topic: str, messages: list[bytes]) -> list[Found]:
    return [(topic, offset, value) for offset, value in enumerate(messages)]


def test_archive_expire_history_import(store: ArchiveStore, tmp_path: Path, start: Start) -> None:
    """Some are in the archive only, some in both, some in the daemon only: each comes once."""
    data = tmp_path / "data"
    app = old_topics.make(data, "app", 500, partition_bytes=3000)
    web = old_topics.make(data, "web", 80, partition_bytes=300)
    with running(tmp_path) as daemon:
        archive(store, daemon, start)
    with running(tmp_path, max_partitions=2) as daemon, Client(daemon.address) as client:
        new = [b"new %d" % n for n in range(20)]
        client.push("app", new)
        app += new
        assert 0 < first_kept(daemon.address, "app", 2) < 500
        assert first_kept(daemon.address, "web", 2) > 0

        assert ask(store, daemon.address, start, "app") == expected("app", app)
        both = ask(store, daemon.address, start)
        assert sorted(both) == sorted(expected("app", app) + expected("web", web))

        archive(store, daemon, start)
        check(store, {"app": app, "web": web}, all_of_it=True)
        assert ask(store, None, start, "app") == expected("app", app)

        counts = bring_back(store, daemon, start, "app", into="app-again")
        assert [(c.messages, c.written) for c in counts] == [(520, 520)]
        assert contents(daemon.address, "app-again") == app
        counts = bring_back(store, daemon, start, "app", into="app-again")
        assert [(c.already, c.written) for c in counts] == [(520, 0)]
        assert contents(daemon.address, "app-again") == app


@pytest.fixture
def filled(tmp_path: Path, start: Start) -> Any:
    """An archive of two topics over three hours, and a daemon that has more of one of them."""
    data = tmp_path / "data"
    old_topics.make(data, "app", 300)
    old_topics.make(data, "web", 30)
    store = open_store(str(tmp_path / "archive"))
    with running(tmp_path) as daemon:
        archive(store, daemon, start)
        with Client(daemon.address) as client:
            client.push("app", [b"status=500 late", b"status=200 late"])
        yield store, daemon


def test_questions(filled: tuple[ArchiveStore, Daemon], start: Start) -> None:
    store, daemon = filled
    address = daemon.address
    everything = ask(store, address, start)
    assert len(everything) == 332
    times = {"since_ms": old_topics.hour_ms(1), "until_ms": old_topics.hour_ms(2)}
    middle = ask(store, address, start, "app", window=TimeWindow(**times))
    assert middle == [one for one in everything if one in middle and one[0] == "app"]
    assert 90 < len(middle) < 110
    assert middle[0][1] not in (0, 300)

    wanted = [one for one in everything if re.search(rb"LF \d*7$", one[2])]
    assert ask(store, address, start, grep=r"LF \d*7$") == wanted
    assert len(wanted) > 10
    assert ask(store, address, start, grep="\\xff") == [o for o in everything if b"\xff" in o[2]]

    sql = "text like 'status=500%' or (topic = 'web' and offset < 2)"
    assert ask(store, address, start, where=sql) == [
        ("web", 0, b"plain 0"), ("web", 1, b"with\nLF 1"), ("app", 300, b"status=500 late"),
    ]  # fmt: skip
    assert ask(store, address, start, limit=5) == everything[:5]
    assert ask(store, address, start, "w*") == [one for one in everything if one[0] == "web"]
    assert ask(store, None, start, "app", window=TimeWindow(old_topics.hour_ms(99))) == []
    assert ask(store, None, start) == everything[:330]


def test_questions_that_make_no_sense(filled: tuple[ArchiveStore, Daemon], start: Start) -> None:
    store, daemon = filled
    with pytest.raises(NotFound, match="no topic nope"):
        ask(store, daemon.address, start, "nope")
    with pytest.raises(BadRequest, match="is not a regular expression"):
        ask(store, daemon.address, start, grep="(")
    with pytest.raises(SparkError, match="nonsense"):
        ask(store, daemon.address, start, where="nonsense = 1")
    with pytest.raises(ArchiveError, match="there is no archive"):
        ask(open_store("/nowhere"), daemon.address, start)


def test_damaged_and_missing_files_are_named(
    filled: tuple[ArchiveStore, Daemon], start: Start
) -> None:
    store, _ = filled
    path, file = next(iter(Manifest(store).state().files.items()))
    content = store.get(path)
    store.remove(path)
    with pytest.raises(
        ArchiveError, match=rf"topic={file.topic}/hour=.*offsets 0 to .* is missing"
    ):
        ask(store, None, start)
    store.create(path, content[: len(content) // 2])
    with pytest.raises(ArchiveError, match="is damaged"):
        ask(store, None, start)


def test_what_nobody_has_any_more_is_said(tmp_path: Path, start: Start) -> None:
    """It expired before it was archived."""
    old_topics.make(tmp_path / "data", "app", 200, partition_bytes=500)
    store = open_store(str(tmp_path / "archive"))
    with running(tmp_path, max_partitions=2) as daemon:
        with Client(daemon.address) as client:
            client.push("app", [b"new"])
        kept = first_kept(daemon.address, "app", 2)
        archive(store, daemon, start)
        said: list[str] = []
        job = History(store, daemon.address, start, said.append)
        assert list(job.ask(HistoryQuery([]), as_arrow_stream))
        assert job.counts.missing == kept > 0
        assert said == [f"offsets 0 to {kept - 1} of app are missing"]


def test_a_gap_in_the_daemon_is_said_and_stepped_over(tmp_path: Path, start: Start) -> None:
    app = old_topics.make(tmp_path / "data", "app", 30, each=10, hours=1)
    old_topics.lose(tmp_path / "data", "app", 10, 20)
    store, said = open_store(str(tmp_path / "archive")), list[str]()
    with running(tmp_path) as daemon:
        Archiver(store, daemon.address, start).run(["none-*"])
        job = History(store, daemon.address, start, said.append)
        assert list(job.ask(HistoryQuery(["app"]), as_arrow_stream))
        assert (job.counts.live, job.counts.found) == (20, 20)
        assert "topic app has lost offsets 10 to 19" in said[0]
        found = ask(store, daemon.address, start, "app")
        assert found == [one for one in expected("app", app) if not 10 <= one[1] < 20]
        archive(store, daemon, start)
        assert ask(store, daemon.address, start, "app") == found


def test_a_damaged_topic_is_read_from_the_archive_alone(tmp_path: Path, start: Start) -> None:
    app = old_topics.make(tmp_path / "data", "app", 30)
    store = open_store(str(tmp_path / "archive"))
    with running(tmp_path) as daemon:
        archive(store, daemon, start)
        with Client(daemon.address) as client:
            client.push("app", [b"one more"])
    (tmp_path / "data" / "topics" / "app" / "meta.json").write_text("damaged")
    with running(tmp_path) as daemon:
        job = History(store, daemon.address, start)
        list(job.ask(HistoryQuery(["app"]), as_arrow_stream))
    assert job.damaged == ["app"]
    assert job.counts.found == len(app)


def test_what_expires_between_the_plan_and_the_reading(tmp_path: Path, start: Start) -> None:
    """A hook archives it meanwhile: the question is asked anew, and everything is found."""
    app = old_topics.make(tmp_path / "data", "app", 100, partition_bytes=300, hours=1)
    store = open_store(str(tmp_path / "archive"))
    server = running(tmp_path, host=lasting_address()).start()
    Archiver(store, server.address, start).run(["none-*"])
    address = server.address

    def expire() -> None:
        nonlocal server
        archive(store, server, start)
        server.stop()
        server = running(tmp_path, max_partitions=1, host=address).start()
        assert first_kept(address, "app")

    class Late(Start):
        def __call__(self) -> Any:
            if not self.times:
                expire()
            return super().__call__()

    try:
        found = ask(store, address, Late(start._session), "app")
    finally:
        server.__exit__()
    assert found == expected("app", app)


# -- import -------------------------------------------------------------------------------------


def test_import_grows_with_the_archive(tmp_path: Path, start: Start) -> None:
    """Part of it first, then all, then what is new, while files are joined: each message once."""
    store = open_store(str(tmp_path / "archive"))
    app = old_topics.make(tmp_path / "data", "app", 300)
    middle = TimeWindow(old_topics.hour_ms(1), old_topics.hour_ms(2))
    with running(tmp_path) as daemon, Client(daemon.address) as client:
        archive(store, daemon, start)
        [part] = bring_back(store, daemon, start, "app", into="again", window=middle)
        assert 90 < part.written < 110
        begin = app.index(contents(daemon.address, "again")[0])
        assert contents(daemon.address, "again") == app[begin : begin + part.written]
        [whole] = bring_back(store, daemon, start, "app", into="again")
        assert (whole.messages, whole.already) == (300, part.written)
        for n in range(5):
            client.push("app", [b"new %d" % n])
            app += [b"new %d" % n]
            archive(store, daemon, start)
            [one] = bring_back(store, daemon, start, "app", into="again")
            assert (one.already, one.written) == (300 + n, 1)
        assert sorted(contents(daemon.address, "again")) == sorted(app)


def test_import_into_a_topic_that_was_made_anew(tmp_path: Path, start: Start) -> None:
    store = open_store(str(tmp_path / "archive"))
    app = old_topics.make(tmp_path / "data", "app", 50)
    with running(tmp_path) as daemon:
        archive(store, daemon, start)
    for life in ("one", "two"):
        with running(tmp_path / life) as daemon:
            assert bring_back(store, daemon, start)[0].written == 50
            assert contents(daemon.address, "app") == app


def test_import_of_two_topics_that_had_one_name(tmp_path: Path, start: Start) -> None:
    """Both go into it, one behind the other would be more than is promised."""
    store, both = open_store(str(tmp_path / "archive")), list[bytes]()
    for life in ("one", "two"):
        both += old_topics.make(tmp_path / life / "data", "app", 20)
        with running(tmp_path / life) as daemon:
            archive(store, daemon, start)
    with running(tmp_path) as daemon:
        with pytest.raises(ArchiveError, match="--into needs one topic"):
            bring_back(store, daemon, start, into="again")
        assert [one.written for one in bring_back(store, daemon, start)] == [20, 20]
        assert sorted(contents(daemon.address, "app")) == sorted(both)
        assert [one.written for one in bring_back(store, daemon, start)] == [0, 0]


def test_import_finds_nothing(tmp_path: Path, daemon: Daemon, start: Start) -> None:
    store = open_store(str(tmp_path / "archive"))
    with pytest.raises(ArchiveError, match="there is no archive"):
        bring_back(store, daemon, start)
    archive(store, daemon, start)
    with pytest.raises(NotFound, match="no topic app in the archive"):
        bring_back(store, daemon, start, "app")
    with pytest.raises(NotFound, match="has no topic like"):
        bring_back(store, daemon, start, "a*")
