"""The --data-dir option of the commands that work on files, and a run over the topics in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.output.progress import Advance, progress

if TYPE_CHECKING:
    from logd.repair import RepairReport

DataDir = Annotated[
    Path,
    typer.Option("--data-dir", exists=True, file_okay=False, envvar="LOGD_DATA_DIR", metavar="DIR",
                 help="Data directory."),
]  # fmt: skip
# Without envvar: if it is set for the daemon, a read should still ask the daemon.
OfflineDataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", exists=True, file_okay=False, metavar="DIR",
                 help="Read the files in this data directory instead of asking a daemon."),
]  # fmt: skip


@contextmanager
def locked_topics(data_dir: Path, names: list[str] | None) -> Iterator[list[Path]]:
    """The directories of these topics, by default all. No daemon can start inside the block."""
    from logd import store
    from logd.offline.integrity import topic_directories

    directories = topic_directories(data_dir, names or [])
    lock = store.lock(data_dir)
    yield directories
    del lock


def run_on_topics(
    what: str, directories: list[Path], quiet: bool, work: Callable[[Path, Advance], RepairReport]
) -> list[RepairReport]:
    """The report on each topic directory, with a progress bar over all their bytes."""
    from logd.offline import integrity

    total_bytes = sum(map(integrity.size_of, directories))
    with progress(what, total_bytes, quiet) as advance:
        return [work(directory, advance) for directory in directories]
