"""`log-cli restore`: copy a backup into a new data directory, and check every byte of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.arguments.topic_names import TopicNames
from cli.backup import copy_topics
from cli.exit_codes import UsageError
from cli.output.stdout import Quiet, ReportFormat, ReportOutput

From = Annotated[
    Path,
    typer.Option("--from", exists=True, file_okay=False, metavar="DIR",
                 help="Directory of the backup."),
]  # fmt: skip
NewDataDir = Annotated[
    Path,
    typer.Option("--data-dir", file_okay=False, envvar="LOGD_DATA_DIR", metavar="DIR",
                 help="New data directory; it must not contain topics."),
]  # fmt: skip


def restore(
    from_: From,
    data_dir: NewDataDir,
    topic: TopicNames = None,
    output: ReportOutput = ReportFormat.text,
    quiet: Quiet = False,
) -> None:
    """Restore a backup into a new data directory.

    The restored files are checked completely. Afterwards, start logd with this data directory.
    Exits with 3 if data is missing or damaged.

    \b
    log-cli restore --from /backup/logd --data-dir /var/lib/logd
    """
    if (data_dir / "topics").is_dir() and any((data_dir / "topics").iterdir()):
        raise UsageError(f"{data_dir} already contains topics; restore into an empty directory")
    copy_topics(from_, data_dir, topic or [], True, output, quiet)
