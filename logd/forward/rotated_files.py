"""The rotated files of a path: `app.log.1`, `app.log-20261116.gz`.

A directory changes while it is listed, especially during a rotation. A listing is used only if a
second one, made after all files were opened, is the same: between two steps of a rotation, each
generation has exactly one name.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Collection
from typing import NamedTuple

from logd.forward.file_content import (
    DECOMPRESSORS,
    FINGERPRINT_BYTES,
    UNREADABLE,
    Content,
    Fingerprint,
    Identity,
    PlainFile,
    Stamp,
    fingerprint_of,
    is_compressed_name,
    open_content,
)

_TRIES = 20
_SUFFIX = re.compile(r"[._-](?:old|[A-Za-z0-9.:+_-]*[0-9][A-Za-z0-9.:+_-]*)")
_GENERATION = re.compile(r"[.-]?([0-9]{1,4})")
_WHOLE_S = 1_000_000_000
_UNMOVED_NS = 20_000_000
# CLOCK_REALTIME_COARSE, which Linux uses for file times; Python has no constant for it.
_FILE_CLOCK = 5 if sys.platform == "linux" else time.CLOCK_REALTIME


class DirectoryChanging(Exception):
    """The directory changed during every listing. Try again later."""


class DirectoryEntry(NamedTuple):
    """An opened file: its path, and the data that identifies it."""

    path: str
    content: Content
    fingerprint: Fingerprint
    stamp: Stamp  # taken before the fingerprint
    is_base: bool
    is_unmoved: bool = False  # never renamed: a rename changes ctime, but not mtime

    @property
    def size(self) -> int:
        return self.stamp.size

    @property
    def mtime_ns(self) -> int:
        return self.stamp.mtime_ns

    @property
    def age(self) -> tuple[bool, int, int, str]:
        """A sort key, oldest first. The file at the path itself is always the newest."""
        name, kind = os.path.splitext(self.path)
        plain = name if kind in DECOMPRESSORS else self.path
        number = _GENERATION.fullmatch(os.path.splitext(plain)[1])
        return self.is_base, self.mtime_ns, -int(number[1]) if number else 0, plain


class ListedFile(NamedTuple):
    path: str
    identity: Identity
    size: int
    mtime_ns: int
    ctime_ns: int


class Generations(NamedTuple):
    entries: list[DirectoryEntry]
    newest_ns: int  # the latest mtime of a nonempty rotated file, opened or not


def is_rotated_name(base: str, path: str) -> bool:
    """Whether `path` is named like a rotated file of `base`; not `.bak` or `.tmp`."""
    return path.startswith(base) and bool(_SUFFIX.fullmatch(path, len(base)))


def not_older(mtime_ns: int, than_ns: int) -> bool:
    """Compares times; some compressing programs keep only whole seconds."""
    whole = mtime_ns % _WHOLE_S == 0
    return mtime_ns >= (than_ns // _WHOLE_S * _WHOLE_S if whole else than_ns)


def file_time_ns() -> int:
    """A time before all later writes. `time_ns` would be ahead of file times by a tick."""
    return time.clock_gettime_ns(_FILE_CLOCK) - 1


def open_generations(
    base: str, since_ns: int, known: Collection[Identity], wanted: Collection[str]
) -> Generations:
    """Open the file at `base` and its rotated files: those that are not older than `since_ns`, and
    plain ones that are known or wanted. A compressed file is skipped while its plain file exists,
    since it may be incomplete."""
    for _ in range(_TRIES):
        listed = list_generations(base)
        entries = _opened(base, [n for n in listed if _is_chosen(n, base, since_ns, known, wanted)])
        again = {(name.path, name.identity) for name in list_generations(base)}
        if entries is not None and again == {(name.path, name.identity) for name in listed}:
            older = [name for name in listed if name.path != base and name.size]
            return Generations(entries, max((name.mtime_ns for name in older), default=0))
        close(entries or [])
    raise DirectoryChanging(base)


def _is_chosen(
    name: ListedFile, base: str, since_ns: int, known: Collection[Identity], wanted: Collection[str]
) -> bool:
    if name.path == base or not_older(name.mtime_ns, since_ns):
        return True
    # A known compressed file is not opened again: decompressing it may take long.
    plain = not is_compressed_name(name.path)
    return plain and (name.identity in known or name.path in wanted)


def open_plain(path: str) -> DirectoryEntry | None:
    """Open a plain file to compare it with known ones; None if that fails."""
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
    stamp = content.stamp()  # first: the fingerprint must not cover later bytes
    fingerprint = fingerprint_of(content.read(0, min(stamp.size, FINGERPRINT_BYTES)))
    return DirectoryEntry(path, content, fingerprint, stamp, is_base, is_unmoved)


def close(entries: Collection[DirectoryEntry]) -> None:
    for entry in entries:
        entry.content.close()


def is_gone(base: str) -> bool:
    """Whether neither the file nor a rotated one exists. By name: stat may race with a rename."""
    directory, name = os.path.split(base)
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return True
    return not any(one == name or is_rotated_name(name, one) for one in names)


def list_generations(base: str) -> list[ListedFile]:
    """The file at `base` and its rotated files, in one listing of the directory."""
    directory, name = os.path.split(base)
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name != name and not is_rotated_name(name, entry.name):
                    continue
                try:
                    if not entry.is_file():
                        continue
                    status = entry.stat()
                except OSError:
                    continue  # removed meanwhile; the second listing will differ
                identity = (status.st_dev, status.st_ino)
                path = f"{directory}/{entry.name}"
                times = status.st_mtime_ns, status.st_ctime_ns
                found.append(ListedFile(path, identity, status.st_size, *times))
    except (FileNotFoundError, NotADirectoryError):
        return []
    paths = {listed.path for listed in found}
    return [listed for listed in found if not _has_plain(listed.path, paths)]


def _has_plain(path: str, paths: set[str]) -> bool:
    if not is_compressed_name(path):
        return False
    plain, kind = os.path.splitext(path)
    return plain in paths or kind not in DECOMPRESSORS


def _opened(base: str, chosen: list[ListedFile]) -> list[DirectoryEntry] | None:
    """Open all files; None if one has changed since the listing.

    The file at the path is opened first: if it was truncated before, its copy is complete by now.
    """
    entries: list[DirectoryEntry] = []
    for listed in sorted(chosen, key=lambda listed: listed.path != base):
        try:
            content = open_content(listed.path)
        except FileNotFoundError:
            close(entries)
            return None
        except UNREADABLE:
            continue  # no permission, or a damaged compressed file
        is_unmoved = listed.ctime_ns - listed.mtime_ns < _UNMOVED_NS
        entry = _entry(listed.path, content, is_base=listed.path == base, is_unmoved=is_unmoved)
        entries.append(entry)
        if content.identity != listed.identity:
            close(entries)
            return None
    return entries
