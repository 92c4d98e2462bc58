"""What strace wrote down, as a list of system calls, and how to hit one of them in the next run.

    calls = read_calls(output, data_dir)
    first_sync = next(call for call in calls if call.name == "fdatasync")
    daemon.start(*kill_before(target))

A call has a start and an end, as numbers that can be compared: with threads, one may start while
another is still under way. Paths are relative to the data directory; calls on other files, or on
sockets other than the daemon's answers, are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

# Everything that changes a file or a directory, makes a change last, or answers.
CHANGES = (
    "openat", "creat", "mkdir", "mkdirat", "rename", "renameat", "renameat2", "unlink", "unlinkat",
    "rmdir", "link", "linkat", "symlink", "symlinkat", "truncate", "ftruncate", "fallocate",
    "write", "writev", "pwrite64", "pwritev", "pwritev2", "copy_file_range", "sendfile", "splice",
    "fsync", "fdatasync", "sync", "syncfs", "sync_file_range", "msync", "sendto",
)  # fmt: skip
READS = ("pread64", "preadv", "preadv2", "read", "readv", "fadvise64")
SYNCS = ("fdatasync", "fsync")
WRITES = ("write", "writev", "pwrite64", "pwritev", "pwritev2", "sendto")

_LINE = re.compile(r"(\d+) +(?:<\.\.\. (\w+) resumed>|(\w+)\()(.*)")
_RESULT = re.compile(r"\) += (-?\d+|\?)(?:<.*>)?(?: ([A-Z]+) .*)?(?: \(INJECTED\).*)?$")
_DESCRIPTOR = re.compile(r"\d+<([^>]*)>")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


@dataclass(slots=True)
class Call:
    name: str
    thread: int
    path: str  # below the data directory; "." is that itself; for an answer "socket"
    text: str  # the arguments as strace shows them
    started: int
    ended: int = -1
    failed: str = ""  # with what error

    @property
    def changes(self) -> bool:
        return not self.failed and (self.name != "openat" or "O_CREAT" in self.text)

    def __str__(self) -> str:
        return f"{self.name} {self.path} {self.failed}".rstrip()


class Target(NamedTuple):
    """The nth call of this name on this file."""

    call: str
    path: str
    nth: int

    def __str__(self) -> str:
        return f"{self.call} {self.path} #{self.nth}"

    def inject(self, data_dir: Path, what: str) -> list[str]:
        """Arguments for strace: do `what` at this call, for example signal=SIGKILL."""
        path = data_dir if self.path == "." else data_dir / self.path
        return ["-P", str(path), "-e", f"inject={self.call}:{what}:when={self.nth}"]


def trace(*names: str) -> list[str]:
    """Arguments for strace: write down these calls."""
    return ["-e", f"trace={','.join(names)}"]


def read_calls(output: Path, data_dir: Path) -> list[Call]:
    """The calls on files below `data_dir`, and the answers sent, in the order they started."""
    calls: list[Call] = []
    unfinished: dict[int, Call] = {}
    for number, line in enumerate(output.read_text(errors="replace").splitlines()):
        match = _LINE.match(line)
        if match is None:
            continue
        thread, resumed, name, rest = int(match[1]), match[2], match[3], match[4]
        if resumed:
            call = unfinished.pop(thread, None)
            if call is None:
                continue
        else:
            call = Call(name, thread, _path(name, rest, data_dir), rest, number)
            calls.append(call)
            if rest.endswith("<unfinished ...>"):
                unfinished[thread] = call
                continue
        call.ended = number
        result = _RESULT.search(rest)
        call.failed = (result[2] or "") if result else "killed"
    return [call for call in calls if call.path]


def _path(name: str, rest: str, data_dir: Path) -> str:
    descriptor = _DESCRIPTOR.match(rest)
    quoted = _QUOTED.findall(rest) if name in _BY_NAME else []
    if descriptor and descriptor[1].startswith("TCP"):
        return "socket" if name in WRITES else ""
    path = quoted[0] if quoted else descriptor[1] if descriptor else ""
    path = path.removesuffix(" (deleted)")
    if path == str(data_dir):
        return "."
    return path.removeprefix(f"{data_dir}/") if path.startswith(f"{data_dir}/") else ""


_BY_NAME = {
    "openat", "creat", "mkdir", "mkdirat", "rename", "renameat", "renameat2", "unlink", "unlinkat",
    "rmdir", "link", "linkat", "symlink", "symlinkat", "truncate",
}  # fmt: skip


def targets(calls: list[Call], *names: str) -> list[Target]:
    """Each of these calls, as something that can be hit when the same is done once more.

    Without names, each call that changed something: in front of the others all is as before them.
    """
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for call in calls:
        if call.path not in ("", "socket"):
            seen[call.name, call.path] += 1
            if call.name in names or (not names and call.changes):
                found.append(Target(call.name, call.path, seen[call.name, call.path]))
    return found
