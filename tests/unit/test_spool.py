"""The spool: what is kept survives a kill at any byte, and goes when it is acknowledged."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logd.batch import LINES, body_sum
from logd.client.spool import SAVE_EVERY, Spool, SpoolError
from logd.wire.requests import Push

SMALL = 300  # bytes of a segment: a few batches


def push(n: int, size: int = 5) -> Push:
    body = b"%d" % n + b"." * size + b"\n"
    return Push("app", body, LINES, 1, body_sum(body))


def fill(spool: Spool, *numbers: int) -> None:
    for n in numbers:
        assert spool.append(push(n), 1, f"note-{n}") == n


def read(spool: Spool) -> list[int]:
    """Everything that has not been read; each is what was appended under its number."""
    numbers = []
    while (found := spool.read("app")) is not None:
        number, got, messages = found
        assert (got, messages) == (push(number), 1)
        numbers.append(number)
    assert spool.unread_bytes == 0
    return numbers


def kill(spool: Spool) -> None:
    """End it as kill -9 does: nothing is saved."""
    spool.abandon()


def segments(place: Path) -> list[Path]:
    return sorted(place.glob("*.spool"))


def test_what_is_appended_is_read_in_order(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "deep" / "spool", segment_bytes=SMALL)
    assert read(spool) == []
    fill(spool, *range(1, 21))
    assert spool.unread_bytes == spool.size > 0
    assert read(spool) == list(range(1, 21))
    fill(spool, 21)
    assert read(spool) == [21]
    assert len(segments(tmp_path / "deep" / "spool")) > 3
    spool.close()
    spool.close()


def test_a_restart_goes_on_behind_what_was_acknowledged(tmp_path: Path) -> None:
    spool = Spool(tmp_path, segment_bytes=SMALL)
    name = spool.producer
    fill(spool, *range(1, 11))
    read(spool)
    spool.forget(4)
    spool.close()
    spool = Spool(tmp_path, segment_bytes=SMALL)
    assert (spool.producer, spool.acknowledged, spool.last) == (name, 4, 10)
    assert read(spool) == [5, 6, 7, 8, 9, 10]
    fill(spool, 11)
    assert read(spool) == [11]
    spool.close()


def test_after_a_kill_the_state_lags_behind_by_little(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    total = 3 * SAVE_EVERY
    fill(spool, *range(1, total + 1))
    read(spool)
    for number in range(1, total):
        spool.forget(number)
    kill(spool)
    spool = Spool(tmp_path)
    left = read(spool)
    assert left[-1] == total
    assert 1 <= len(left) <= SAVE_EVERY + 1
    spool.close()


def test_a_kill_at_any_byte_of_the_newest_segment(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    spool = Spool(whole, segment_bytes=SMALL)
    ends: list[int] = []
    while len(segments(whole)) < 3 or len(ends) < 2:
        fill(spool, spool.last + 1)
        if len(segments(whole)) == 3:
            ends.append(spool._segments[-1].size)
    last = spool.last
    kill(spool)
    newest = segments(whole)[-1].name
    for size in range(ends[-1] + 1):
        place = tmp_path / f"cut-{size}"
        shutil.copytree(whole, place)
        os.truncate(place / newest, size)
        spool = Spool(place, segment_bytes=SMALL)
        kept = last - sum(end > size for end in ends)
        assert spool.last == kept
        assert read(spool) == list(range(1, kept + 1))
        assert [note for _, note in spool.notes(kept - 1)] == [f"note-{kept}"]
        fill(spool, kept + 1)
        assert read(spool) == [kept + 1]
        spool.close()
        shutil.rmtree(place)


def test_segments_go_when_all_in_them_is_acknowledged(tmp_path: Path) -> None:
    told: list[int] = []
    spool = Spool(tmp_path, segment_bytes=SMALL)
    spool.before_removal = lambda: told.append(len(segments(tmp_path)))
    fill(spool, *range(1, 21))
    firsts = [int(path.stem) for path in segments(tmp_path)]
    read(spool)
    for number in range(1, 21):
        spool.forget(number)
        kept = [int(path.stem) for path in segments(tmp_path)]
        assert kept == [
            n for n, then in zip(firsts, [*firsts[1:], 99], strict=True) if then > number + 1
        ]
    assert told == list(range(len(firsts), 1, -1))
    assert [number for number, _ in spool.notes(0)][-1] == 20
    spool.close()
    assert json.loads((tmp_path / "state").read_bytes())["acknowledged"] == 20


def test_reading_goes_on_though_the_segment_it_stood_in_went(tmp_path: Path) -> None:
    """All of it was read and acknowledged before anything behind it was read."""
    spool = Spool(tmp_path, segment_bytes=1)  # one batch each
    fill(spool, 1)
    assert read(spool) == [1]
    fill(spool, 2)
    spool.forget(1)
    assert read(spool) == [2]
    fill(spool, 3, 4)
    assert read(spool) == [3, 4]
    spool.close()


def test_the_newest_note_is_always_there(tmp_path: Path) -> None:
    """Killed between the making of a segment and its first batch."""
    spool = Spool(tmp_path, segment_bytes=1)
    fill(spool, 1)
    spool._roll()
    kill(spool)
    spool = Spool(tmp_path, segment_bytes=1)
    assert read(spool) == [1]
    spool.forget(1)
    assert list(spool.notes(0)) == [(1, "note-1")]
    fill(spool, 2, 3)
    assert read(spool) == [2, 3]
    spool.forget(3)
    assert list(spool.notes(0)) == [(3, "note-3")]
    spool.close()


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(0, 200)),
            st.tuples(st.just("read"), st.integers(1, 5)),
            st.tuples(st.just("forget"), st.integers(1, 5)),
            st.tuples(st.sampled_from(["close", "kill", "notes"]), st.just(0)),
        ),
        max_size=50,
    )
)
@settings(max_examples=300)
def test_against_a_list(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    place = tmp_path_factory.mktemp("spool")
    spool = Spool(place, segment_bytes=SMALL)
    kept: list[tuple[int, Push]] = []  # all that was ever appended
    at = acknowledged = 0
    for step, size in steps:
        if step == "append":
            kept.append((len(kept) + 1, push(len(kept) + 1, size)))
            assert spool.append(kept[-1][1], 1, f"{len(kept)}") == len(kept)
        elif step == "read":
            for _ in range(size):
                found = spool.read("app")
                assert (found and found[:2]) == (kept[at] if at < len(kept) else None)
                at += found is not None
        elif step == "forget" and acknowledged + size <= at:
            acknowledged += size
            spool.forget(acknowledged)
        elif step == "notes":
            notes = dict(spool.notes(0))
            assert notes == {n: str(n) for n in notes}
            assert set(range(acknowledged + 1, len(kept) + 1)) <= set(notes)
            assert not kept or len(kept) in notes
        elif step in ("close", "kill"):
            spool.close() if step == "close" else kill(spool)
            spool = Spool(place, segment_bytes=SMALL)
            assert spool.last == len(kept)
            assert spool.acknowledged <= acknowledged
            assert step == "kill" or spool.acknowledged == acknowledged
            at = acknowledged = spool.acknowledged
    spool.close()
    shutil.rmtree(place)


# -- notes, names, locks ------------------------------------------------------------------------


def test_notes(tmp_path: Path) -> None:
    spool = Spool(tmp_path, segment_bytes=SMALL)
    fill(spool, *range(1, 11))
    assert list(spool.notes(7)) == [(8, "note-8"), (9, "note-9"), (10, "note-10")]
    spool.append(push(11), 1)
    assert list(spool.notes(10)) == [(11, "-")]
    spool.append(push(12), 1, "!" * 300)
    assert list(spool.notes(11)) == [(12, "!" * 300)]
    for note in ("", "two words", "a\nb", "ä", "x" * 301):
        with pytest.raises(ValueError, match="one word"):
            spool.append(push(13), 1, note)
    notes = spool.notes(0)
    assert next(notes)[0] == 1
    read(spool)
    spool.forget(12)  # and most of the files are gone
    assert [number for number, _ in notes][-1] == 12
    spool.close()


def test_a_new_name_is_kept(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.rename("another")
    kill(spool)
    spool = Spool(tmp_path)
    assert spool.producer == "another"
    spool.close()


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    with pytest.raises(SpoolError, match="another writer uses the spool"):
        Spool(tmp_path)
    spool.close()
    Spool(tmp_path).close()


# -- damage -------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def open_below(place: Path) -> list[str]:
    """The files of a directory that this process has open."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [link for link in links if link.startswith(f"{place}/")]


