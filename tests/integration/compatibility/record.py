"""Records dialogues, data directories and client files with the code of a given checkout.

    .venv/bin/python -m tests.integration.compatibility.record \
        --checkout DIR [NAME...]

The checkout needs its own `.venv`. The steps of each recording are kept and only its replies are
replaced. Without names, the archives are written again too; their recordings depend on them.
CONTRIBUTING.md says when recording is allowed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.integration.compatibility.dialogue import Recording
from tests.support.daemon import Daemon, running

HERE = Path(__file__).parent
RECORDINGS = HERE / "recordings"
WRITTEN = ["clean", "killed"]  # archives that `write-<name>.txt` makes
MISSING_BYTES = 10  # of the last batch, as if the kill had interrupted its write

# What the clients keep on disk. The writer ends without closing, as a killed program does.
WRITE_SPOOL = """
import os, sys
from pathlib import Path
from logd import Writer
address, directory, *batches = sys.argv[1:]
writer = Writer(address, "spooled", spool=Path(directory), connect="later")
for batch in batches:
    writer.push([word.encode() for word in batch.split()])
if batches[0] == "a":
    writer.flush()
os._exit(0)
"""
READ_TWO = """
import sys
from pathlib import Path
from logd import Client, Reader
address, file = sys.argv[1:]
with Client(address) as client:
    client.push("app", [b"one", b"two", b"three"])
with Reader(address, "app", cursor=Path(file), limit=2) as reader:
    list(reader)
"""


def load(name: str) -> Recording:
    return Recording.parse((RECORDINGS / f"{name}.txt").read_text())


@contextmanager
def started(recording: Recording, directory: Path, python: list[str]) -> Iterator[Daemon]:
    """A daemon with the settings of the recording, and its data if it has any."""
    if name := recording.settings.get("data"):
        unpack(name, directory)
    flags = recording.settings.get("daemon", "").split()
    daemon = running(directory, "--http-host", "127.0.0.1:0", *flags)
    daemon.command[:1] = python
    with daemon:
        yield daemon


def unpack(name: str, directory: Path) -> None:
    with tarfile.open(RECORDINGS / f"{name}.tar.xz") as archive:
        archive.extractall(directory, filter="data")


def pack(name: str, directory: Path, *members: str) -> None:
    with tarfile.open(RECORDINGS / f"{name}.tar.xz", "w:xz", preset=9) as archive:
        for member in members:
            archive.add(directory / member, member, filter=_without_owner)


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def record_dialogue(name: str, python: list[str]) -> None:
    recording = load(name)
    with tempfile.TemporaryDirectory() as directory:
        with started(recording, Path(directory), python) as daemon:
            text = recording.replay(daemon)
        (RECORDINGS / f"{name}.txt").write_text(text)


def record_directory(name: str, python: list[str]) -> None:
    """A data directory as the daemon leaves it."""
    recording = load(f"write-{name}")
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory)
        with started(recording, data, python) as daemon:
            recording.replay(daemon)
            daemon.kill() if name == "killed" else daemon.stop()
        if name == "killed":
            newest = daemon.log_files("torn")[-1]
            newest.write_bytes(newest.read_bytes()[:-MISSING_BYTES])
        pack(name, data, "data")


def record_damaged() -> None:
    """The clean directory with one byte changed in a sealed and one in an active partition."""
    with tempfile.TemporaryDirectory() as directory:
        unpack("clean", Path(directory))
        for topic in ("app", "other"):
            first = min((Path(directory) / "data/topics" / topic).glob("*.log"))
            content = bytearray(first.read_bytes())
            content[10] ^= 1
            first.write_bytes(content)
        pack("damaged", Path(directory), "data")


def record_clients(python: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        log, state = directory / "app.log", directory / "forward"
        log.write_text("one\ntwo\n")
        daemon = stack.enter_context(started(Recording({}, []), directory, python))

        def run(*arguments: object) -> None:
            subprocess.run([*python, *map(str, arguments)], check=True, cwd=directory)

        run("-c", READ_TWO, daemon.address, directory / "cursor")
        run("-c", WRITE_SPOOL, daemon.address, directory / "spool", "a")
        run("-m", "cli", "forward", "--host", daemon.address, "--once", "--topic", "shipped",
            "--state-dir", state, log)  # fmt: skip
        daemon.stop()
        run("-c", WRITE_SPOOL, daemon.address, directory / "spool", "b c", "d")
        snapshot = json.loads((state / "state.json").read_text())
        snapshot["sources"][0] |= {"path": "app.log", "device": 0, "inode": 0}
        (state / "state.json").write_text(json.dumps(snapshot, separators=(",", ":")))
        pack("clients", directory, "data", "cursor", "spool", "forward", "app.log")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("names", nargs="*", help="recordings; none: all, and the archives")
    arguments = parser.parse_args()
    # -P: the daemon's working directory is this checkout, whose modules must not be found first.
    python = [str(arguments.checkout.absolute() / ".venv/bin/python"), "-P"]
    if not arguments.names:
        for name in WRITTEN:
            record_directory(name, python)
        record_damaged()
        record_clients(python)
    for name in arguments.names or sorted(path.stem for path in RECORDINGS.glob("*.txt")):
        record_dialogue(name, python)
        print(name)


if __name__ == "__main__":
    main()
