"""Vacuum: removes files that are no longer listed, and those of failed runs.

A file that no commit lists may belong to a failed run or be about to be committed, and a replaced
file may still be read. So both are kept for GRACE_S, and a run must commit within LONGEST_RUN_S.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from logd.archive.manifest import Manifest

GRACE_S = 24 * 3600.0
LONGEST_RUN_S = 12 * 3600.0


def clean(manifest: Manifest, now_s: float, grace_s: float = GRACE_S) -> int:
    """Remove unused files; returns their number."""
    before_s = now_s - grace_s
    old = [found.path for found in manifest.store.list("") if found.modified_s < before_s]
    replaced = {path for commit in manifest.recent(before_s) for path in commit.removed}
    listed = manifest.state().files  # read last, so that files committed meanwhile are kept
    unused = [
        path for path in old if _is_data(path) and path not in listed and path not in replaced
    ]
    for path in unused:
        manifest.store.remove(path)
    return len(unused)


def _is_data(path: str) -> bool:
    """Whether it is a data file or a draft; not a commit or a file of another program."""
    name = PurePosixPath(path).name
    is_data = path.startswith("topic=") and name.endswith(".parquet")
    return is_data or name.startswith(".new-")
