"""Replies and files are those of the recordings: the protocol and the file format did not change.

The recordings were made by `record.py` with the code before the restructuring (0.1.0). What is
compared, and which values are left out, is described in `dialogue.py`. Errors that a client cannot
cause at will (`io`, `internal`, `shutting-down`) are not recorded. `.tar.xz` files hold:

    clean     a data directory after a proper stop
    killed    one after SIGKILL, with a batch that was cut off
    damaged   `clean` with one byte changed in two partitions
    clients   a writer's spool, a reader's cursor file, a forwarder's state, and a data directory
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from difflib import unified_diff
from pathlib import Path

import pytest
from xxhash import xxh3_64_digest, xxh3_64_hexdigest

from logd import Reader, Writer
from tests.integration.compatibility.dialogue import Recording, without_times
from tests.integration.compatibility.record import RECORDINGS, load, started, unpack
from tests.support.daemon import ROOT

PYTHON = [sys.executable]
NAMES = sorted(path.stem for path in RECORDINGS.glob("*.txt") if "write-" not in path.stem)


@pytest.mark.parametrize("name", NAMES)
def test_replies_are_unchanged(name: str, tmp_path: Path) -> None:
    recording = load(name)
    with started(recording, tmp_path, PYTHON) as daemon:
        compare(name, recording.replay(daemon))


def test_replies_do_not_depend_on_how_requests_are_split(tmp_path: Path) -> None:
    recording = load("commands")
    with started(recording, tmp_path, PYTHON) as daemon:
        compare("commands", recording.replay(daemon, piece_bytes=7))


def compare(name: str, replayed: str) -> None:
    recorded = (RECORDINGS / f"{name}.txt").read_text().splitlines()
    diff = unified_diff(recorded, replayed.splitlines(), "recorded", "replayed", n=8, lineterm="")
    changes = "\n".join(diff)
    assert not changes, f"\n{changes}"


def test_written_files_are_unchanged(tmp_path: Path) -> None:
    recording = load("write-clean")
    with started(recording, tmp_path / "new", PYTHON) as daemon:
        compare("write-clean", recording.replay(daemon))
        assert daemon.stop() == 0
    unpack("clean", tmp_path / "old")
    assert contents(tmp_path / "new/data") == contents(tmp_path / "old/data")


def contents(directory: Path) -> dict[str, bytes]:
    """All files and their contents without times, ids and the sums over these."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): content(path) for path in files}


def content(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".log":
        return without_times(data)
    if path.suffix == ".index":
        entries = [data[at : at + 32] for at in range(0, len(data), 32)]
        assert all(xxh3_64_digest(entry[:24])[::-1] == entry[24:] for entry in entries)
        return b"".join(entry[:16] for entry in entries)
    if path.name == "cursors":
        return re.sub(rb" 1\d{12} [0-9a-f]{16}\n", b" <time> <sum>\n", data)
    if path.name == "checkpoint":
        return newest_slot(data)
    if path.name == "meta.json":
        return re.sub(rb'("(?:id|sum)": )"[0-9a-f]+"|("created": )\d+', rb"\1\2<value>", data)
    return data


def newest_slot(data: bytes) -> bytes:
    """How often it was written depends on the time that the pushes took."""
    assert len(data) == 2 * 4096
    slots = [data[:4096].rstrip(b"\0"), data[4096:].rstrip(b"\0")]
    for covered, _, slot_sum in (slot.rpartition(b" ") for slot in slots if slot):
        assert xxh3_64_hexdigest(covered + b" ").encode() + b"\n" == slot_sum
    newest = max(slots, key=lambda slot: int(slot.split(b" ")[1]) if slot else -1)
    return re.sub(rb"^checkpoint \d+|since=\d+|[0-9a-f]{16}$", b"<value>", newest)


def log_cli(*arguments: object) -> int:
    command = [*PYTHON, "-m", "cli", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, timeout=60, capture_output=True).returncode


def test_check_accepts_recorded_directories(tmp_path: Path) -> None:
    unpack("clean", tmp_path / "clean")
    assert log_cli("check", "--data-dir", tmp_path / "clean/data") == 0
    with started(Recording({"data": "killed"}, []), tmp_path / "killed", PYTHON) as daemon:
        assert daemon.stop() == 0  # the start has cut the torn tail
    assert log_cli("check", "--data-dir", tmp_path / "killed/data") == 0


def test_files_of_clients_are_unchanged(tmp_path: Path) -> None:
    """One batch of the spool is stored already, but its writer was killed before it noted that."""
    with started(Recording({"data": "clients"}, []), tmp_path, PYTHON) as daemon:
        with Writer(daemon.address, "spooled", spool=tmp_path / "spool") as writer:
            writer.write(b"e")
        assert read(daemon.address, "spooled") == [b"a", b"b", b"c", b"d", b"e"]
        assert read(daemon.address, "app", tmp_path / "cursor") == [b"three"]

        log, state = tmp_path / "app.log", tmp_path / "forward/state.json"
        snapshot, file = json.loads(state.read_text()), log.stat()
        found = {"path": str(log), "device": file.st_dev, "inode": file.st_ino}
        snapshot["sources"][0] |= found
        state.write_text(json.dumps(snapshot))
        with log.open("a") as lines:
            lines.write("three\n")
        flags = ("--once", "--topic", "shipped", "--state-dir", state.parent)
        assert log_cli("forward", "--host", daemon.address, *flags, log) == 0
        assert read(daemon.address, "shipped") == [b"one", b"two", b"three"]


def read(address: str, topic: str, cursor: Path | None = None) -> list[bytes]:
    with Reader(address, topic, cursor=cursor) as reader:
        return [message.value for message in reader]
