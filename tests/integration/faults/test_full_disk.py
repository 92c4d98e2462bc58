"""No room: pushes are refused, files end on whole batches, reads go on, room brings writes back."""

from __future__ import annotations

import contextlib
import random
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from logd import Client
from logd.errors import Faulted, IoError, NoSpace
from tests.integration.faults.calls import CHANGES, SYNCS, Target, read_calls, targets, trace
from tests.integration.faults.images import Ext4, Mounted, Tmpfs
from tests.integration.faults.ledger import Ledger
from tests.integration.faults.reading import read_all
from tests.integration.faults.script import SETTINGS, Script, run_and_stop, side_by_side
from tests.integration.faults.traced_daemon import TracedDaemon
from tests.support.daemon import batches
from tests.support.long_run import LONG

Make = Callable[..., TracedDaemon]
DISK_THREADS = 8  # of the daemon
_DISK_KIB = 8 << 10
_RESERVED_BYTES = 6 << 20  # thousands of pushes of each writer
_NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@pytest.fixture(params=["tmpfs", "loop_mount"])
def disk(
    request: pytest.FixtureRequest, why_not: Callable[[str], str], tmp_path: Path
) -> Iterator[Mounted]:
    """A small disk of either kind."""
    if reason := why_not(request.param):
        pytest.skip(reason)
    place = tmp_path / "disk"
    is_tmpfs = request.param == "tmpfs"
    with Tmpfs(place, _DISK_KIB) if is_tmpfs else Ext4(place, size_kib=_DISK_KIB) as mounted:
        yield mounted


@contextmanager
def file_limit(daemon: TracedDaemon, size: int) -> Iterator[None]:
    """No file may grow past `size`; a write that would is cut short there."""
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    yield
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, _NO_LIMIT)


# -- under load ---------------------------------------------------------------------------------


@pytest.mark.parametrize("partition_bytes", [20_000, 1 << 20])
@pytest.mark.parametrize("fsync", ["interval", "always"])
def test_a_disk_gets_full_under_load(
    disk: Mounted, make_daemon: Make, survived: Counter[str], fsync: str, partition_bytes: int
) -> None:
    daemon = make_daemon(
        disk.place / "data",
        fsync=fsync,
        fsync_interval="10ms",
        partition_bytes=partition_bytes,
    ).start()
    ledger = Ledger(random.Random(7))
    disk.reserve(_RESERVED_BYTES)
    with ledger.load(daemon):
        ledger.wait_stored(2)
        disk.fill()
        ledger.wait_refusals(50)
        _check_reads(daemon)
        disk.make_room()
        ledger.wait_stored(50)
    _check_after_refusals(daemon, ledger, {"no-space"})
    survived["full disk under load"] += 1


@pytest.mark.parametrize("fsync", ["interval", "always"])
def test_files_get_too_large_under_load(
    tmp_path: Path, make_daemon: Make, survived: Counter[str], fsync: str
) -> None:
    """Short writes: the kernel takes a part of a batch, and then no more."""
    daemon = make_daemon(tmp_path / "data", fsync=fsync, fsync_interval="10ms").start()
    ledger = Ledger(random.Random(8))
    with ledger.load(daemon):
        ledger.wait_stored(10)
        for _ in range(5):
            with file_limit(daemon, max(map(_size, daemon.log_files("t0"))) + 3000):
                ledger.wait_refusals(20)
                _check_reads(daemon)
            ledger.wait_stored(50)
            survived["file size limit under load"] += 1
    _check_after_refusals(daemon, ledger, {"no-space"})


def _size(path: Path) -> int:
    return path.stat().st_size


def _check_reads(daemon: TracedDaemon) -> None:
    with daemon.client() as client:
        assert read_all(client, "t0").messages
        assert read_all(client, "t1").messages


def _check_after_refusals(daemon: TracedDaemon, ledger: Ledger, codes: set[str]) -> None:
    """As far as told, nothing else was refused; then after a kill, and after a clean stop."""
    refused = {push.refused for writer in ledger.writers.values() for push in writer.sent}
    assert refused <= codes | {""}
    ledger.verify(daemon)
    for topic in ("t0", "t1"):
        for path in daemon.log_files(topic):
            batches(path.read_bytes())  # whole ones, back to back
    daemon.kill()
    daemon.start()
    ledger.verify(daemon)
    assert daemon.stop() == 0
    daemon.start()
    assert not daemon.has_recovered
    ledger.verify(daemon)


