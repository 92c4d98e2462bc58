"""The file of cursors, cut at every byte and with every bit flipped, and in a topic that is hurt.

Whatever is done to it: the topic works, each cursor has the place of its last line that is as it
was written, and a name that may be lost is not told to be one that never was.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from logd.errors import Faulted, LogdError, NotFound
from logd.offline import integrity
from logd.topic import Topic
from tests.integration.storage.data_dirs import log_cli, unchanged
from tests.integration.storage.small_log import TOPIC
from tests.support.byte_sweep import flip
from tests.support.daemon import dial, running
from tests.support.long_run import LONG
from tests.support.topic_loop import Loop, batch_of, close, create, new_topic, push

MESSAGES = 30
NAMES = ("a", "b", "c", "d")
pytestmark = pytest.mark.usefixtures("no_syncs")


def commit(topic: Topic, loop: Loop, name: str, offset: int) -> None:
    answers: list[LogdError | None] = []
    topic.cursors.commit(name, offset, answers.append)
    loop.run()
    assert answers == [None]


def opened(directory: Path) -> tuple[Topic, Loop]:
    loop = Loop()
    topic = new_topic(directory, loop)
    topic.open()
    return topic, loop


def places(topic: Topic) -> dict[str, int]:
    return {name: place.offset for name, place in topic.cursors.cursors.items()}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A topic with four cursors in its file, and three moves of two of them behind these."""
    (tmp_path / "data" / "topics").mkdir(parents=True)
    loop = Loop()
    topic = create(tmp_path / "data" / "topics" / TOPIC, loop, fsync="never")
    push(topic, loop, batch_of([b"%d" % n for n in range(MESSAGES)]))
    for offset, name in enumerate(NAMES):
        commit(topic, loop, name, offset)
    for offset, name in enumerate("aab", 10):
        commit(topic, loop, name, offset)
    close(topic, loop)
    (tmp_path / "data" / "lock").touch()
    return topic.directory


# -- every position -------------------------------------------------------------------------------


class Expected(NamedTuple):
    places: dict[str, int]
    lost: bool
    set_aside: list[bytes]
    is_noticed: bool  # by the start
    is_damage: bool  # to a check


def expected(whole: bytes, data: bytes) -> Expected:
    """From the lines alone: those that are as they were written, one by one."""
    written, there = whole.splitlines(keepends=True), lines_of(data)
    found = {line: there.count(line) for line in written}
    assert max(found.values()) <= 1
    names = {line.split()[1].decode(): int(line.split()[2]) for line in written[1:] if found[line]}
    prefix = 0
    while prefix < len(written) and there[prefix : prefix + 1] == [written[prefix]]:
        prefix += 1
    rest = data[len(b"".join(written[:prefix])) :]
    is_whole = prefix > len(NAMES)
    behind = any(found[line] for line in written[prefix:])
    return Expected(
        names,
        lost=not found[written[0]] or len(names) < len(NAMES),
        set_aside=[rest] if rest else [],
        is_noticed=bool(rest) or not is_whole,
        is_damage=not is_whole or behind,
    )


def lines_of(data: bytes) -> list[bytes]:
    *lines, rest = data.split(b"\n")
    return [line + b"\n" for line in lines] + ([rest] if rest else [])


def damaged(whole: bytes) -> Iterator[tuple[str, bytes]]:
    for at in range(len(whole)):
        yield f"cut at {at}", whole[:at]
        for bit in range(8) if LONG else [at % 8]:
            yield f"bit {bit} of byte {at}", flip(whole, at, bit)
    for at in range(0, len(whole), 1 if LONG else 7):
        yield f"zeros from {at}", whole[:at] + bytes(len(whole) - at)
    lines = lines_of(whole)
    for n in range(len(lines)):
        yield f"without line {n}", b"".join(lines[:n] + lines[n + 1 :])
    yield "something behind it", whole + b"something else"


