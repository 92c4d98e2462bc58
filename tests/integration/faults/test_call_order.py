"""In which order files are written, synced, renamed and deleted.

ext4 keeps more than it was asked to, so a crash on it does not show each sync that is missing.
Other file systems do not: here the calls themselves are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from logd import Client
from tests.integration.faults.calls import CHANGES, READS, SYNCS, WRITES, Call, read_calls, trace
from tests.integration.faults.traced_daemon import TracedDaemon
from tests.support.daemon import wait_until

Make = Callable[..., TracedDaemon]
_MODES = ("never", "interval", "batches", "always")
_APP = "topics/app"
_ZERO = f"{_APP}/{0:020d}.log"
pytestmark = pytest.mark.usefixtures("strace")


class Calls:
    """Calls in order; `before` is what this file is about."""

    def __init__(self, calls: list[Call]) -> None:
        self.all = [call for call in calls if not call.failed]

    def find(
        self, names: str | tuple[str, ...], path: str, text: str = "", *, after: Call | None = None
    ) -> list[Call]:
        """The calls on this file that start when `after` has ended."""
        names = (names,) if isinstance(names, str) else names
        return [
            call
            for call in self.all
            if call.name in names
            and re.fullmatch(path, call.path)
            and re.search(text, call.text)
            and (after is None or call.started > after.ended)
        ]

    def one(self, names: str | tuple[str, ...], path: str, text: str = "") -> Call:
        found = self.find(names, path, text)
        assert len(found) == 1, (names, path, text, list(map(str, found)))
        return found[0]

    def answers(self) -> list[Call]:
        return self.find(WRITES, "socket", '"OK ')


def in_order(*calls: Call) -> bool:
    """Has each of them ended before the next starts?"""
    return all(a.ended < b.started for a, b in pairwise(calls))


def traced(
    tmp_path: Path, daemon: TracedDaemon, do: Callable[[Client], object] | None = None
) -> Calls:
    """A run from its first call to its clean stop."""
    output = tmp_path / "calls"
    daemon.start(*trace(*CHANGES, *READS), output=output)
    if do is not None:
        with daemon.client() as client:
            do(client)
    assert daemon.stop() == 0
    return Calls(read_calls(output, daemon.data_dir))


def push(client: Client, count: int = 1) -> None:
    for _ in range(count):
        client.push("app", [b"x" * 100])


# -- a topic is made ----------------------------------------------------------------------------


def test_a_new_topic_is_on_disk_before_its_first_answer(tmp_path: Path, make_daemon: Make) -> None:
    calls = traced(tmp_path, make_daemon(tmp_path / "data", fsync="always"), push)
    hidden = "topics/.new-app"
    rename = calls.one("rename", hidden)
    for name in ("meta.json", "checkpoint"):
        write = calls.one(WRITES, f"{hidden}/{name}")
        assert in_order(write, calls.one("fdatasync", f"{hidden}/{name}"), rename)
    directory = calls.one("fsync", hidden)
    for made in calls.find("openat", f"{hidden}/.*", "O_CREAT"):
        assert in_order(made, directory, rename)
    parent = calls.find("fsync", "topics", after=rename)[0]
    assert in_order(rename, parent, calls.answers()[0])


def test_the_directories_above_are_on_disk_before_the_first_answer(
    tmp_path: Path, make_daemon: Make
) -> None:
    """Each new directory is an entry in the one above it."""
    daemon = make_daemon(tmp_path / "a" / "data", fsync="always")
    traced(tmp_path, daemon, push)
    calls = Calls(read_calls(tmp_path / "calls", tmp_path))
    answer = calls.answers()[0]
    for made, above in (("a", "."), ("a/data", "a"), ("a/data/topics", "a/data")):
        mkdir = calls.one("mkdir", made)
        synced = calls.find("fsync", re.escape(above), after=mkdir)
        assert any(in_order(sync, answer) for sync in synced), f"{above}, which names {made}"


def test_with_always_each_answer_comes_after_a_sync_of_what_it_answers(
    tmp_path: Path, make_daemon: Make
) -> None:
    calls = traced(tmp_path, make_daemon(tmp_path / "data", fsync="always"), lambda c: push(c, 5))
    assert len(calls.answers()) == 5
    for offset, answer in enumerate(calls.answers()):
        write = calls.one(WRITES, _ZERO, f'"BATCH {offset} ')
        assert any(in_order(write, s, answer) for s in calls.find("fdatasync", _ZERO)), offset


# -- a partition is rolled ----------------------------------------------------------------------


@pytest.mark.parametrize("fsync", _MODES)
def test_a_roll_finishes_the_old_file_before_the_new_ones_first_byte(
    tmp_path: Path, make_daemon: Make, fsync: str
) -> None:
    daemon = make_daemon(tmp_path / "data", fsync=fsync, partition_bytes=100)
    calls = traced(tmp_path, daemon, lambda client: push(client, 4))
    for old in range(3):
        old_log, new_log = f"{_APP}/{old:020d}.log", f"{_APP}/{old + 1:020d}.log"
        last = calls.find(WRITES, old_log)[-1]
        made = calls.one("openat", new_log, "O_CREAT")
        first = calls.find(WRITES, new_log)[0]
        sync = calls.find("fdatasync", old_log, after=last)[0]
        directory = calls.find("fsync", _APP, after=made)[0]
        assert in_order(last, sync, first)
        assert in_order(made, directory, first)
        ids = f"{_APP}/.{old:020d}.ids.new"
        rename = calls.one("rename", ids)
        assert in_order(calls.one(WRITES, ids), calls.one("fdatasync", ids), rename, first)
        assert in_order(rename, calls.find("fsync", _APP, after=rename)[0], first)


# -- a run begins and ends ----------------------------------------------------------------------


@pytest.mark.parametrize("fsync", _MODES)
def test_the_clean_flag_is_cleared_on_disk_before_a_runs_first_write(
    tmp_path: Path, make_daemon: Make, fsync: str
) -> None:
    daemon = make_daemon(tmp_path / "data", fsync=fsync)
    with daemon.start().client() as client:
        push(client)
    assert daemon.stop() == 0
    calls = traced(tmp_path, daemon, push)
    checkpoint = f"{_APP}/checkpoint"
    cleared = calls.find(WRITES, checkpoint)[0]
    assert "clean=0" in cleared.text
    synced = calls.find("fdatasync", checkpoint, after=cleared)[0]
    assert in_order(cleared, synced, calls.find(WRITES, r".*\.log")[0])


@pytest.mark.parametrize("fsync", _MODES)
def test_a_stop_is_called_clean_only_when_all_is_on_disk(
    tmp_path: Path, make_daemon: Make, fsync: str
) -> None:
    calls = traced(tmp_path, make_daemon(tmp_path / "data", fsync=fsync), lambda c: push(c, 3))
    last = calls.find(WRITES, _ZERO)[-1]
    clean = calls.one(WRITES, f"{_APP}/checkpoint", "clean=1")
    assert in_order(last, calls.find("fdatasync", _ZERO, after=last)[0], clean)
    assert in_order(clean, calls.find("fdatasync", f"{_APP}/checkpoint", after=clean)[0])
    rename = calls.one("rename", r".*\.ids\.new")
    assert in_order(rename, calls.find("fsync", _APP, after=rename)[0], clean)


# -- a partition is deleted ---------------------------------------------------------------------


def test_retention_notes_what_goes_before_it_goes(tmp_path: Path, make_daemon: Make) -> None:
    daemon = make_daemon(tmp_path / "data", partition_bytes=100, max_partitions=2)

    def fill_and_wait(client: Client) -> None:
        push(client, 4)
        wait_until(lambda: client.topics()[0].first == 2)

    calls = traced(tmp_path, daemon, fill_and_wait)
    deleted = calls.find("unlink", rf"{_APP}/\d+\.log")
    assert [call.path for call in deleted] == [f"{_APP}/{n:020d}.log" for n in (0, 1)]
    for number, unlink in enumerate(deleted):
        noted = [
            call
            for call in calls.find(WRITES, f"{_APP}/checkpoint")
            if _first(call) > number and in_order(call, unlink)
        ]
        assert noted, unlink.path
        synced = calls.find("fdatasync", f"{_APP}/checkpoint", after=noted[0])
        assert any(in_order(noted[0], sync, unlink) for sync in synced), unlink.path
        assert calls.find("fsync", _APP, after=unlink), unlink.path


def _first(checkpoint: Call) -> int:
    match = re.search(r"first=(\d+)", checkpoint.text)
    return int(match[1]) if match else -1


# -- a recovery ---------------------------------------------------------------------------------


def crashed(tmp_path: Path, make_daemon: Make, torn: bytes) -> TracedDaemon:
    daemon = make_daemon(tmp_path / "data")
    with daemon.start().client() as client:
        push(client, 3)
    daemon.kill()
    with daemon.log_files("app")[-1].open("ab") as log:
        log.write(torn)
    return daemon


def test_a_recovery_reads_what_is_on_disk_and_not_what_is_cached(
    tmp_path: Path, make_daemon: Make
) -> None:
    calls = traced(tmp_path, crashed(tmp_path, make_daemon, b""))
    sync = calls.find("fdatasync", _ZERO)[0]
    drop = calls.one("fadvise64", _ZERO, "POSIX_FADV_DONTNEED")
    assert in_order(sync, drop, calls.find(READS[:-1], _ZERO)[0])
    checkpoint, stop = calls.find(WRITES, f"{_APP}/checkpoint")
    assert in_order(calls.find(READS, _ZERO)[-1], checkpoint)
    assert in_order(
        checkpoint, calls.find("fdatasync", f"{_APP}/checkpoint", after=checkpoint)[0], stop
    )


def test_the_names_that_a_start_finds_are_on_disk_before_its_first_answer(
    tmp_path: Path, make_daemon: Make
) -> None:
    """A kill may have come between the rename that made a topic and its sync."""
    calls = traced(tmp_path, crashed(tmp_path, make_daemon, b""), push)
    assert in_order(calls.find("fsync", "topics")[0], calls.answers()[0])


def test_a_torn_tail_is_safe_elsewhere_before_it_is_cut(tmp_path: Path, make_daemon: Make) -> None:
    calls = traced(tmp_path, crashed(tmp_path, make_daemon, b"BATCH 3 1 10"))
    quarantine = f"{_APP}/quarantine"
    cut = calls.one("ftruncate", _ZERO)
    mkdir = calls.one("mkdir", quarantine)
    assert in_order(mkdir, calls.find("fsync", _APP, after=mkdir)[0], cut)
    copy = calls.one(WRITES, f"{quarantine}/.*")
    copied = calls.one("fdatasync", f"{quarantine}/.*")
    made = calls.one("openat", f"{quarantine}/.*", "O_CREAT")
    directory = calls.find("fsync", quarantine, after=made)[0]
    assert in_order(copy, copied, cut)
    assert in_order(made, directory, cut)
    after = calls.find("fdatasync", _ZERO, after=cut)[0]
    assert in_order(cut, after, calls.find(WRITES, f"{_APP}/checkpoint")[0])


# -- everywhere ---------------------------------------------------------------------------------


@pytest.mark.parametrize("torn", [b"", b"BATCH 3 1 10"], ids=["sound", "torn"])
def test_what_is_renamed_is_synced_before_and_its_directory_after(
    tmp_path: Path, make_daemon: Make, torn: bytes
) -> None:
    daemon = crashed(tmp_path, make_daemon, torn)
    daemon.settings["partition_bytes"] = 100
    calls = traced(tmp_path, daemon, lambda client: push(client, 4))
    renames = calls.find("rename", f"{_APP}/.*")
    assert len(renames) >= 4
    for rename in renames:
        content = calls.find((*WRITES, "fdatasync"), re.escape(rename.path))
        content = [call for call in content if call.started < rename.started]
        assert content[-1].name == "fdatasync", rename.path
        assert in_order(content[-1], rename)
        assert calls.find("fsync", _APP, after=rename), rename.path


def test_nothing_but_these_calls_changes_a_file(tmp_path: Path, make_daemon: Make) -> None:
    """The other tests hit what is listed here; a new way to write wants to be listed, too."""
    daemon = make_daemon(tmp_path / "data", partition_bytes=100, max_partitions=2)
    calls = traced(tmp_path, daemon, lambda client: push(client, 4))
    used = {call.name for call in calls.all if call.path != "socket"} - set(READS)
    known = {"openat", "mkdir", "rename", "unlink", "pwritev", "pwritev2", "pwrite64", *SYNCS}
    assert used <= known
