"""Commits of cursors under kills, power cuts and full disks: what was acknowledged is there."""

from __future__ import annotations

import contextlib
import random
import resource
import secrets
import shutil
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from tests.integration.faults.calls import CHANGES, SYNCS, WRITES, Call, read_calls, targets, trace
from tests.integration.faults.images import Ext4, Tmpfs
from tests.integration.faults.script import side_by_side
from tests.integration.faults.traced_daemon import TracedDaemon
from tests.support.daemon import HANG_S, wait_until
from tests.support.long_run import LONG

Make = Callable[..., TracedDaemon]
KILLS = 250 if LONG else 5  # in each mode
_MODES = ("never", "interval", "batches", "always")
_MESSAGES = 1000
_TRIES = 5  # strace counts per thread, and which thread does the nth call may differ
_CURSORS = "topics/app/cursors"
_NEW = "topics/app/.cursors.new"


class Gone(Exception):
    """The daemon ended before it answered."""


class Asker:
    """A line to the daemon: a command, then the first line of its reply."""

    def __init__(self, daemon: TracedDaemon) -> None:
        host, _, port = daemon.address.rpartition(":")
        try:
            self._socket = socket.create_connection((host, int(port)), HANG_S)
        except OSError:
            raise Gone from None
        self._replies = self._socket.makefile("rb")

    def ask(self, command: str) -> str:
        try:
            self._socket.sendall(f"{command}\r\n".encode())
            line = self._replies.readline()
        except OSError:
            line = b""
        if not line.endswith(b"\r\n"):
            raise Gone
        return line.decode().removesuffix("\r\n")

    def rows(self) -> dict[str, int]:
        size = int(self.ask("CURSOR app").removeprefix("TEXT "))
        rows = self._replies.read(size).decode().splitlines()
        return {row.split()[0]: int(row.split()[1]) for row in rows}

    def stats(self) -> str:
        return self._replies.read(int(self.ask("STATS app").removeprefix("TEXT "))).decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._replies.close()
        self._socket.close()


def push_messages(daemon: TracedDaemon) -> None:
    with daemon.client() as client:
        client.push("app", [b"x"] * _MESSAGES)


def places(daemon: TracedDaemon) -> dict[str, int]:
    with Asker(daemon) as asker:
        return asker.rows()


# -- a load of commits, and what must be there of it ----------------------------------------------


