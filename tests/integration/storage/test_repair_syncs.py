"""In which order a repair that accepts a loss writes, syncs and renames: a power cut may follow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from logd.offline import integrity
from logd.storage import disk
from logd.storage.disk import File
from tests.integration.storage.corruptions import Break, flip_body, flip_header
from tests.integration.storage.small_log import State
from tests.support.byte_sweep import Copy

Steps = list[tuple[str, str]]  # what was done, to which file


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    done: Steps = []

    def note(what: str, function: str) -> None:
        original = getattr(disk, function)

        def noting(first: File | Path, *rest: object) -> object:
            path = os.readlink(f"/proc/self/fd/{first.fd}") if isinstance(first, File) else first
            done.append((what, Path(path).name))
            return original(first, *rest)

        monkeypatch.setattr(disk, function, noting)

    note("write", "write_at")
    note("sync", "sync")
    note("sync", "sync_directory")
    note("rename", "rename")
    return done


@pytest.mark.parametrize("corrupt", [flip_body(0, 8), flip_header(2, 1)], ids=["sealed", "newest"])
def test_what_a_repair_puts_in_place_is_on_disk(
    tmp_path: Path, killed: State, steps: Steps, corrupt: Break
) -> None:
    directory = Copy(tmp_path / "app", killed).directory
    corrupt(directory, killed)
    steps.clear()
    assert integrity.repair(directory, accept_loss=True).filled
    renames = [i for i, (what, _) in enumerate(steps) if what == "rename"]
    assert len(renames) == 3  # of the copy, the log, the checkpoint
    for i in renames:
        name = steps[i][1]
        last = [what for what, of in steps[:i] if of == name][-1]
        assert last == "sync", name
        assert steps[i + 1] in [("sync", "app"), ("sync", "quarantine")], name
    noted = steps.index(("rename", ".checkpoint.new"))
    assert ("sync", killed.active.name) in steps[:noted], "the checkpoint speaks of it"
