"""The files beside a path that may be its older generations: `app.log.1`, `app.log-20261116.gz`.

A directory changes while it is listed, most of all during a rotation. A listing is only used if a
second one, taken after every file of the first was opened, is the same: between two steps of a
rotation each generation has exactly one name.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Collection
from typing import NamedTuple

from logd.forward.file_content import (
    ARCHIVES,
    HEAD_BYTES,
    UNREADABLE,
    Content,
    Head,
    Identity,
    PlainFile,
    Stamp,
    head_of,
    is_archive_name,
    open_content,
)

_TRIES = 20
_SUFFIX = re.compile(r"[._-](?:old|[A-Za-z0-9.:+_-]*[0-9][A-Za-z0-9.:+_-]*)")
_GENERATION = re.compile(r"[.-]?([0-9]{1,4})")
_WHOLE_S = 1_000_000_000
_UNMOVED_NS = 20_000_000
# CLOCK_REALTIME_COARSE, for which Python has no name: Linux stamps files with it.
_FILE_CLOCK = 5 if sys.platform == "linux" else time.CLOCK_REALTIME


class Unsettled(Exception):
    """The directory changed at each look. Look again later."""


class DirectoryEntry(NamedTuple):
    """An opened file: where it was found, and what it is known by."""

    path: str
    content: Content
    head: Head
    stamp: Stamp  # of the moment before the head was read
    is_base: bool
    is_unmoved: bool = False  # written under this name; a rename changes the time of change too

    @property
    def size(self) -> int:
        return self.stamp.size

    @property
    def mtime_ns(self) -> int:
        return self.stamp.mtime_ns

    @property
    def age(self) -> tuple[bool, int, int, str]:
        """Sorts the oldest first. The file at the path itself is always the newest."""
        name, kind = os.path.splitext(self.path)
        plain = name if kind in ARCHIVES else self.path
        number = _GENERATION.fullmatch(os.path.splitext(plain)[1])
        return self.is_base, self.mtime_ns, -int(number[1]) if number else 0, plain


class Named(NamedTuple):
    path: str
    identity: Identity
    size: int
    mtime_ns: int
    ctime_ns: int


class Look(NamedTuple):
    entries: list[DirectoryEntry]
    newest_ns: int  # the latest time of any sibling with something in it, opened or not


def is_sibling(base: str, path: str) -> bool:
    """Does this name say that it is an older generation of `base`? `.bak` or `.tmp` do not."""
    return path.startswith(base) and bool(_SUFFIX.fullmatch(path, len(base)))


def not_older(mtime_ns: int, than_ns: int) -> bool:
    """Some programs that compress keep the time in whole seconds only."""
    whole = mtime_ns % _WHOLE_S == 0
    return mtime_ns >= (than_ns // _WHOLE_S * _WHOLE_S if whole else than_ns)


def file_time_ns() -> int:
    """All that is written from now on has a later time. `time_ns` is ahead of files by a tick."""
    return time.clock_gettime_ns(_FILE_CLOCK) - 1


def look(base: str, since_ns: int, known: Collection[Identity], wanted: Collection[str]) -> Look:
    """The file at `base` and its siblings, opened: those of since then, and the plain ones that are
    known or wanted. An archive whose plain file is still there is left out: it may be half written.
    """
    for _ in range(_TRIES):
        listed = listing(base)
        entries = _opened(base, [n for n in listed if _is_chosen(n, base, since_ns, known, wanted)])
        again = {(name.path, name.identity) for name in listing(base)}
        if entries is not None and again == {(name.path, name.identity) for name in listed}:
            older = [name for name in listed if name.path != base and name.size]
            return Look(entries, max((name.mtime_ns for name in older), default=0))
        close(entries or [])
    raise Unsettled(base)


def _is_chosen(
    name: Named, base: str, since_ns: int, known: Collection[Identity], wanted: Collection[str]
) -> bool:
    if name.path == base or not_older(name.mtime_ns, since_ns):
        return True
    # An archive is not looked at for having been read once: inflating it may take a while.
    plain = not is_archive_name(name.path)
    return plain and (name.identity in known or name.path in wanted)


def opened_plain(path: str) -> DirectoryEntry | None:
    """Some other file, to be compared with what is known."""
    try:
        content = PlainFile(path)
    except OSError:
        return None
    try:
        return _entry(path, content)
    except OSError:
        content.close()
        return None


def _entry(
    path: str, content: Content, *, is_base: bool = False, is_unmoved: bool = False
) -> DirectoryEntry:
    stamp = content.stamp()  # and no more of the head than there was then: they go together
    head = head_of(content.read(0, min(stamp.size, HEAD_BYTES)))
    return DirectoryEntry(path, content, head, stamp, is_base, is_unmoved)


def close(entries: Collection[DirectoryEntry]) -> None:
    for entry in entries:
        entry.content.close()


def is_gone(base: str) -> bool:
    """Is there neither a file nor a sibling of this name? By names: a stat may meet a rename."""
    directory, name = os.path.split(base)
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return True
    return not any(one == name or is_sibling(name, one) for one in names)


def listing(base: str) -> list[Named]:
    """The file at `base` and its siblings by name, as far as one look can tell."""
    directory, name = os.path.split(base)
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name != name and not is_sibling(name, entry.name):
                    continue
                try:
                    if not entry.is_file():
                        continue
                    status = entry.stat()
                except OSError:
                    continue  # gone since; the second listing decides
                identity = (status.st_dev, status.st_ino)
                path = f"{directory}/{entry.name}"
                times = status.st_mtime_ns, status.st_ctime_ns
                found.append(Named(path, identity, status.st_size, *times))
    except (FileNotFoundError, NotADirectoryError):
        return []
    paths = {named.path for named in found}
    return [named for named in found if not _has_plain(named.path, paths)]


def _has_plain(path: str, paths: set[str]) -> bool:
    if not is_archive_name(path):
        return False
    plain, kind = os.path.splitext(path)
    return plain in paths or kind not in ARCHIVES


def _opened(base: str, chosen: list[Named]) -> list[DirectoryEntry] | None:
    """All of them opened; None where one is no longer what the listing said.

    The file at the path first: if it was truncated before, the copy of it is whole by now.
    """
    entries: list[DirectoryEntry] = []
    for named in sorted(chosen, key=lambda named: named.path != base):
        try:
            content = open_content(named.path)
        except FileNotFoundError:
            close(entries)
            return None
        except UNREADABLE:
            continue  # no permission, or an archive that is not sound
        is_unmoved = named.ctime_ns - named.mtime_ns < _UNMOVED_NS
        entry = _entry(named.path, content, is_base=named.path == base, is_unmoved=is_unmoved)
        entries.append(entry)
        if content.identity != named.identity:
            close(entries)
            return None
    return entries