class Committer:
    """One client that makes, moves and removes its cursor, and knows what it was told."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self._random = name, random.Random(seed)
        self.known: int | None = None  # as acknowledged; None for no such cursor
        self.may_be: list[int | None] = [None]  # if one was under way at the end, it too
        self.answers = 0

    def run(self, daemon: TracedDaemon, enough: threading.Event) -> None:
        with contextlib.suppress(Gone), Asker(daemon) as asker:
            while not enough.is_set():
                self.commit(asker)

    def commit(self, asker: Asker) -> None:
        offset = self._random.randrange(_MESSAGES)
        goes = self.known is not None and self._random.random() < 0.05
        self.may_be = [self.known, None if goes else offset]
        reply = asker.ask(f"COMMIT app {self.name} {'-' if goes else offset}")
        assert reply == ("OK" if goes else f"OK {offset} {_MESSAGES - offset}")
        self.known = None if goes else offset
        self.may_be = [self.known]
        self.answers += 1

    def verify(self, found: dict[str, int]) -> None:
        assert found.get(self.name) in self.may_be, self.name
        self.known = found.get(self.name)
        self.may_be = [self.known]


@contextmanager
def load(daemon: TracedDaemon, committers: list[Committer]) -> Iterator[None]:
    enough = threading.Event()
    threads = [threading.Thread(target=c.run, args=(daemon, enough)) for c in committers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        enough.set()
        for thread in threads:
            thread.join()


def wait_answers(committers: list[Committer], count: int) -> None:
    wanted = sum(c.answers for c in committers) + count
    deadline = threading.Event()
    for _ in range(int(HANG_S * 1000)):
        if sum(c.answers for c in committers) >= wanted:
            return
        deadline.wait(0.001)
    raise AssertionError("the commits have stopped")


@pytest.mark.slow
@pytest.mark.parametrize("fsync", _MODES)
def test_no_acknowledged_commit_is_lost_by_a_kill(
    tmp_path: Path, make_daemon: Make, survived: Counter[str], fsync: str
) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    daemon = make_daemon(
        tmp_path / "data", fsync=fsync, fsync_interval="20ms", fsync_batches=10
    ).start()
    push_messages(daemon)
    committers = [Committer(f"c{n}", seed + n) for n in range(6)]
    for _ in range(KILLS):
        with load(daemon, committers):
            wait_answers(committers, rng.randrange(1, 150))
            daemon.kill()
        daemon.start()
        found = places(daemon)
        for committer in committers:
            committer.verify(found)
        survived[f"kill -9 under a load of commits, fsync={fsync}"] += 1
    assert daemon.stop() == 0
    daemon.start()
    assert not daemon.has_recovered, daemon.log
    found = places(daemon)
    for committer in committers:
        committer.verify(found)


@pytest.mark.slow
@pytest.mark.usefixtures("loop_mount")
@pytest.mark.parametrize("mount", ["", "data=writeback,nodelalloc"])
@pytest.mark.parametrize("fsync", _MODES)
def test_a_power_cut_takes_no_more_than_the_mode_allows(
    tmp_path: Path, make_daemon: Make, survived: Counter[str], fsync: str, mount: str
) -> None:
    """No cursor disappears, none stands above next, and with always each is at its last commit."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with Ext4(tmp_path / "disk", mount) as image:
        daemon = make_daemon(
            image.place / "data", fsync=fsync, fsync_interval="30ms", fsync_batches=10
        ).start()
        push_messages(daemon)
        assert daemon.stop() == 0  # in every mode they are on disk now
        daemon.start()
        for life in range(5 if LONG else 3):
            with Asker(daemon) as asker:
                history = [0]
                asker.ask("COMMIT app a 0")
                asker.ask(f"COMMIT app made{life} {life}")  # and with it all that was before
                for _ in range(rng.randrange(1, 60)):
                    history.append(history[-1] + 1)
                    assert asker.ask(f"COMMIT app a {history[-1]}").startswith("OK ")
                synced = _synced_to(asker, history[-1]) if rng.random() < 0.5 else 0
                with daemon.client() as client:
                    client.push("app", [b"new"])
                    end = int(client.stats("app")["next"])
                assert asker.ask(f"COMMIT app end {end}") == f"OK {end} 0"
            image.crash(daemon)
            with daemon.start().client() as client:
                next_ = int(client.stats("app")["next"])
            found = places(daemon)
            assert {f"made{n}" for n in range(life + 1)} <= found.keys()
            assert max(found.values()) <= next_
            lost = history[-1] - found["a"]
            assert found["a"] >= synced
            if fsync == "always":
                assert lost == 0
                assert found["end"] == next_
            if fsync == "batches":
                assert 0 <= lost <= 20
            survived[f"power cut under commits, fsync={fsync}"] += 1


def _synced_to(asker: Asker, offset: int) -> int:
    """In a moment all is synced, in the modes that ever do that: then it must stay."""
    for _ in range(100_000):
        stats = asker.stats()
        if "fsync: never" in stats:
            return 0
        if "unsynced_commits: 0\n" in stats:
            return offset
    raise AssertionError("commits are never synced")


# -- at each call ---------------------------------------------------------------------------------


def script(daemon: TracedDaemon) -> list[tuple[str, str]]:
    """Each command and its answer, until the daemon is gone."""
    done: list[tuple[str, str]] = []
    commands = [
        "COMMIT app a 1", "COMMIT app a 2", "COMMIT app b 1", "COMMIT app b 2", "COMMIT app a 3",
        "COMMIT app b -", "COMMIT app a 4",
    ]  # fmt: skip
    with contextlib.suppress(Gone), Asker(daemon) as asker:
        for command in commands:
            done.append((command, ""))
            done[-1] = command, asker.ask(command)
    return done


def after(done: list[tuple[str, str]]) -> list[dict[str, int]]:
    """What may be there: with the one that was not answered, and without it."""
    states: list[dict[str, int]] = [{}]
    for command, answer in done:
        assert answer == "" or answer.startswith("OK")
        _, _, name, offset = command.split()
        state = {k: v for k, v in states[-1].items() if k != name}
        state |= {} if offset == "-" else {name: int(offset)}
        states = [state] if answer else [states[-1], state]
    return states


@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize("fsync", ["never", "always"])
def test_a_kill_in_front_of_each_call(
    tmp_path: Path, make_daemon: Make, survived: Counter[str], fsync: str
) -> None:
    model = make_daemon(tmp_path / "model", fsync=fsync).start()
    push_messages(model)
    with model.attached(*trace(*CHANGES), output=tmp_path / "calls"):
        assert after(script(model)) == [{"a": 4}]
    calls = [c for c in read_calls(tmp_path / "calls", model.data_dir) if "cursors" in c.path]
    found = targets(calls)
    assert {"openat", "rename", "fdatasync"} < {target.call for target in found}

    def kill(number: int) -> bool:
        return any(kill_once(number, attempt) for attempt in range(_TRIES))

    def kill_once(number: int, attempt: int) -> bool:
        daemon = make_daemon(tmp_path / f"{number}-{attempt}", fsync=fsync).start()
        push_messages(daemon)
        with daemon.attached(*found[number].inject(daemon.data_dir, "signal=SIGKILL")):
            done = script(daemon)
            if done[-1][1]:
                daemon.process.send_signal(signal.SIGTERM)  # type: ignore[union-attr]
            was_hit = daemon.wait_ended() == -signal.SIGKILL
        daemon.start()
        assert places(daemon) in after(done), (found[number], done)
        survived["kill -9 in front of each call of commits"] += was_hit
        daemon.kill()
        return was_hit

    hits = side_by_side(kill, list(range(len(found))))
    assert sum(hits) > 0.8 * len(found)


