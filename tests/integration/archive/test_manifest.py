"""Which files count: commits, races between them, and bytes that are no commit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from logd.archive import vacuum
from logd.archive.manifest import (
    ArchivedFile,
    CommitConflict,
    LostOffsets,
    Manifest,
    new_commit,
)
from logd.archive.object_stores import ArchiveStore, open_store
from logd.errors import ArchiveError
from logd.wire.offset_ranges import OffsetRange


def file(first: int, next_: int, topic: str = "app") -> ArchivedFile:
    path = f"topic={topic}/hour=2026-01-31T12/{first:020d}-{next_:020d}-0123456789abcdef.parquet"
    return ArchivedFile(path, topic, f"id-of-{topic}", "2026-01-31T12", first, next_, 10, 10, 0, 0)


def add(manifest: Manifest, *files: ArchivedFile, **more: Any) -> None:
    manifest.commit(new_commit("run", "test", added=list(files), **more))


def test_what_is_committed_counts(store: ArchiveStore) -> None:
    manifest = Manifest(store)
    assert manifest.state().number == 0
    add(manifest, file(0, 10), file(0, 5, "web"))
    add(manifest, file(10, 20), lost=[LostOffsets("app", "id-of-app", 20, 25)])
    state = Manifest(store).state()
    assert state.number == 2
    assert [one.range for one in state.of("id-of-app")] == [(0, 10), (10, 20)]
    assert state.covered("id-of-app") == [OffsetRange(0, 25)]
    assert state.topics == {"app": {"id-of-app"}, "web": {"id-of-web"}}


@pytest.mark.parametrize("again", [(0, 10), (9, 12), (22, 30), (4, 5)])
def test_no_offset_counts_twice(tmp_path: Path, again: tuple[int, int]) -> None:
    manifest = Manifest(open_store(str(tmp_path)))
    add(manifest, file(0, 10), lost=[LostOffsets("app", "id-of-app", 20, 25)])
    with pytest.raises(CommitConflict):
        add(manifest, file(*again))
    add(manifest, file(*again, "web"))  # another topic's offsets are others
    assert manifest.state().number == 2


def test_a_commit_that_overlaps_itself(tmp_path: Path) -> None:
    with pytest.raises(CommitConflict):
        add(Manifest(open_store(str(tmp_path))), file(0, 10), file(9, 20))


def test_files_are_replaced_in_one_step(store: ArchiveStore) -> None:
    manifest = Manifest(store)
    add(manifest, file(0, 10), file(10, 20))
    old = [file(0, 10).path, file(10, 20).path]
    add(manifest, file(0, 20), removed=old)
    assert list(manifest.state().files) == [file(0, 20).path]
    with pytest.raises(CommitConflict):
        add(manifest, file(0, 20), removed=old)  # somebody else's turn, too late


def test_many_commits_are_read_from_the_last_whole_one(
    store: ArchiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the ones before it cannot be read."""
    monkeypatch.setattr("logd.archive.manifest.SNAPSHOT_INTERVAL", 8)
    manifest = Manifest(store)
    for n in range(10):
        add(manifest, file(n, n + 1))
    for n in range(1, 8):
        store.remove(f"_commits/{n:020d}.json")
    state = manifest.state()
    assert state.number == 10
    assert state.covered("id-of-app") == [OffsetRange(0, 10)]
    store.remove(f"_commits/{9:020d}.json")
    with pytest.raises(ArchiveError, match="is missing"):
        manifest.state()


def test_side_by_side_every_commit_is_kept(place: tuple[str, dict[str, str]]) -> None:
    def commit(n: int) -> None:
        add(Manifest(open_store(*place)), file(0, 10, f"topic-{n}"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(commit, range(12)))
    state = Manifest(open_store(*place)).state()
    assert state.number == 12
    assert len(state.files) == 12


def test_side_by_side_one_of_the_same_is_kept(place: tuple[str, dict[str, str]]) -> None:
    def commit(n: int) -> bool:
        try:
            add(Manifest(open_store(*place)), file(n, 100))
        except CommitConflict:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(commit, range(8))) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"run": 1}',
        b"\xff" * 100,
        b'{"run":"r","time_ms":0,"what":"","format":2}',
    ],
)
def test_bytes_that_are_no_commit(tmp_path: Path, content: bytes) -> None:
    store = open_store(str(tmp_path))
    add(Manifest(store), file(0, 10))
    store.create("_commits/00000000000000000002.json", content)
    with pytest.raises(ArchiveError, match=r"00000000000000000002\.json is damaged"):
        Manifest(store).state()


@pytest.mark.parametrize("path", ["/etc/passwd", "../x.parquet", "topic=../hour=1/0-1-a.parquet"])
def test_a_commit_leads_nowhere_else(tmp_path: Path, path: str) -> None:
    store = open_store(str(tmp_path))
    outside = ArchivedFile(path, "app", "id", "2026-01-31T12", 0, 1, 1, 1, 0, 0)
    add(Manifest(store), outside)
    with pytest.raises(ArchiveError, match="does not belong to an archive"):
        Manifest(store).state()


def test_only_what_does_not_count_is_removed_and_only_late(
    store: ArchiveStore, tmp_path: Path
) -> None:
    manifest = Manifest(store)
    kept, replaced, orphan = file(0, 10), file(10, 20), file(30, 40)
    for one in (kept, replaced, orphan):
        draft = store.draft(one.path)
        draft.write_bytes(b"data")
        store.put(one.path, draft)
    add(manifest, kept, replaced)
    add(manifest, file(10, 25), removed=[replaced.path])
    [now_s] = {max(found.modified_s for found in store.list(""))}
    assert vacuum.clean(manifest, now_s + vacuum.GRACE_S - 60) == 0
    assert vacuum.clean(manifest, now_s + vacuum.GRACE_S + 60) == 2
    assert {found.path for found in store.list("topic=app")} == {kept.path}
    assert manifest.state().number == 2


def test_a_missing_archive(store: ArchiveStore) -> None:
    with pytest.raises(ArchiveError, match="there is no archive at"):
        Manifest(store).existing()
