"""kill -9 in front of each single system call: of a start, a short life, a recovery, a deletion."""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from logd import Client
from logd.wire.addresses import ConnectionLost
from tests.integration.faults.calls import CHANGES, Target, read_calls, targets, trace
from tests.integration.faults.reading import read_all
from tests.integration.faults.script import SETTINGS, TOPICS, Script, run_and_stop, side_by_side
from tests.integration.faults.traced_daemon import TracedDaemon
from tests.support.daemon import wait_until
from tests.support.long_run import LONG

Make = Callable[..., TracedDaemon]
_TRIES = 5  # strace counts per thread, and which thread does the nth call may differ
_HALF_A_BATCH = b"BATCH 5 1 101 1700000000000 lines 0123456789abcdef script:5 01234567\r\nhal"
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("strace")]


# The calls of the other modes are those of always, without some syncs.
@pytest.mark.parametrize("fsync", ["always", *(["never", "interval", "batches"] if LONG else [])])
def test_kill_in_a_short_life(
    tmp_path: Path, make_daemon: Make, survived: Counter[str], fsync: str
) -> None:
    """Topics made, pushes, rolls, a clean stop.

    The short run takes every second call; the power cuts take the others.
    """
    settings = SETTINGS | {"fsync": fsync}
    model = make_daemon(tmp_path / "model", **settings).start()
    with model.attached(*trace(*CHANGES), output=tmp_path / "calls"):
        assert run_and_stop(model, Script()) == 0
    found = targets(read_calls(tmp_path / "calls", model.data_dir))
    assert len(found) > 50
    found = found if LONG else found[::2]

    def killed(target: Target, directory: Path) -> bool:
        daemon = make_daemon(directory, **settings).start()
        script = Script()
        with daemon.attached(*target.inject(directory, "signal=SIGKILL")):
            code = run_and_stop(daemon, script)
        script.complete(daemon)
        return code == -signal.SIGKILL

    _sweep(found, killed, tmp_path, survived, f"a short life, fsync={fsync}")


def test_kill_in_the_first_start(tmp_path: Path, make_daemon: Make, survived: Counter[str]) -> None:
    model = make_daemon(tmp_path / "model")
    model.start(*trace(*CHANGES), output=tmp_path / "calls").kill()
    found = targets(read_calls(tmp_path / "calls", model.data_dir))

    def killed(target: Target, directory: Path) -> bool:
        daemon = make_daemon(directory, **SETTINGS)
        daemon.launch_traced(*target.inject(directory, "signal=SIGKILL"))
        code = daemon.wait_ended()
        Script().complete(daemon)
        return code == -signal.SIGKILL

    _sweep(found, killed, tmp_path, survived, "the first start")


@pytest.mark.parametrize(
    "torn",
    [b"", b"\0" * 5000, b"BATCH 5 1 10", _HALF_A_BATCH],
    ids=["no tail", "zeros", "half a header", "half a body"],
)
def test_kill_in_a_recovery(
    tmp_path: Path, make_daemon: Make, survived: Counter[str], torn: bytes
) -> None:
    """Killed anywhere and run again, it ends in the same bytes as if left alone."""
    before = _crashed(tmp_path / "before", make_daemon, torn)
    model = make_daemon(_copy(before, tmp_path / "model"), **SETTINGS)
    model.start(*trace(*CHANGES), output=tmp_path / "calls").kill()
    found = targets(read_calls(tmp_path / "calls", model.data_dir))
    wanted = _files(model.data_dir)
    assert model.stored("app") + torn == make_daemon(before).stored("app")
    assert sum(name.endswith(".log") for name in wanted) >= 3
    assert [data for name, data in wanted.items() if "quarantine" in name] == [torn][: len(torn)]

    def killed(target: Target, directory: Path) -> bool:
        daemon = make_daemon(_copy(before, directory), **SETTINGS)
        daemon.launch_traced(*target.inject(directory, "signal=SIGKILL"))
        code = daemon.wait_ended()
        daemon.start().kill()
        assert _files(directory) == wanted
        return code == -signal.SIGKILL

    _sweep(found, killed, tmp_path, survived, "a recovery")


def test_kill_while_retention_deletes(
    tmp_path: Path, make_daemon: Make, survived: Counter[str]
) -> None:
    """What is readable starts at the beginning of a file, and the rest is deleted after all."""
    before = _crashed(tmp_path / "before", make_daemon, b"")
    found = _calls_of_a_deletion(tmp_path, make_daemon, before)
    assert sum(target.call == "unlink" for target in found) >= 4

    def killed(target: Target, directory: Path) -> bool:
        daemon, was_hit = _killed_in_a_deletion(make_daemon, _copy(before, directory), target)
        daemon.start()
        with daemon.client() as client:
            assert client.topics("app")[0].first in (0, 2, 4)
            _wait_until_deleted(client)
            for topic, messages in _KEPT.items():
                assert read_all(client, topic).messages == messages
        assert daemon.stop() == 0
        assert [path.name for path in daemon.log_files("app")] == [f"{4:020d}.log"]
        return was_hit

    _sweep(found, killed, tmp_path, survived, "a deletion", threads=8)