@pytest.mark.usefixtures("strace")
def test_a_kill_in_front_of_each_call_of_a_recovery(
    tmp_path: Path, make_daemon: Make, survived: Counter[str]
) -> None:
    """The next start ends in the same cursors, and what was not sound is still somewhere, once."""
    before = make_daemon(tmp_path / "before", fsync="always").start()
    push_messages(before)
    assert after(script(before)) == [{"a": 4}]
    before.kill()
    torn = b"12 a 9 half a line"
    with (before.topic_dir("app") / "cursors").open("ab") as file:
        file.write(torn)

    def copy(name: str) -> TracedDaemon:
        daemon = make_daemon(tmp_path / name)
        shutil.copytree(before.data_dir, daemon.data_dir)
        return daemon

    model = copy("model")
    model.start(*trace(*CHANGES), output=tmp_path / "calls").kill()
    calls = read_calls(tmp_path / "calls", model.data_dir)
    found = targets([c for c in calls if "cursors" in c.path or "quarantine" in c.path])
    assert {"openat", "rename", "mkdir", "fsync"} < {target.call for target in found}

    def kill(number: int) -> None:
        daemon = copy(f"{number}")
        daemon.launch_traced(*found[number].inject(daemon.data_dir, "signal=SIGKILL"))
        daemon.wait_ended()
        daemon.start()
        assert places(daemon) == {"a": 4}, found[number]
        copies = [path.read_bytes() for path in daemon.topic_dir("app").glob("quarantine/*")]
        assert copies == [torn], found[number]
        daemon.kill()
        survived["kill -9 in front of each call of a recovery of cursors"] += 1

    side_by_side(kill, list(range(len(found))))


@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize("fsync", _MODES)
def test_each_sync_comes_before_the_answer_that_relies_on_it(
    tmp_path: Path, make_daemon: Make, fsync: str
) -> None:
    daemon = make_daemon(tmp_path / "data", fsync=fsync, fsync_interval="60s").start()
    push_messages(daemon)
    with daemon.attached(*trace(*CHANGES), output=tmp_path / "calls"):
        assert after(script(daemon)) == [{"a": 4}]
        assert daemon.stop() == 0
    calls = [c for c in read_calls(tmp_path / "calls", daemon.data_dir) if not c.failed]
    answers = [c for c in calls if c.path == "socket" and '"OK' in c.text]
    assert len(answers) == 7

    def between(start: int, end: int, names: tuple[str, ...], path: str) -> list[Call]:
        return [
            c
            for c in calls
            if c.name in names and c.path == path and start < c.started and c.ended < end
        ]

    before = 0
    for number, answer in enumerate(answers):
        is_new = number in (0, 2, 5)  # a cursor is made, or goes
        write = between(before, answer.started, WRITES, _NEW if is_new else _CURSORS)
        assert len(write) == 1, number
        syncs = between(write[0].ended, answer.started, SYNCS, _NEW if is_new else _CURSORS)
        assert len(syncs) == (is_new or fsync == "always"), number
        if is_new:
            [rename] = between(syncs[0].ended, answer.started, ("rename",), _NEW)
            assert between(rename.ended, answer.started, ("fsync",), "topics/app"), number
        before = answer.ended
    last = [c for c in calls if c.path == _CURSORS and c.name in (*WRITES, *SYNCS)][-1]
    assert last.name in SYNCS, "the stop leaves nothing unsynced"


# -- a disk that fails ----------------------------------------------------------------------------