# -- one thing at a time ------------------------------------------------------------------------


def test_a_refused_batch_leaves_nothing_behind(tmp_path: Path, make_daemon: Make) -> None:
    """By the time of the answer the file ends on a whole batch again."""
    daemon = make_daemon(tmp_path / "data").start()
    with daemon.client() as client:
        client.push("app", [b"kept"])
        before = daemon.stored("app")
        with file_limit(daemon, len(before) + 100):
            with pytest.raises(NoSpace):
                client.push("app", [b"x" * 1000])
            assert daemon.stored("app") == before
        assert client.push("app", [b"next"]) == (1, 1)


def test_a_stop_after_a_refused_batch_is_clean(tmp_path: Path, make_daemon: Make) -> None:
    daemon = make_daemon(tmp_path / "data").start()
    with daemon.client() as client:
        client.push("app", [b"kept"])
        with file_limit(daemon, len(daemon.stored("app")) + 100), pytest.raises(NoSpace):
            client.push("app", [b"x" * 1000])
    assert daemon.stop() == 0
    daemon.start()
    assert not daemon.has_recovered, daemon.log


def test_a_partition_rolled_by_age_after_a_refused_batch_is_sound(
    tmp_path: Path, make_daemon: Make
) -> None:
    daemon = make_daemon(tmp_path / "data", partition_age="300ms").start()
    with daemon.client() as client:
        client.push("app", [b"kept"])
        with file_limit(daemon, len(daemon.stored("app")) + 100), pytest.raises(NoSpace):
            client.push("app", [b"x" * 1000])
        client.read("app", "next", 1, wait_ms=400)
        client.push("app", [b"in the next partition"])
        assert len(client.partitions("app")) == 2
    daemon.kill()
    with daemon.start().client() as client:
        assert client.stats("app")["damages"] == "0", daemon.log
        assert client.push("app", [b"more"]) == (2, 1)


def test_a_topic_cannot_be_made_without_room(
    disk: Mounted, make_daemon: Make, survived: Counter[str]
) -> None:
    daemon = make_daemon(disk.place / "data").start()
    with daemon.client() as client:
        client.push("old", [b"a"])
        disk.fill()
        for _ in range(3):
            with pytest.raises(NoSpace):
                client.push("new", [b"x"])
        assert [info.topic for info in client.topics()] == ["old"]
        assert read_all(client, "old").messages == [b"a"]
        disk.make_room()
        assert client.push("new", [b"y"]) == (0, 1)
        assert client.push("old", [b"b"]) == (1, 1)
    daemon.kill()
    with daemon.start().client() as client:
        assert read_all(client, "new").messages == [b"y"]
        assert read_all(client, "old").messages == [b"a", b"b"]
    survived["full disk when a topic is made"] += 1


@pytest.mark.usefixtures("strace")
def test_a_topic_whose_making_failed_at_its_end_can_be_made(
    tmp_path: Path, make_daemon: Make
) -> None:
    """No descriptor was left to sync the directory above; the topic has its name already."""
    daemon = make_daemon(tmp_path / "data").start()
    late = Target("openat", "topics", 1).inject(daemon.data_dir, "error=EMFILE")
    with daemon.client() as client:
        with daemon.attached(*late), pytest.raises(IoError):
            client.push("app", [b"a"])
        assert client.push("app", [b"b"]) == (0, 1)
    daemon.kill()
    with daemon.start().client() as client:
        assert read_all(client, "app").messages == [b"b"]


