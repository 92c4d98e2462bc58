"""Which files are meant: the user's paths and globs, less what is excluded.

A path is followed through symbolic links to the file that is written, since its rotated files stand
beside that. Compressed files are never followed for themselves; they are where the rest of a file
is found that was rotated away.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from logd.forward.file_content import Identity, Stamp, is_archive_name
from logd.wire.text import counted


class Matched(NamedTuple):
    paths: frozenset[str]
    identities: Mapping[Identity, str]
    stamps: Mapping[Identity, Stamp]
    by_pattern: Mapping[str, Tally] = {}


NOTHING = Matched(frozenset(), {}, {})


@dataclass(slots=True)
class Tally:
    """How much of what a pattern matches is shipped, and how much is not, by the reason."""

    files: int = 0
    excluded: int = 0
    compressed: int = 0
    directories: int = 0

    def why_no_file(self, pattern: str) -> str:
        if self.excluded:
            return f"{pattern} matches only files that --exclude leaves out"
        if self.compressed:
            return f"{pattern} matches compressed files only, which are not followed"
        if self.directories:
            kind, whose = (
                ("a directory", "its") if self.directories == 1 else ("directories", "their")
            )
            return f"{pattern} matches {kind} only; write '{pattern}/*' for {whose} files"
        return f"{pattern} matches no file; nothing to ship yet"


class Patterns(NamedTuple):
    """`**` is any number of directories. An exclusion matches the whole path, or the name alone."""

    wanted: Sequence[str]
    excluded: Sequence[str] = ()

    def expand(self) -> Matched:
        paths = set[str]()
        identities: dict[Identity, str] = {}
        stamps: dict[Identity, Stamp] = {}
        tallies = {pattern: Tally() for pattern in self.wanted}
        for pattern, tally in tallies.items():
            for path, status in self._files(pattern, tally):
                paths.add(path)
                identity = status.st_dev, status.st_ino
                identities[identity] = path
                stamps[identity] = Stamp(status.st_size, status.st_mtime_ns)
        return Matched(frozenset(paths), identities, stamps, tallies)

    def _files(self, pattern: str, tally: Tally) -> Iterator[tuple[str, os.stat_result]]:
        """The files that a pattern matches, less those that are not shipped; all are counted."""
        for found in glob.iglob(os.path.abspath(pattern), recursive=True):
            path = os.path.realpath(found)
            if self._is_excluded(found) or self._is_excluded(path):
                tally.excluded += 1
            elif is_archive_name(path):
                tally.compressed += 1
            elif (status := _file_status(path)) is not None:
                tally.files += 1
                yield path, status
            else:
                tally.directories += os.path.isdir(path)

    def plain(self) -> list[str]:
        """The paths that were given as such: what they will be called is known before they are."""
        given = [pattern for pattern in self.wanted if not glob.has_magic(pattern)]
        paths = [os.path.realpath(os.path.abspath(path)) for path in given]
        return [p for p in paths if not self._is_excluded(p) and not is_archive_name(p)]

    def _is_excluded(self, path: str) -> bool:
        name = os.path.basename(path)
        return any(fnmatchcase(path, one) or fnmatchcase(name, one) for one in self.excluded)


class Unmatched:
    """Patterns that matched no file at the first look: reported then, and when they match one.

    A pattern that matched and does so no more is not reported: that is how a rotation looks.
    """

    def __init__(self) -> None:
        self._waited_for: set[str] | None = None

    def news(self, matched: Matched) -> list[str]:
        tallies = matched.by_pattern
        if self._waited_for is None:
            self._waited_for = {pattern for pattern, tally in tallies.items() if not tally.files}
            return [tallies[p].why_no_file(p) for p in tallies if p in self._waited_for]
        begun = [
            pattern for pattern in tallies if pattern in self._waited_for and tallies[pattern].files
        ]
        self._waited_for.difference_update(begun)
        return [f"{p} matches {counted(tallies[p].files, 'file')} now" for p in begun]


def _file_status(path: str) -> os.stat_result | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status if os.path.isfile(path) else None