@pytest.mark.parametrize("fsync", ["interval", "always"])
def test_without_room_the_old_place_stays(
    tmp_path: Path, make_daemon: Make, why_not: Callable[[str], str], fsync: str
) -> None:
    if reason := why_not("tmpfs"):
        pytest.skip(reason)
    with Tmpfs(tmp_path / "disk", 512) as disk:
        daemon = make_daemon(disk.place / "data", fsync=fsync).start()
        push_messages(daemon)
        with Asker(daemon) as asker:
            asker.ask("COMMIT app a 1")
            told = {"a": 1}
            disk.fill()
            refused = 0
            for offset in range(2, 300):  # what is left of a page takes some moves yet
                reply = asker.ask(f"COMMIT app a {offset}")
                if reply.startswith("OK "):
                    told["a"] = offset
                else:
                    assert reply.startswith("ERR no-space "), reply
                    refused += 1
            assert asker.ask("COMMIT app new 1").startswith("ERR no-space ")
            assert refused
            assert asker.rows() == told
            with daemon.client() as client:
                assert client.read("app", 0, 1).messages == _MESSAGES
            daemon.kill()
            daemon.start()
            assert places(daemon) == told
        disk.make_room()
        with Asker(daemon) as asker:
            assert asker.ask("COMMIT app a 7") == f"OK 7 {_MESSAGES - 7}"
            assert asker.ask("COMMIT app new 8") == f"OK 8 {_MESSAGES - 8}"
        daemon.kill()
        daemon.start()
        assert places(daemon) == {"a": 7, "new": 8}


def test_a_write_that_is_cut_short_leaves_nothing_behind(tmp_path: Path, make_daemon: Make) -> None:
    daemon = make_daemon(tmp_path / "data").start()
    push_messages(daemon)
    path = daemon.topic_dir("app") / "cursors"
    with Asker(daemon) as asker:
        asker.ask("COMMIT app a 1")
        before = path.read_bytes()
        limit = (len(before) + 10, resource.RLIM_INFINITY)
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, limit)
        assert asker.ask("COMMIT app a 2").startswith("ERR no-space ")
        assert path.read_bytes() == before
        no_limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, no_limit)
        assert asker.ask("COMMIT app a 3").startswith("OK 3 ")
    daemon.kill()
    daemon.start()
    assert places(daemon) == {"a": 3}


@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize("fsync", ["interval", "batches", "always"])
def test_a_sync_that_fails_ends_the_daemon(
    tmp_path: Path, make_daemon: Make, survived: Counter[str], fsync: str
) -> None:
    daemon = make_daemon(
        tmp_path / "data", fsync=fsync, fsync_interval="10ms", fsync_batches=1
    ).start()
    push_messages(daemon)
    with Asker(daemon) as asker:
        asker.ask("COMMIT app a 1")
        with daemon.attached(
            "-P", str(daemon.topic_dir("app") / "cursors"), "-e", "inject=fdatasync:error=EIO"
        ):
            if fsync == "always":
                with pytest.raises(Gone):
                    asker.ask("COMMIT app a 2")
            else:
                assert asker.ask("COMMIT app a 2").startswith("OK 2 ")
            assert daemon.wait_ended() == 1
    assert "topic app: fdatasync: Input/output error" in daemon.log
    daemon.start()
    assert places(daemon)["a"] in (1, 2)
    survived[f"failed fdatasync of cursors, fsync={fsync}"] += 1


@pytest.mark.usefixtures("strace")
def test_a_slow_commit_holds_up_nobody_else(tmp_path: Path, make_daemon: Make) -> None:
    """While its sync takes its time, pushes to the same topic and all else go on."""
    daemon = make_daemon(tmp_path / "data", fsync="always").start()
    push_messages(daemon)
    with Asker(daemon) as asker, daemon.client() as client:
        asker.ask("COMMIT app a 1")
        path = str(daemon.topic_dir("app") / "cursors")
        answers: list[str] = []

        def commit(offset: int) -> threading.Thread:
            def ask() -> None:
                with Asker(daemon) as own:
                    answers.append(own.ask(f"COMMIT app a {offset}"))

            thread = threading.Thread(target=ask)
            thread.start()
            return thread

        with daemon.attached("-P", path, "-e", "inject=fdatasync:delay_enter=20000000"):
            threads = [commit(2)]
            wait_until(lambda: " a 2 " in Path(path).read_text())
            threads += [commit(3), commit(3)]
            wait_until(lambda: client.stats("app")["waiting_commits"] == "2")
            for n in range(5):
                assert client.push("app", [b"more"]).offset == _MESSAGES + n
                assert asker.ask("CURSOR app a").startswith("OK 1 ")
            assert client.push("web", [b"x"]).offset == 0
            assert asker.ask("COMMIT web b 1") == "OK 1 0"
            assert answers == []
        for thread in threads:  # without the tracer nothing is slow any more
            thread.join()
        told = sorted(answer.split()[:2] for answer in answers)  # the file has them in order
        assert told == [["OK", "2"], ["OK", "3"], ["OK", "3"]]
        lines = Path(path).read_text().splitlines()
        assert [line.split()[1:3] for line in lines[1:]] == [["a", "1"], ["a", "2"], ["a", "3"]]