def test_a_deletion_that_was_killed_leaves_no_files_behind(
    tmp_path: Path, make_daemon: Make
) -> None:
    before = _crashed(tmp_path / "before", make_daemon, b"")
    found = [
        target
        for target in _calls_of_a_deletion(tmp_path, make_daemon, before)
        if target.call == "unlink"
    ]

    def left(target: Target) -> set[str]:
        directory = _copy(before, tmp_path / f"{found.index(target)}")
        daemon, _ = _killed_in_a_deletion(make_daemon, directory, target)
        daemon.start()
        with daemon.client() as client:
            _wait_until_deleted(client)
        daemon.stop()
        gone = ("00000000000000000000.", "00000000000000000002.")
        names = {path.name for path in daemon.topic_dir("app").iterdir()}
        # the newest ids of what is deleted stay: they are all that is known of those producers
        return {name for name in names if name.startswith(gone)} - {f"{2:020d}.ids"}

    leftovers = zip(found, side_by_side(left, found, 8), strict=True)
    assert [(str(target), names) for target, names in leftovers if names] == []


# -- what the tests above share -----------------------------------------------------------------

_KEPT = {"app": TOPICS["app"][4:], "other": TOPICS["other"]}  # of the script, in one partition
_DELETING = "max-partitions = 1\n"


def _sweep(
    found: list[Target],
    killed: Callable[[Target, Path], bool],
    tmp_path: Path,
    survived: Counter[str],
    what: str,
    threads: int = 3,
) -> None:
    """Kill at each of the calls found; `killed` says whether that call came and was hit."""

    def hit(target: Target) -> bool:
        for attempt in range(_TRIES):
            directory = tmp_path / f"{found.index(target)}-{attempt}"
            if killed(target, directory):
                survived[f"kill -9 in front of each call of {what}"] += 1
                shutil.rmtree(directory)
                return True
        return False

    hits = dict(zip(found, side_by_side(hit, found, threads), strict=True))
    missed = [str(target) for target, was_hit in hits.items() if not was_hit]
    assert len(missed) <= len(found) // 20, missed


def _crashed(directory: Path, make_daemon: Make, torn: bytes) -> Path:
    """The files that a daemon leaves when it is killed after the script, with a torn tail."""
    daemon = make_daemon(directory, **SETTINGS).start()
    assert Script().run(daemon)
    daemon.kill()
    with daemon.log_files("app")[-1].open("ab") as log:
        log.write(torn)
    return directory


def _copy(before: Path, directory: Path) -> Path:
    shutil.copytree(before, directory)
    return directory


def _files(directory: Path) -> dict[str, bytes]:
    """All logs, indexes and copies of torn tails, by name."""
    paths = [
        *directory.rglob("*.log"),
        *directory.rglob("*.index"),
        *directory.rglob("quarantine/*"),
    ]
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(paths)}


def _unlimited(make_daemon: Make, directory: Path) -> TracedDaemon:
    """Nothing expires before it is told to: retention is not to come before the tracer."""
    config = directory.with_name(f"{directory.name}.toml")
    config.touch()
    return make_daemon(directory, **SETTINGS, config=config).start()


def _calls_of_a_deletion(tmp_path: Path, make_daemon: Make, before: Path) -> list[Target]:
    model = _unlimited(make_daemon, _copy(before, tmp_path / "model"))
    with model.attached(*trace(*CHANGES), output=tmp_path / "calls"):
        model.reload(_DELETING)
        with model.client() as client:
            _wait_until_deleted(client)
        assert model.stop() == 0
    return targets(read_calls(tmp_path / "calls", model.data_dir))


def _killed_in_a_deletion(
    make_daemon: Make, directory: Path, target: Target
) -> tuple[TracedDaemon, bool]:
    daemon = _unlimited(make_daemon, directory)
    with daemon.attached(*target.inject(directory, "signal=SIGKILL")):
        daemon.reload(_DELETING)
        with contextlib.suppress(ConnectionLost), daemon.client() as client:
            _wait_until_deleted(client)
        return daemon, daemon.stop() == -signal.SIGKILL


def _wait_until_deleted(client: Client) -> None:
    """Until all but the newest partition are out of sight; a clean stop waits for the rest."""
    wait_until(lambda: client.topics("app")[0].first == 4)
