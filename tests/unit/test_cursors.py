"""The file of cursors against a dictionary, and any bytes in its place."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_hexdigest

from logd.storage import cursors, disk
from logd.storage.cursors import Committed, CursorFile, changed, decode, encode, lag, moves

NAMES = st.sampled_from(["a", "b", "billing", "..", "-", "n" * 64])
PLACES = st.builds(Committed, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
CURSORS = st.dictionaries(NAMES, PLACES)
THREE = {"a": Committed(1, 10), "b": Committed(2, 20), "c": Committed(3, 30)}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which functions of `disk` were called, in order."""
    calls: list[str] = []

    def noting(name: str) -> Callable[..., Any]:
        real = getattr(disk, name)

        def call(*arguments: Any) -> Any:
            calls.append(name)
            return real(*arguments)

        return call

    for name in ("write_at", "sync", "sync_directory", "rename", "cut"):
        monkeypatch.setattr(disk, name, noting(name))
    return calls


def kept(directory: Path) -> dict[str, Committed]:
    """What a start finds; it has nothing to say about it."""
    file = CursorFile.read(directory)
    assert file.saved.reason == ""
    assert not file.lost
    return file.saved.cursors


# -- bytes ----------------------------------------------------------------------------------------


def test_the_form_of_the_file() -> None:
    def line(text: bytes) -> bytes:
        return text + xxh3_64_hexdigest(text).encode() + b"\n"

    data = encode({"a": Committed(5, 1000), "b": Committed(7, 2000)}, 41, lost=False)
    assert data == line(b"cursors 41 2 0 ") + line(b"42 a 5 1000 ") + line(b"43 b 7 2000 ")
    assert moves({"a": Committed(6, 3000)}, 43) == line(b"44 a 6 3000 ")
    assert encode({}, 0, lost=True) == line(b"cursors 0 0 1 ")


@given(CURSORS, st.lists(st.tuples(NAMES, PLACES)), st.integers(0, 1000), st.booleans())
def test_what_is_encoded_comes_back(
    first: dict[str, Committed], later: Sequence[tuple[str, Committed]], number: int, lost: bool
) -> None:
    data, wanted = encode(first, number, lost), dict(first)
    number += len(first)
    for name, place in later:
        if name in first:
            data += moves({name: place}, number)
            wanted[name] = place
            number += 1
    assert decode(data) == (wanted, number, len(data), lost, "", False)


@given(
    CURSORS,
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500), st.binary(max_size=30))),
)
@settings(max_examples=300)
def test_any_bytes_are_read(
    first: dict[str, Committed], edits: Sequence[tuple[int, int, bytes]]
) -> None:
    """Nothing is made up: a line counts as it was written, or not at all."""
    data = encode(first, 7, lost=False) + moves(first, 7 + len(first))
    for at, size, new in edits:
        data = data[:at] + new + data[at + size :]
    found = decode(data)
    assert found.cursors.items() <= first.items()
    assert 0 <= found.end <= len(data)
    if not found.lost:
        assert found.cursors == first
    if not found.reason:
        assert found.end == len(data)


@given(st.binary(max_size=200))
def test_bytes_of_something_else_are_no_cursors(data: bytes) -> None:
    found = decode(data)
    assert found.cursors == {}
    assert found.lost
    assert found.reason
    assert not found.is_torn


def test_lines_of_another_time_do_not_count() -> None:
    """An older file's line, or one that comes twice, is not the newest of its cursor."""
    data = encode(THREE, 10, lost=False)
    for stale in (moves({"a": Committed(9, 9)}, 5), moves({"a": Committed(9, 9)}, 12)):
        found = decode(data + stale)
        assert found.cursors == THREE
        assert (found.end, found.is_torn) == (len(data), True)


def test_lag() -> None:
    assert [lag(offset, 10) for offset in (0, 9, 10, 11)] == [10, 1, 0, 0]


# -- the file -------------------------------------------------------------------------------------

STEPS = st.lists(
    st.dictionaries(NAMES, st.none() | PLACES, min_size=1, max_size=3) | st.just("restart"),
    max_size=30,
)