def test_a_roll_without_room(disk: Mounted, make_daemon: Make, survived: Counter[str]) -> None:
    daemon = make_daemon(disk.place / "data", partition_bytes=100).start()
    with daemon.client() as client:
        client.push("app", [b"a" * 100])
        disk.fill()
        for _ in range(3):
            with pytest.raises(NoSpace):
                client.push("app", [b"x" * 100])
        assert read_all(client, "app").messages == [b"a" * 100]
        disk.make_room()
        assert client.push("app", [b"b" * 100]) == (1, 1)
        assert len(client.partitions("app")) == 2
    daemon.kill()
    with daemon.start().client() as client:
        assert read_all(client, "app").messages == [b"a" * 100, b"b" * 100]
    survived["full disk when a partition is rolled"] += 1


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_start_on_a_full_disk(
    disk: Mounted, make_daemon: Make, survived: Counter[str], end: str
) -> None:
    """What is there can be read, however the last run ended; room brings writes back."""
    daemon = make_daemon(disk.place / "data").start()
    with daemon.client() as client:
        client.push("app", [b"a"])
        disk.fill()
        _push_until_full(client)
        stored = read_all(client, "app").messages
    if end == "stop":
        assert daemon.stop() == 0
    else:
        daemon.kill()
    with daemon.start().client() as client:
        assert read_all(client, "app").messages == stored
        with pytest.raises(NoSpace):
            client.push("app", [b"x" * 10_000])
        disk.make_room()
        assert client.push("app", [b"b"]) == (len(stored), 1)
    survived[f"start on a full disk, after a {end}"] += 1


def _push_until_full(client: Client) -> None:
    """Also the room that is left in the last blocks of the files."""
    for size in (1000, 100, 1):
        with contextlib.suppress(NoSpace):
            while True:
                client.push("app", [b"x" * size])


def test_without_room_for_a_torn_tail_only_its_topic_is_faulted(
    disk: Mounted, make_daemon: Make, survived: Counter[str]
) -> None:
    daemon = make_daemon(disk.place / "data").start()
    with daemon.client() as client:
        client.push("good", [b"a"])
        client.push("torn", [b"b"])
    daemon.kill()
    log = daemon.log_files("torn")[0]
    sound = log.read_bytes()
    with log.open("ab") as file:
        file.write(b"BATCH 1 1 9999 then nothing" * 200)
    torn = log.read_bytes()
    disk.fill()
    with daemon.start().client() as client:
        assert log.read_bytes() == torn
        assert read_all(client, "torn").messages == [b"b"]
        assert read_all(client, "good").messages == [b"a"]
        with pytest.raises(Faulted):
            client.push("torn", [b"x"])
        disk.make_room()
        assert client.push("good", [b"c"]) == (1, 1)
    assert daemon.stop() == 0
    with daemon.start().client() as client:
        assert log.read_bytes() == sound
        copies = daemon.topic_dir("torn").glob("quarantine/*")
        assert b"".join(path.read_bytes() for path in copies) == torn[len(sound) :]
        assert client.push("torn", [b"d"]) == (1, 1)
    survived["full disk when a torn tail is set aside"] += 1


# -- at each call -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize(
    ("error", "code"), [("ENOSPC", "no-space"), *([("EIO", "io")] if LONG else [])]
)
def test_each_call_that_makes_or_writes_files_fails_once(
    tmp_path: Path, make_daemon: Make, survived: Counter[str], error: str, code: str
) -> None:
    """The push that needed it is refused at most; a moment later everything works."""
    settings = SETTINGS | {"fsync": "always"}
    model = make_daemon(tmp_path / "model", **settings).start()
    with model.attached(*trace(*CHANGES), output=tmp_path / "calls"):
        assert run_and_stop(model, Script()) == 0
    calls = read_calls(tmp_path / "calls", model.data_dir)
    found = [target for target in targets(calls) if target.call not in SYNCS]

    def fail(target: Target) -> None:
        daemon = make_daemon(tmp_path / f"{found.index(target)}", **settings).start()
        script = Script()
        with daemon.attached(*target.inject(daemon.data_dir, f"error={error}")):
            while not script.run(daemon):  # strace counts per thread: the call may fail on each
                assert {*script.refused} == {code}, (target, daemon.log)
                assert len(script.refused) <= DISK_THREADS, (target, script.refused)
            assert daemon.stop() == 0, (target, daemon.log)
        script.complete(daemon)
        survived[f"{error} from each call that makes or writes files"] += 1

    side_by_side(fail, found)
