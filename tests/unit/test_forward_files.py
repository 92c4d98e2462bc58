"""Single things that a forwarder has to get right about files, one life at a time."""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logd.errors import DataDirError
from logd.forward import file_matching, path_reader, rotated_files
from logd.forward.file_content import PlainFile
from logd.forward.forwarder import ForwardOptions
from logd.forward.lines import FileChunk, LineLimits, read_chunk
from logd.forward.path_reader import RotationTimeouts
from logd.forward.registry import FileCheckpoint, decode_note, encode_note
from logd.forward.rotated_files import file_time_ns, is_rotated_name
from logd.forward.state_directory import StateDir
from tests.unit.forwarding import Life, Outbox, World, options


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


class ForwardedWorld(World):
    """With a forwarder that can be started again and again on what it has shipped before."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "logs")
        self.outbox, self._state_dir = Outbox(), directory / "state"

    def start(self, chosen: ForwardOptions | None = None) -> Life:
        return Life(self._state_dir, self.outbox, chosen or options(self.path))

    def ship_and_kill(self) -> None:
        life = self.start()
        life.settle()
        life.kill()


@pytest.fixture
def world(tmp_path: Path) -> ForwardedWorld:
    return ForwardedWorld(tmp_path)


def at_a_look(
    patch: pytest.MonkeyPatch, moment: int, happens: Callable[[], None], *looks: str
) -> list[int]:
    """Let it happen before this one of the looks at files; how many there were is what comes."""
    count = [0]

    def watched(look: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if count[0] == moment:
                happens()
            count[0] += 1
            return look(*args)

        return call

    for name in looks:
        patch.setattr(PlainFile, name, watched(getattr(PlainFile, name)))
    return count


def test_files_that_appear_later_are_shipped(tmp_path: Path, outbox: Outbox) -> None:
    life = Life(tmp_path / "state", outbox, options(tmp_path / "*.log"))
    life.turn()
    (tmp_path / "b.log").write_bytes(b"one\n")
    life.settle()
    assert outbox.delivered == [b"one"]


def test_many_small_files_share_batches(tmp_path: Path, outbox: Outbox) -> None:
    for n in range(100):
        (tmp_path / f"{n}.log").write_bytes(b"%d\n" % n)
    Life(tmp_path / "state", outbox, options(tmp_path / "*.log")).settle()
    assert sorted(map(int, outbox.delivered)) == [*range(100)]
    assert outbox.last < 20


def test_from_the_end(world: ForwardedWorld) -> None:
    """Only what is there at the first run, and never the second half of a line."""
    world.append(b"old\nhalf ")
    chosen = options(world.path.parent / "*.log", from_end=True)
    life = world.start(chosen)
    life.turn()
    world.append(b"a line\n")
    (world.path.parent / "later.log").write_bytes(b"from its start\n")
    life.settle()
    assert sorted(world.outbox.delivered) == [b"from its start", b"half a line"]


def test_what_was_rotated_before_the_first_run_is_not_shipped(world: ForwardedWorld) -> None:
    world.append(b"older\n")
    world.rotate()
    os.utime(world.path.with_name("app.log.1"), (1, 1))
    world.append(b"newer\n")
    life = world.start()
    life.settle()
    world.rotate()
    life.kill()
    life = world.start()
    life.settle()
    assert world.outbox.delivered == [b"newer"]


@pytest.mark.parametrize("looks", [1, 3])
def test_a_file_that_came_and_was_rotated_between_two_looks_while_nothing_is_at_the_path(
    world: ForwardedWorld, looks: int
) -> None:
    """A look may come between a rename and what it makes room for, which may be long after."""
    life = world.start()
    life.turn()
    world.line()
    world.path.rename(world.path.with_name("app.log.1"))
    for _ in range(looks):
        life.turn()
    world.line()
    life.settle()
    assert world.outbox.delivered == world.written


def test_a_glob_whose_file_is_away_for_a_moment_when_it_is_looked_at(world: ForwardedWorld) -> None:
    """Of a glob it is not known what the file will be called that is not there."""
    life = world.start(options(world.path.parent / "*.log"))
    for _ in range(3):
        life.turn()
    world.line()
    moved = world.path.rename(world.path.with_name("app.log.1"))
    while file_time_ns() <= moved.stat().st_mtime_ns:
        pass  # until the clock of file times ticks
    life.turn()
    world.line()
    life.settle()
    assert world.outbox.delivered == world.written


def test_a_path_that_is_not_there_does_not_bring_back_what_was_rotated_before(
    world: ForwardedWorld,
) -> None:
    world.append(b"older\n")
    os.utime(world.path, (1, 1))
    world.path.rename(world.path.with_name("app.log.1"))
    life = world.start()
    life.settle()
    world.append(b"newer\n")
    life.settle()
    assert world.outbox.delivered == [b"newer"]


@pytest.mark.skipif(sys.platform != "linux", reason="clocks have other numbers there")
def test_the_clock_of_file_times_is_behind(tmp_path: Path, outbox: Outbox) -> None:
    """It goes by ticks: what is written after a look has a time before it. Since Linux 6.13 most
    files get finer times, so that the time of older ones is given to it by hand."""
    life = Life(tmp_path / "state", outbox, options(tmp_path / "*.log"))
    for n in range(20):
        life.turn()
        path = tmp_path / f"{n}.log"
        path.write_bytes(b"%d\n" % n)
        tick_ns = time.clock_gettime_ns(5)
        os.utime(path, ns=(tick_ns, tick_ns))
        path.rename(tmp_path / f"{n}.log.1")
        path.touch()
    life.settle()
    assert outbox.delivered == [b"%d" % n for n in range(20)]


def test_a_glob_that_matches_rotated_files_ships_them_once(world: ForwardedWorld) -> None:
    world.append(b"one\n")
    world.rotate()
    world.append(b"two\n")
    world.rotate()
    world.append(b"three\n")
    chosen = options(f"{world.path}*")
    life = world.start(chosen)
    life.settle()
    for _ in range(12):  # more than are remembered
        world.rotate()
        life.settle()
    life.kill()
    world.start(chosen).settle()
    assert world.outbox.delivered == [b"one", b"two", b"three"]


def test_rotation_to_a_name_that_the_glob_matches_too(world: ForwardedWorld) -> None:
    chosen = options(world.path.parent / "*.log")
    world.append(b"one\n")
    life = world.start(chosen)
    life.turn()
    world.append(b"two\n")
    world.path.rename(world.path.with_name("app-20261116.log"))
    world.append(b"three\n")
    life.kill()
    life = world.start(chosen)
    life.settle()
    life.turn(later_s=100.0)
    life.settle()
    life.kill()
    world.start(chosen).settle()
    assert world.outbox.delivered == [b"one", b"two", b"three"]


def test_an_inode_that_is_used_again_is_another_file(tmp_path: Path, world: ForwardedWorld) -> None:
    """The file's number is the same, its bytes are not, though there are more of them."""
    world.append(b"one\n")
    world.ship_and_kill()
    state = tmp_path / "state" / "state.json"
    world.path.unlink()
    world.append(b"another file\nthat is longer\n")
    saved = json.loads(state.read_bytes())
    saved["sources"][0]["inode"] = world.path.stat().st_ino
    state.write_text(json.dumps(saved))
    world.start().settle()
    assert world.outbox.delivered == [b"one", b"another file", b"that is longer"]