def test_cut_or_flipped_anywhere(directory: Path, tmp_path: Path) -> None:
    path = directory / "cursors"
    whole = path.read_bytes()
    assert len(whole.splitlines()) == 1 + len(NAMES) + 3
    failures = []
    for done, data in damaged(whole):
        path.write_bytes(data)
        try:
            look(directory, whole, data)
        except Exception as error:  # noqa: BLE001  an escaped error is a finding too
            failures.append(f"{done}: {type(error).__name__}: {error}".splitlines()[0])
        shutil.rmtree(directory / "quarantine", ignore_errors=True)
    assert failures[:10] == []


def look(directory: Path, whole: bytes, data: bytes) -> None:
    """A check, a start, a commit, and a start after that."""
    wanted = expected(whole, data)
    report = integrity.check(directory).report
    assert [damage.file for damage in report.damages] == ["cursors"] * wanted.is_damage
    assert (directory / "cursors").read_bytes() == data
    topic, loop = opened(directory)
    assert topic.damages == ()
    assert topic.readable.next == MESSAGES
    assert places(topic) == wanted.places
    assert bool(topic.cursors.notes) == wanted.is_noticed
    copies = [copy.read_bytes() for copy in directory.glob("quarantine/*")]
    assert copies == wanted.set_aside
    stats = topic.stats()
    assert (stats["cursors"], stats["cursors_lost"]) == (len(wanted.places), int(wanted.lost))
    for name in set(NAMES) - wanted.places.keys():
        with pytest.raises(Faulted if wanted.lost else NotFound):
            topic.cursors.find(name)
    commit(topic, loop, "b", 20)
    topic, loop = opened(directory)
    assert topic.cursors.notes == []
    assert places(topic) == {**wanted.places, "b": 20}
    assert topic.stats()["cursors_lost"] == int(wanted.lost)


def test_a_cursor_never_goes_forward(directory: Path) -> None:
    """Of the model itself: damage takes places back, and makes none up."""
    whole = (directory / "cursors").read_bytes()
    before = {"a": {0, 10, 11}, "b": {1, 12}, "c": {2}, "d": {3}}
    for _, data in damaged(whole):
        for name, offset in expected(whole, data).places.items():
            assert offset in before[name]


# -- the rest of the topic ------------------------------------------------------------------------


def test_a_cursor_behind_the_end_goes_back_to_it(directory: Path) -> None:
    """As after a power cut that took messages somebody had committed, and before others come."""
    log = max(directory.glob("*.log"))
    topic, loop = opened(directory)
    kept = log.stat().st_size
    push(topic, loop, batch_of([b"lost"] * 5))
    commit(topic, loop, "a", MESSAGES + 3)
    commit(topic, loop, "b", MESSAGES)
    with log.open("r+b") as file:
        file.truncate(kept)
    topic, loop = opened(directory)
    assert topic.damages == ()
    assert topic.cursors.notes == [f"cursor a was at {MESSAGES + 3} and is at {MESSAGES} now"]
    assert places(topic) == {"a": MESSAGES, "b": MESSAGES, "c": 2, "d": 3}
    push(topic, loop, batch_of([b"other"] * 5))
    topic, loop = opened(directory)
    assert topic.readable.next == MESSAGES + 5
    assert places(topic)["a"] == MESSAGES
    assert topic.cursors.notes == []


def test_a_faulted_topic_keeps_its_cursors_and_takes_commits(directory: Path) -> None:
    """Nothing is known of where it ends, so none is put back; a repair may find the end again."""
    log = max(directory.glob("*.log"))
    whole = log.read_bytes()
    log.write_bytes(flip(whole, 10))
    topic, loop = opened(directory)
    assert topic.damages
    assert places(topic) == {"a": 11, "b": 12, "c": 2, "d": 3}
    commit(topic, loop, "c", 5)
    topic, _ = opened(directory)
    assert places(topic) == {"a": 11, "b": 12, "c": 5, "d": 3}


@pytest.mark.parametrize("what", ["directory", "link"])
def test_something_else_in_its_place_stops_the_start(directory: Path, what: str) -> None:
    path = directory / "cursors"
    path.rename(directory / "elsewhere")
    if what == "directory":
        path.mkdir()
    else:
        path.symlink_to("elsewhere")
    with unchanged(directory), pytest.raises(OSError):
        opened(directory)


