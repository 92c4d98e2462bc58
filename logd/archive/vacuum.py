"""Remove what does not count any more: files that were rewritten, and those of runs that died.

Nobody can know at once whether a file without a commit is a dead run's or still to be committed, or
whether somebody still reads one that was replaced. So both are left for GRACE_S; and whoever writes
commits within LONGEST_RUN_S, or not at all.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from logd.archive.manifest import Manifest

GRACE_S = 24 * 3600.0
LONGEST_RUN_S = 12 * 3600.0


def clean(manifest: Manifest, now_s: float, grace_s: float = GRACE_S) -> int:
    """How many were removed."""
    before_s = now_s - grace_s
    old = [found.path for found in manifest.store.list("") if found.modified_s < before_s]
    replaced = {path for commit in manifest.recent(before_s) for path in commit.removed}
    counts = manifest.state().files  # looked up last: what is committed by now is not removed
    waste = [path for path in old if _is_ours(path) and path not in counts and path not in replaced]
    for path in waste:
        manifest.store.remove(path)
    return len(waste)


def _is_ours(path: str) -> bool:
    """A data file, or a draft of one; never a commit, and nothing that others have put there."""
    name = PurePosixPath(path).name
    is_data = path.startswith("topic=") and name.endswith(".parquet")
    return is_data or name.startswith(".new-")