def test_the_rest_of_a_file_is_read_from_its_archive(world: ForwardedWorld) -> None:
    world.append(b"one\n")
    world.ship_and_kill()
    world.append(b"two\nthree")
    world.rotate()
    world.compress()
    world.append(b"four\n")
    world.start().settle()
    assert world.outbox.delivered == [b"one", b"two", b"three", b"four"]


def test_half_an_archive_is_left_alone_while_the_plain_file_is_there(world: ForwardedWorld) -> None:
    world.append(b"one\n")
    world.ship_and_kill()
    world.append(b"two\n")
    world.rotate()
    Path(f"{world.path}.1.gz").write_bytes(gzip.compress(b"one\ntwo\n")[:12])
    world.start().settle()
    assert world.outbox.delivered == [b"one", b"two"]


def test_a_copy_that_is_shorter_than_what_was_read(world: ForwardedWorld) -> None:
    """Lines that came between the copy and the truncation, and were read in between."""
    world.append(b"one\n")
    life = world.start()
    life.turn()
    world.copy_only()
    world.append(b"two\n")
    world.outbox.full = True
    life.turn()
    world.outbox.full = False
    life.turn()
    os.truncate(world.path, 0)
    world.append(b"three\n")
    life.settle()
    assert world.outbox.delivered == [b"one", b"two", b"three"]


