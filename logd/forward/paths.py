"""Which files are meant: the user's paths and globs, less what is excluded.

A path is followed through symbolic links to the file that is written, since its rotated files stand
beside that. Compressed files are never followed for themselves; they are where the rest of a file
is found that was rotated away.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from logd.forward.content import Identity, Stamp, is_archive_name


class Matched(NamedTuple):
    paths: frozenset[str]
    identities: Mapping[Identity, str]
    stamps: Mapping[Identity, Stamp]


NOTHING = Matched(frozenset(), {}, {})


class Patterns(NamedTuple):
    """`**` is any number of directories. An exclusion matches the whole path, or the name alone."""

    wanted: Sequence[str]
    excluded: Sequence[str] = ()

    def expand(self) -> Matched:
        paths = set[str]()
        identities: dict[Identity, str] = {}
        stamps: dict[Identity, Stamp] = {}
        for pattern in self.wanted:
            for found in glob.iglob(os.path.abspath(pattern), recursive=True):
                path = os.path.realpath(found)
                if self._is_excluded(found) or self._is_excluded(path) or is_archive_name(path):
                    continue
                status = _file_status(path)
                if status is not None:
                    paths.add(path)
                    identity = status.st_dev, status.st_ino
                    identities[identity] = path
                    stamps[identity] = Stamp(status.st_size, status.st_mtime_ns)
        return Matched(frozenset(paths), identities, stamps)

    def plain(self) -> list[str]:
        """The paths that were given as such: what they will be called is known before they are."""
        given = [pattern for pattern in self.wanted if not glob.has_magic(pattern)]
        paths = [os.path.realpath(os.path.abspath(path)) for path in given]
        return [p for p in paths if not self._is_excluded(p) and not is_archive_name(p)]

    def _is_excluded(self, path: str) -> bool:
        name = os.path.basename(path)
        return any(fnmatchcase(path, one) or fnmatchcase(name, one) for one in self.excluded)


def _file_status(path: str) -> os.stat_result | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status if os.path.isfile(path) else None