def test_a_damaged_segment_that_is_not_the_newest(tmp_path: Path) -> None:
    spool = Spool(tmp_path, segment_bytes=SMALL)
    fill(spool, *range(1, 21))
    spool.close()
    flip(segments(tmp_path)[1])
    for _ in range(2):
        with pytest.raises(SpoolError, match=r"is damaged at byte \d+ .*; move it away"):
            Spool(tmp_path, segment_bytes=SMALL)
    assert open_below(tmp_path) == []
    first, second, third, *_ = [int(path.stem) for path in segments(tmp_path)]
    segments(tmp_path)[1].unlink()
    spool = Spool(tmp_path, segment_bytes=SMALL)
    assert read(spool) == [*range(first, second), *range(third, 21)]
    spool.close()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"producer": "x"}', b'{"producer": "a b", "acknowledged": 1}',
    b'{"producer": 5, "acknowledged": 1}', b'{"producer": "x", "acknowledged": "y"}', b"\xff"],
)  # fmt: skip
def test_a_damaged_state(tmp_path: Path, content: bytes) -> None:
    spool = Spool(tmp_path)
    fill(spool, 1)
    spool.close()
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(SpoolError, match="remove it to continue"):
        Spool(tmp_path)
    (tmp_path / "state").unlink()
    spool = Spool(tmp_path)
    assert read(spool) == [1]
    spool.close()


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    for name in ("12a.spool", "7.spool", "note.txt"):
        (tmp_path / name).write_bytes(b"mine")
    spool = Spool(tmp_path)
    fill(spool, 1)
    assert read(spool) == [1]
    spool.close()
    assert (tmp_path / "7.spool").read_bytes() == b"mine"