@given(STEPS)
@settings(max_examples=60)
def test_against_the_model(
    tmp_path_factory: pytest.TempPathFactory, steps: list[dict[str, Committed | None] | str]
) -> None:
    directory = tmp_path_factory.mktemp("app")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cursors, "_GROWN_BYTES", 300)
        patch.setattr(disk, "sync", lambda file: None)
        patch.setattr(disk, "sync_directory", lambda path: None)
        file, model = CursorFile(directory), dict[str, Committed]()
        for step in steps:
            if isinstance(step, str):
                file = CursorFile.read(directory)
                file.make_sound(None)
                assert file.notes == []
                continue
            file.write(step, model)
            model = changed(model, step)
            assert kept(directory) == model
            assert file.path.stat().st_size < 2 * len(encode(model, 10**6, False)) + 600


def test_a_move_is_one_write_and_a_new_name_a_whole_file_on_disk(
    tmp_path: Path, counted: list[str]
) -> None:
    file = CursorFile(tmp_path)
    file.write({"a": Committed(1, 1)}, {})
    assert counted == ["write_at", "sync", "rename", "sync_directory"]
    assert file.is_synced
    counted.clear()
    file.write({"a": Committed(2, 2)}, {"a": Committed(1, 1)})
    assert counted == ["write_at"]
    assert not file.is_synced
    file.sync()
    file.sync()
    assert counted == ["write_at", "sync"]
    assert file.is_synced
    counted.clear()
    file.write({"a": None}, {"a": Committed(2, 2)})
    assert counted == ["write_at", "sync", "rename", "sync_directory"]
    assert kept(tmp_path) == {}


def test_a_start_reads_what_is_on_disk_and_not_what_is_cached(
    tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    CursorFile(tmp_path).write(THREE, {})
    counted.clear()
    monkeypatch.setattr(disk, "drop_cache", lambda file: counted.append("drop_cache"))
    assert kept(tmp_path) == THREE
    assert counted == ["sync", "drop_cache"]


def test_a_write_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even when all of its bytes had been taken."""
    file = CursorFile(tmp_path)
    file.write(THREE, {})
    real = disk.write_at

    def fails_late(*arguments: Any) -> None:
        real(*arguments)
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write_at", fails_late)
        with pytest.raises(OSError, match="full"):
            file.write({"a": Committed(9, 9)}, THREE)
        assert kept(tmp_path) == THREE
        with pytest.raises(OSError, match="full"):
            file.write({"new": Committed(9, 9)}, THREE)
        assert kept(tmp_path) == THREE
    file.write({"b": Committed(8, 8)}, THREE)
    assert kept(tmp_path) == {**THREE, "b": Committed(8, 8)}


def test_what_cannot_be_cut_off_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = CursorFile(tmp_path)
    file.write(THREE, {})
    real = disk.write_at

    def fails_late(*arguments: Any) -> None:
        real(*arguments)
        raise OSError(errno.EIO, "broken")

    def fails(*_: Any) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write_at", fails_late)
        patch.setattr(disk, "cut", fails)
        with pytest.raises(OSError, match="broken"):
            file.write({"a": Committed(9, 9)}, THREE)
    file.write({"b": Committed(8, 8)}, THREE)
    assert kept(tmp_path) == {**THREE, "b": Committed(8, 8)}


# -- the start ------------------------------------------------------------------------------------


def test_no_cursor_stands_behind_the_end(tmp_path: Path) -> None:
    CursorFile(tmp_path).write(THREE, {})
    file = CursorFile.read(tmp_path)
    file.make_sound(2)
    assert file.notes == ["cursor c was at 3 and is at 2 now"]
    assert kept(tmp_path) == {**THREE, "c": Committed(2, 30)}


def test_without_room_the_next_commit_makes_the_file_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    CursorFile(tmp_path).write(THREE, {})
    path = tmp_path / "cursors"
    whole = path.read_bytes()
    path.write_bytes(whole + b"torn")
    file = CursorFile.read(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write_at", full)
        file.make_sound(2)
        with pytest.raises(OSError, match="full"):
            file.write({"a": Committed(0, 0)}, file.saved.cursors)
    assert path.read_bytes() == whole + b"torn"
    file.write({"a": Committed(0, 0)}, file.saved.cursors)
    assert kept(tmp_path) == {**THREE, "a": Committed(0, 0), "c": Committed(2, 30)}
    assert [copy.read_bytes() for copy in tmp_path.glob("quarantine/*")] == [b"torn"]