def test_a_file_that_was_removed_is_no_cursors(directory: Path) -> None:
    (directory / "cursors").unlink()
    topic, _ = opened(directory)
    assert places(topic) == {}
    with pytest.raises(NotFound):
        topic.cursors.find("a")


# -- as an operator sees it -----------------------------------------------------------------------


def spoil(directory: Path) -> bytes:
    """Flip a bit in the line of cursor d, which has no other."""
    path = directory / "cursors"
    whole = path.read_bytes()
    path.write_bytes(flip(whole, whole.index(b" d 3 ") + 1))
    return whole


def test_check_and_repair(directory: Path) -> None:
    data = directory.parents[1]
    sound = log_cli("check", "--data-dir", data)
    assert sound.code == 0
    assert "app: ok" in sound.out
    spoil(directory)
    with unchanged(data):
        for command in (["check"], ["repair"], ["repair", "--dry-run", "--accept-loss"]):
            ran = log_cli(*command, "--data-dir", data)
            assert "cursors bytes 0 to" in ran.out, ran
            assert "line 5 is not valid" in ran.out
            assert ran.code == (0 if "--dry-run" in command else 3)
    logs = {path: path.read_bytes() for path in directory.glob("*.log")}
    checkpoint = (directory / "checkpoint").read_bytes()
    ran = log_cli("repair", "--data-dir", data, "--accept-loss")
    assert ran.code == 0
    assert "saved a copy in quarantine/cursors-" in ran.out
    assert {path: path.read_bytes() for path in directory.glob("*.log")} == logs
    assert (directory / "checkpoint").read_bytes() == checkpoint
    assert log_cli("check", "--data-dir", data).code == 0
    topic, _ = opened(directory)
    assert places(topic) == {"a": 11, "b": 12, "c": 2}
    with pytest.raises(NotFound):
        topic.cursors.find("d")


def test_what_is_lost_is_damage_until_it_is_accepted(directory: Path) -> None:
    spoil(directory)
    data = directory.parents[1]
    opened(directory)
    ran = log_cli("check", "--data-dir", data)
    assert ran.code == 3
    assert "the loss was not accepted" in ran.out
    assert log_cli("repair", "--data-dir", data, "--accept-loss").code == 0
    assert log_cli("check", "--data-dir", data).code == 0


def test_a_repair_of_both_the_log_and_the_cursors(directory: Path) -> None:
    spoil(directory)
    (directory / "meta.json").write_bytes(b"{}")
    data = directory.parents[1]
    assert log_cli("repair", "--data-dir", data, "--accept-loss").code == 0
    assert log_cli("check", "--data-dir", data).code == 0
    topic, _ = opened(directory)
    assert topic.damages == ()
    assert places(topic) == {"a": 11, "b": 12, "c": 2}


async def test_a_daemon_says_what_is_lost(directory: Path) -> None:
    spoil(directory)
    async with running(directory.parents[2]) as server, dial(server) as line:
        assert "WARNING topic app: cursors: line 5 is not valid" in server.log
        reply = await line.ask(b"CURSOR app d\r\n")
        assert reply.head.startswith(b"ERR faulted cursor d is unknown and may have been")
        assert (await line.ask(b"CURSOR app c\r\n")).head == b"OK 2 28"
        assert await line.stat("cursors_lost", "app") == 1
        assert await line.stat("damages", "app") == 0
        assert (await line.ask(b"PUSH app\r\nmore\r\n")).head == b"OK 30 1"
        assert (await line.ask(b"COMMIT app d 7\r\n")).head == b"OK 7 24"
        assert (await line.ask(b"CURSOR app d\r\n")).head == b"OK 7 24"
        assert await line.refused(b"CURSOR app e\r\n") == "faulted"
        server.kill()
        server.start()
        assert "WARNING" not in server.log
        async with dial(server) as line_again:
            assert await line_again.refused(b"CURSOR app e\r\n") == "faulted"
            assert (await line_again.ask(b"CURSOR app d\r\n")).head == b"OK 7 24"
