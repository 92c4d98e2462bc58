"""`log-cli archive-partition`: a delete hook that archives a partition before it is deleted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cli.arguments import spark_jobs
from cli.exit_codes import UsageError
from logd.wire.text import counted

Partition = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", exists=True, dir_okay=False, help="Partition file; added by the daemon."
    ),
]
VARIABLES = ("LOGD_TOPIC", "LOGD_FIRST", "LOGD_NEXT")


def archive_partition(
    archive: spark_jobs.Archive, file: Partition, store_options: spark_jobs.StoreOptions = None
) -> None:
    """Archive one partition file. For use as a delete hook of the daemon.

    Exits with 0 only if the partition is in the archive.

    \b
    delete-hook = ["/opt/logd/bin/log-cli", "archive-partition", "/var/archive"]
    """
    store = spark_jobs.open_archive(archive, store_options, "numpy", "pyarrow")
    from logd.archive.partition_file import archive_partition as archive_file
    from logd.wire.commands import checked_topic
    from logd.wire.offset_ranges import OffsetRange

    try:
        topic, first, next_ = (os.environ[name] for name in VARIABLES)
        range_ = OffsetRange(int(first), int(next_))
    except (KeyError, ValueError):
        raise UsageError(
            f"this command is run by the daemon, which sets {', '.join(VARIABLES)};"
            " use `log-cli archive` instead"
        ) from None
    done = archive_file(store, file, checked_topic(topic), range_)
    print(
        f"archived {done.topic} {done.first}..{done.next - 1}: {counted(done.read, 'message')},"
        f" {done.already} archived before, {done.written} written, {done.lost} lost;"
        f" {counted(done.files, 'file')}"
    )