def test_a_clock_that_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([5_000, 1_000, 3_000, 500, 6_000])
    monkeypatch.setattr("logd.client.spool.time.time_ns", lambda: next(times) * 1_000_000)
    spool = Spool(tmp_path)
    fill(spool, 1, 2, 3)
    kill(spool)
    spool = Spool(tmp_path)
    fill(spool, 4, 5)
    kill(spool)
    spool = Spool(tmp_path)
    assert read(spool) == [1, 2, 3, 4, 5]
    spool.close()


# -- a full disk --------------------------------------------------------------------------------


def failing(after_bytes: int) -> Callable[..., int]:
    """A pwrite that takes so many bytes in all, and then says that the disk is full."""
    real, left = os.pwrite, [after_bytes]

    def pwrite(file: int, data: memoryview, position: int) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = min(left[0], len(data))
        left[0] -= taken
        return real(file, data[:taken], position)

    return pwrite


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("fails", ["write", "sync"])
def test_a_full_disk_leaves_whole_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    for room in range(0, 100, 7):
        place = tmp_path / str(room)
        spool = Spool(place, segment_bytes=SMALL, fsync=True)
        fill(spool, 1, 2)
        size = spool.size
        with monkeypatch.context() as patch:
            if fails == "write":
                patch.setattr(os, "pwrite", failing(room))
            else:
                patch.setattr(os, "fdatasync", no_space)
            with pytest.raises(OSError, match="No space left"):
                spool.append(push(3, 200), 1)
        assert (spool.size, spool.last) == (size, 2)
        assert segments(place)[-1].stat().st_size == size
        fill(spool, 3)
        kill(spool)
        spool = Spool(place, segment_bytes=SMALL)
        assert read(spool) == [1, 2, 3]
        spool.close()


def test_a_state_that_cannot_be_written_frees_room_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool(tmp_path, segment_bytes=1)
    fill(spool, 1, 2, 3)
    read(spool)
    with monkeypatch.context() as patch:
        patch.setattr(spool, "_save_state", no_space)
        spool.forget(2)
    assert "No space left" in caplog.text
    assert len(segments(tmp_path)) == 1
    kill(spool)
    spool = Spool(tmp_path, segment_bytes=1)
    assert read(spool) == [3]
    spool.close()


def test_with_fsync_each_batch_is_synced_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    real = os.fdatasync

    def fdatasync(file: int) -> None:
        synced.append(os.fstat(file).st_size)
        real(file)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    spool = Spool(tmp_path, fsync=True)
    fill(spool, 1, 2)
    assert synced[-1] == spool.size
    assert len(synced) == 2
    spool.close()
