"""Expands the paths and globs of the user, without those that are excluded.

Symbolic links are resolved, since rotated files are in the directory of the target. Compressed
files are not shipped on their own; the rest of a rotated file may be read from them.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from logd.forward.file_content import Identity, Stamp, is_compressed_name
from logd.wire.text import counted


class MatchedPaths(NamedTuple):
    paths: frozenset[str]
    identities: Mapping[Identity, str]
    stamps: Mapping[Identity, Stamp]
    by_pattern: Mapping[str, PatternCounts] = {}


NO_MATCHES = MatchedPaths(frozenset(), {}, {})


@dataclass(slots=True)
class PatternCounts:
    """The matches of a pattern: shipped files, and those that are not shipped, by reason."""

    files: int = 0
    excluded: int = 0
    compressed: int = 0
    directories: int = 0

    def why_no_file(self, pattern: str) -> str:
        if self.excluded:
            return f"{pattern} matches only files that --exclude excludes"
        if self.compressed:
            return f"{pattern} matches only compressed files, which are not shipped"
        if self.directories:
            return f"{pattern} matches only directories; write '{pattern}/*' for their files"
        return f"{pattern} matches no file yet"


class PathPatterns(NamedTuple):
    """`**` matches any number of directories. An exclusion matches the path or the name."""

    wanted: Sequence[str]
    excluded: Sequence[str] = ()

    def expand(self) -> MatchedPaths:
        paths = set[str]()
        identities: dict[Identity, str] = {}
        stamps: dict[Identity, Stamp] = {}
        counts_by_pattern = {pattern: PatternCounts() for pattern in self.wanted}
        for pattern, counts in counts_by_pattern.items():
            for path, status in self._files(pattern, counts):
                paths.add(path)
                identity = status.st_dev, status.st_ino
                identities[identity] = path
                stamps[identity] = Stamp(status.st_size, status.st_mtime_ns)
        return MatchedPaths(frozenset(paths), identities, stamps, counts_by_pattern)

    def _files(self, pattern: str, counts: PatternCounts) -> Iterator[tuple[str, os.stat_result]]:
        """The files to ship that a pattern matches. All matches are counted."""
        for found in glob.iglob(os.path.abspath(pattern), recursive=True):
            path = os.path.realpath(found)
            if self._is_excluded(found) or self._is_excluded(path):
                counts.excluded += 1
            elif is_compressed_name(path):
                counts.compressed += 1
            elif (status := _file_status(path)) is not None:
                counts.files += 1
                yield path, status
            else:
                counts.directories += os.path.isdir(path)

    def plain(self) -> list[str]:
        """The patterns without wildcards: their names are known before the files exist."""
        given = [pattern for pattern in self.wanted if not glob.has_magic(pattern)]
        paths = [os.path.realpath(os.path.abspath(path)) for path in given]
        return [p for p in paths if not self._is_excluded(p) and not is_compressed_name(p)]

    def _is_excluded(self, path: str) -> bool:
        name = os.path.basename(path)
        return any(fnmatchcase(path, one) or fnmatchcase(name, one) for one in self.excluded)


class UnmatchedPatterns:
    """Reports patterns that match no file at the first expansion, and when they match one later.

    A pattern that no longer matches is not reported: a rotation has this effect.
    """

    def __init__(self) -> None:
        self._pending: set[str] | None = None

    def changes(self, matched: MatchedPaths) -> list[str]:
        found = matched.by_pattern
        if self._pending is None:
            self._pending = {pattern for pattern, counts in found.items() if not counts.files}
            return [found[p].why_no_file(p) for p in found if p in self._pending]
        begun = [pattern for pattern in found if pattern in self._pending and found[pattern].files]
        self._pending.difference_update(begun)
        return [f"{p} now matches {counted(found[p].files, 'file')}" for p in begun]


def _file_status(path: str) -> os.stat_result | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status if os.path.isfile(path) else None