def test_grown_past_our_position_after_a_truncation(world: ForwardedWorld) -> None:
    world.append(b"one\n")
    life = world.start()
    life.settle()
    world.copytruncate()
    world.append(b"two, which is longer than what was there before\n")
    life.settle()
    assert world.outbox.delivered == [b"one", b"two, which is longer than what was there before"]


def test_generations_that_all_start_with_the_same_long_line(world: ForwardedWorld) -> None:
    banner = b"x" * 2000
    world.append(banner + b"\none\n")
    world.ship_and_kill()
    world.copytruncate()
    world.append(banner + b"\ntwo\nthree\n")
    world.start().settle()
    assert world.outbox.delivered == [banner, b"one", banner, b"two", b"three"]


def test_truncated_while_it_is_read(world: ForwardedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read then belongs to another generation than the position; it must not be shipped."""
    world.append(b"one\n")
    life = world.start()
    life.settle()
    world.append(b"two\n")
    calls: list[object] = []

    def truncating(*args: Any, **kwargs: Any) -> FileChunk | None:
        if not calls:
            world.copytruncate()
            world.append(b"abc\ndef\nghi\n")  # a whole line where the next was to be read
        calls.append(args)
        return read_chunk(*args, **kwargs)

    monkeypatch.setattr(path_reader, "read_chunk", truncating)
    life.settle()
    assert world.outbox.delivered == [b"one", b"two", b"abc", b"def", b"ghi"]


@pytest.mark.parametrize("read", [b"", b"one\n"], ids=["nothing read", "a line read"])
@pytest.mark.parametrize("moment", range(24))
def test_truncated_while_it_is_found_out_which_file_is_which(
    world: ForwardedWorld, monkeypatch: pytest.MonkeyPatch, moment: int, read: bytes
) -> None:
    """The copy is then no longer the start of its original, and yet it is nothing new."""
    world.append(read)
    life = world.start()
    life.settle()
    world.append(b"two\n")
    world.copy()
    life.forwarder._readers[str(world.path)]._is_changed = True
    with monkeypatch.context() as patch:
        count = at_a_look(patch, moment, world.truncate, "size", "stamp", "read")
        life.turn()
    if count[0] <= moment:
        world.truncate()
    world.compress()
    world.append(b"three\n")
    life.settle()
    assert world.outbox.delivered == [*read.split(), b"two", b"three"]


def test_filled_in_the_tick_of_the_clock_in_which_it_was_truncated(world: ForwardedWorld) -> None:
    """And copied before anyone looked again. Many file systems' times have steps of 4 ms."""
    world.append(b"one\n")
    life = world.start()
    life.settle()
    world.copytruncate()
    tick_ns = world.path.stat().st_mtime_ns
    life.settle()
    life.kill()
    world.append(b"two\n")
    world.copy()
    os.utime(world.path.with_name("app.log.1"), ns=(tick_ns, tick_ns))
    world.truncate()
    world.start().settle()
    assert world.outbox.delivered == [b"one", b"two"]


def test_a_new_path_whose_file_has_the_inode_of_a_file_of_another_path(
    tmp_path: Path, world: ForwardedWorld
) -> None:
    """That one was removed. On ext4 the next file that is made often gets its number."""
    world.append(b"one\n")
    chosen = options(world.path.parent / "*.log")
    life = world.start(chosen)
    life.settle()
    life.kill()
    world.path.unlink()
    other = world.path.with_name("other.log")
    other.write_bytes(b"two\n")
    _give_inode_of(other, tmp_path / "state")
    world.start(chosen).settle()
    assert world.outbox.delivered == [b"one", b"two"]


def test_a_new_path_whose_file_has_the_inode_and_the_first_line_of_another(
    tmp_path: Path, world: ForwardedWorld
) -> None:
    """Which cannot be told from it, but nobody reads that one any more."""
    world.append(b"banner\n")
    chosen = options(world.path.parent / "*.log")
    life = world.start(chosen)
    life.settle()
    world.path.rename(tmp_path / "away")
    life.turn()
    life.turn(later_s=31.0)
    life.forwarder._save()
    life.kill()
    other = world.path.with_name("other.log")
    other.write_bytes(b"banner\none\n")
    _give_inode_of(other, tmp_path / "state")
    world.start(chosen).settle()
    assert world.outbox.delivered == [b"banner", b"banner", b"one"]


def test_the_inode_of_a_file_that_is_an_archive_now_is_another_path_s(
    tmp_path: Path, world: ForwardedWorld
) -> None:
    """Nothing of it was read: its first bytes show that the other file is not it."""
    world.append(b"one\n")
    other = world.path.with_name("other.log")
    chosen = options(world.path, other)
    world.outbox.full = True
    life = world.start(chosen)
    life.turn()
    life.kill()
    world.rotate()
    world.compress()
    other.write_bytes(b"two\n")
    _give_inode_of(other, tmp_path / "state")
    world.outbox.full = False
    world.start(chosen).settle()
    assert sorted(world.outbox.delivered) == [b"one", b"two"]


def _give_inode_of(path: Path, state: Path) -> None:
    saved = json.loads((state / "state.json").read_bytes())
    saved["sources"][0]["inode"] = path.stat().st_ino
    (state / "state.json").write_text(json.dumps(saved))


@pytest.mark.parametrize("moment", range(12))
def test_truncated_while_the_copy_was_looked_at_that_was_under_way(
    world: ForwardedWorld, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Half a copy is nobody's, and the file that it is a copy of must not be a later one then."""
    world.append(b"")
    life = world.start()
    life.settle()
    world.append(b"one\n")
    copy = world.path.with_name("app.log.1")
    copy.touch()

    def end_the_copy() -> None:
        copy.write_bytes(b"one\n")
        world.truncate()
        world.append(b"two\n")

    listed = rotated_files.list_generations
    by_name = lambda base: sorted(listed(base), key=lambda named: named.path, reverse=True)  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(rotated_files, "list_generations", by_name)  # the copy first
        count = at_a_look(patch, moment, end_the_copy, "size", "stamp", "read")
        life.turn()
    assert count[0] > moment
    life.settle()
    assert world.outbox.delivered == [b"one", b"two"]


def test_a_late_line_in_a_file_that_was_empty_when_it_was_rotated_away(
    world: ForwardedWorld,
) -> None:
    """And compressed, with the time that it had when it was empty, as logrotate does."""
    world.append(b"")
    life = world.start()
    life.turn()
    status = world.path.stat()
    world.rotate()
    life.turn()
    life.turn()
    world.outbox.acknowledge()
    life.kill()
    old = world.path.with_name("app.log.1")
    old.write_bytes(b"late\n")
    world.compress()
    os.utime(f"{old}.gz", ns=(status.st_atime_ns, status.st_mtime_ns))
    world.start().settle()
    assert world.outbox.delivered == [b"late"]


def test_a_late_line_and_an_archive_of_before_it(world: ForwardedWorld) -> None:
    """It is the archive of a file that is read already, though it has another time."""
    world.append(b"")
    life = world.start()
    life.turn()
    world.append(b"one\n")
    status = world.path.stat()
    while file_time_ns() < status.st_mtime_ns + 30_000_000:
        pass  # longer than what is taken for written under this name
    world.append(b"late\n")
    life.turn()
    assert world.outbox.delivered == [b"one", b"late"]
    world.rotate()
    world.compress()
    os.utime(f"{world.path}.1.gz", ns=(status.st_atime_ns, status.st_mtime_ns))
    life.settle()
    assert world.outbox.delivered == [b"one", b"late"]


def test_a_new_path_that_changes_at_each_of_the_first_looks(
    world: ForwardedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was rotated before them is as new as it was at the first."""
    life = world.start()
    life.turn()
    world.line()
    world.rotate()
    world.line()

    def unsettled(*args: Any) -> Any:
        raise rotated_files.DirectoryChanging

    with monkeypatch.context() as patch:
        patch.setattr(rotated_files, "open_generations", unsettled)
        for _ in range(4):
            while file_time_ns() <= world.path.stat().st_mtime_ns:
                pass
            life.turn()
    life.settle()
    assert world.outbox.delivered == world.written


def test_a_file_that_has_just_come_is_not_one_that_cannot_be_read(
    world: ForwardedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.line()
    life = world.start()
    life.settle()
    world.path.rename(world.path.with_name("app.log.1"))

    def then_it_comes(*args: Any) -> Any:
        found = file_matching.match_files(*args)
        world.line()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(path_reader, "match_files", then_it_comes)
        life.turn()
    life.turn(0.2)
    assert world.outbox.delivered == world.written
    assert life.said == []


@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("is_known", [False, True])
def test_a_glob_that_matches_a_rotated_file_while_nothing_is_at_its_path(
    world: ForwardedWorld, is_known: bool, is_compressed: bool
) -> None:
    chosen = options(f"{world.path}*")
    life = world.start(chosen)
    if is_known:
        world.line()
        life.turn()
        world.path.rename(world.path.with_name("app.log.2"))
        life.turn()
    world.line()
    world.path.rename(world.path.with_name("app.log.1"))
    life.turn()
    if is_compressed:
        world.compress()
    world.line()
    life.settle()
    world.rotate()
    world.line()
    life.settle()
    life.kill()
    world.start(chosen).settle()
    assert world.outbox.delivered == world.written


def test_a_file_of_its_own_with_the_name_of_a_rotated_one(world: ForwardedWorld) -> None:
    """`worker-1` beside `worker`: nobody rotates here, and both are silent for long."""
    one, other = world.path.with_name("worker"), world.path.with_name("worker-1")
    life = world.start(options(world.path.parent / "*"))
    other.write_bytes(b"1\n")
    life.settle()
    one.write_bytes(b"2\n")
    life.settle()
    for text in (b"3", b"4"):
        life.turn(later_s=31.0)
        life.settle()
        with other.open("ab") as file:
            file.write(text + b"\n")
        life.turn()
        assert world.outbox.delivered[-1] == text
    life.turn(later_s=31.0)
    other.write_bytes(b"5\n6\n7\n")  # as large as it was
    world._touch(other)
    life.turn()
    life.turn(later_s=31.0)
    one.unlink()
    life.settle()
    other.unlink()
    world.path.with_name("worker-2").write_bytes(b"8\n")
    life.turn()
    assert world.outbox.delivered == [b"%d" % n for n in range(1, 9)]


def test_a_file_that_was_renamed_to_a_name_of_the_glob_is_not_shipped_again_after_a_restart(
    world: ForwardedWorld,
) -> None:
    chosen = options(world.path.parent / "*.log")
    world.line()
    life = world.start(chosen)
    life.settle()
    world.path.rename(world.path.with_name("app-1.log"))
    life.turn()
    life.turn(later_s=31.0)
    life.forwarder._save()
    life.kill()
    world.start(chosen).settle()
    assert world.outbox.delivered == world.written


def test_a_renamed_file_that_is_written_again_after_a_long_silence(world: ForwardedWorld) -> None:
    chosen = options(world.path.parent / "*.log")
    for _ in range(50):
        world.line(pad=100)
    life = world.start(chosen)
    life.settle()
    world.path = world.path.rename(world.path.with_name("z.log"))
    life.turn()
    life.turn(later_s=31.0)
    world.line()
    life.settle()
    world.line()
    life.settle()
    assert world.outbox.delivered == world.written


def test_a_file_that_is_called_like_a_rotated_one_of_a_path_that_is_gone(
    world: ForwardedWorld,
) -> None:
    world.path.with_name("job").write_bytes(b"one\n")
    life = world.start(options(world.path.with_name("job*")))
    life.settle()
    world.path.with_name("job").unlink()
    life.turn()
    life.turn(later_s=31.0)
    with world.path.with_name("job-2").open("ab", buffering=0) as file:
        file.write(b"two\nha")
        life.settle()
        file.write(b"lf\n")
        life.settle()
    assert world.outbox.delivered == [b"one", b"two", b"half"]


def test_a_file_that_was_renamed_and_may_no_longer_be_read_is_no_new_one(
    world: ForwardedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is open: its lines come, and there is nothing to complain of."""
    world.line()
    life = world.start(options(world.path.parent / "*.log"))
    life.settle()
    world.path = world.path.rename(world.path.with_name("z.log"))

    def refused(path: str) -> Any:
        raise PermissionError(path)

    monkeypatch.setattr(rotated_files, "PlainFile", refused)
    monkeypatch.setattr(rotated_files, "open_content", refused)
    life.turn()
    world.line()
    life.settle()
    assert world.outbox.delivered == world.written
    assert life.said == []


def test_a_file_whose_first_bytes_cannot_be_read_ends_nothing(
    world: ForwardedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.line()
    opened = []

    def failing(content: PlainFile, position: int, size: int) -> bytes:
        opened.append(content)
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(PlainFile, "read", failing)
    assert rotated_files.open_plain(str(world.path)) is None
    (content,) = opened
    assert content._fd == -1, "it is closed"


def test_an_archive_of_another_inode_is_not_shipped_again_after_a_restart(
    world: ForwardedWorld,
) -> None:
    """Nor is one that a rotation renames while it is looked for: both look as if it was gone."""
    life = world.start()
    life.turn()
    world.line()
    life.turn()
    life.kill()
    world.rotate()
    world.compress()
    world.path.unlink()
    life = world.start()
    life.turn()
    life.kill()
    archive = world.path.with_name("app.log.1.gz")
    shutil.copy2(archive, world.path.with_name("app.log.2.gz"))
    archive.unlink()
    life = world.start()
    life.turn()
    world.line()
    life.settle()
    assert world.outbox.delivered == world.written


def test_a_known_file_that_is_renamed_to_the_path_of_another(world: ForwardedWorld) -> None:
    chosen = options(world.path.parent / "*.log")
    first = world.path.with_name("app-1.log")
    first.write_bytes(b"first\n")
    world.append(b"second\n")
    life = world.start(chosen)
    life.settle()
    first.rename(world.path.with_name("app-2.log"))
    world.path.rename(first)
    world.append(b"third\n")
    life.settle()
    life.kill()
    life = world.start(chosen)
    life.settle()
    assert sorted(world.outbox.delivered) == [b"first", b"second", b"third"]
    assert life.said == []


def test_a_file_that_was_moved_away_and_back(tmp_path: Path, world: ForwardedWorld) -> None:
    world.line()
    life = world.start()
    life.settle()
    away = world.path.rename(tmp_path / "away")
    life.turn()
    life.turn(later_s=31.0)
    away.rename(world.path)
    life.settle()
    world.line()
    life.settle()
    assert world.outbox.delivered == world.written


def test_archives_of_one_second_are_read_in_the_order_of_their_numbers(
    world: ForwardedWorld,
) -> None:
    """Some programs that compress keep the time in whole seconds only."""
    life = world.start()
    life.turn()
    for _ in range(3):
        world.line()
        world.rotate()
        world.compress()
        archive = world.path.with_name("app.log.1.gz")
        os.utime(archive, (later := int(time.time()) + 2, later))
    life.settle()
    assert world.outbox.delivered == world.written


def test_a_copy_with_the_inode_of_a_file_that_was_empty(world: ForwardedWorld) -> None:
    """Nothing is known of that file but its inode, and that is used again."""
    world.append(b"")
    world.ship_and_kill()
    copy = world.path.rename(world.path.with_name("app.log.1"))
    world.append(b"one\n")
    copy.write_bytes(b"one\n")
    life = world.start()
    life.settle()
    world.truncate()
    life.settle()
    assert world.outbox.delivered == [b"one"]


@pytest.mark.parametrize("moment", range(12))
def test_a_program_that_changes_files_at_any_moment(
    world: ForwardedWorld, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """It writes its last line to the old file and the next to the new one, between two looks. That
    one is not empty: another program was quicker."""
    world.append(b"one\n")
    life = world.start()
    life.turn()
    old = world.path.open("ab", buffering=0)
    world.rotate()
    world.append(b"quick\n")
    life.settle()

    def change() -> None:
        old.write(b"two\n")
        world.append(b"three\n")

    count = at_a_look(monkeypatch, moment, change, "size", "stamp")
    life.settle()
    old.close()
    assert count[0] > moment
    assert world.outbox.delivered == [b"one", b"quick", b"two", b"three"]


def test_lines_that_come_late_to_a_rotated_file(world: ForwardedWorld) -> None:
    """Until the program opens its file anew, it writes to the old one."""
    world.append(b"one\n")
    life = world.start()
    with world.path.open("ab", buffering=0) as old:
        life.turn()
        world.rotate()
        life.turn()
        old.write(b"two\n")
        life.turn()
        old.write(b"thr")
        world.append(b"four\n")
        life.turn(later_s=0.1)
        assert world.outbox.delivered == [b"one", b"two"], "the new file waits for the line's end"
        old.write(b"ee\n")
        life.settle()
    assert world.outbox.delivered == [b"one", b"two", b"three", b"four"]


def test_rotated_files_are_closed_when_nothing_comes_any_more(world: ForwardedWorld) -> None:
    life = world.start()
    for n in range(5):
        world.append(b"%d\n" % n)
        life.turn()
        world.rotate()
    life.turn()
    assert life.open_files > 1
    life.turn(later_s=31.0)
    life.turn(later_s=31.0)
    assert life.open_files == 1


def test_an_unfinished_line_waits_unless_told_otherwise(
    tmp_path: Path, world: ForwardedWorld
) -> None:
    world.append(b"unfin")
    life = Life(tmp_path / "a", world.outbox, options(world.path))
    life.settle()
    assert world.outbox.delivered == []
    world.append(b"ished\n")
    life.settle()
    assert world.outbox.delivered == [b"unfinished"]
    other = Outbox()
    world.append(b"half")
    chosen = options(world.path, timeouts=RotationTimeouts(partial_s=5.0))
    life = Life(tmp_path / "b", other, chosen)
    life.turn()
    life.turn(later_s=4.0)
    assert other.delivered == [b"unfinished"]
    life.turn(later_s=2.0)
    world.append(b" and half\n")
    life.settle()
    assert other.delivered == [b"unfinished", b"half", b" and half"]


def test_long_lines_are_cut_and_counted(world: ForwardedWorld) -> None:
    world.append(b"x" * 300_000 + b"\nshort\n")
    life = world.start(options(world.path, limits=LineLimits(10)))
    life.settle()
    assert world.outbox.delivered == [b"x" * 10, b"short"]
    assert "1 line truncated" in life.forwarder.summary()


def test_a_full_spool_stops_the_reading_and_says_so(world: ForwardedWorld) -> None:
    life = world.start()
    world.outbox.full = True
    world.append(b"one\n")
    life.settle()
    assert world.outbox.delivered == []
    world.outbox.full = False
    life.settle()
    assert world.outbox.delivered == [b"one"]
    assert [said.partition(";")[0] for said in life.said] == [
        "the spool is full",
        "the spool has free space",
    ]


def test_what_was_removed_before_it_was_read_is_told(world: ForwardedWorld) -> None:
    world.append(b"one\n")
    life = world.start()
    world.outbox.full = True
    life.turn()
    life.kill()
    world.path.unlink()
    world.outbox.full = False
    life = world.start()
    life.settle()
    assert world.outbox.delivered == []
    assert "matches no file" in life.said[0]
    assert "at least 4 bytes removed" in life.said[1]


def test_one_forwarder_per_state_directory_and_one_topic(tmp_path: Path) -> None:
    state = StateDir(tmp_path, "app")
    with pytest.raises(DataDirError, match="in use by another forwarder"):
        StateDir(tmp_path, "app")
    state.save(lambda: {"as_of": 0, "looked_ns": 0, "next_id": 1, "sources": []})
    del state
    with pytest.raises(DataDirError, match="belongs to topic app"):
        StateDir(tmp_path, "other").load()
    (tmp_path / "state.json").write_bytes(b"{")
    with pytest.raises(DataDirError, match="restore a copy"):
        StateDir(tmp_path, "app").load()


def test_notes() -> None:
    moves = {1: FileCheckpoint(5, "0123abcd"), 22: FileCheckpoint(0, "00000000")}
    assert encode_note(moves) == "at=1:5:0123abcd,22:0:00000000"
    assert decode_note(encode_note(moves)) == moves
    assert decode_note("-") == {}


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("app.log.1", True),
        ("app.log.12.gz", True),
        ("app.log-20261116", True),
        ("app.log-20261116-1700.xz", True),
        ("app.log.2026-11-16", True),
        ("app.log.old", True),
        ("app.log", False),
        ("app.log.bak", False),
        ("app.log.tmp", False),
        ("app.log2", False),
        ("other.log.1", False),
    ],
)
def test_names_of_rotated_files(name: str, is_one: bool) -> None:
    assert is_rotated_name("app.log", name) is is_one
