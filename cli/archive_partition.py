"""`log-cli archive-partition`: a delete hook. A partition goes once the archive has it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cli import spark_jobs
from cli.exit_codes import Misuse
from logd.wire.text import counted

Partition = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", exists=True, dir_okay=False, help="The partition; the daemon adds it."
    ),
]
VARIABLES = ("LOGD_TOPIC", "LOGD_FIRST", "LOGD_NEXT")


def archive_partition(
    archive: spark_jobs.Archive, file: Partition, store_options: spark_jobs.StoreOptions = None
) -> None:
    """Archive one partition file, as a delete hook.

    Exits 0 only if it is archived.

    \b
    delete-hook = ["/opt/logd/bin/log-cli", "archive-partition", "/var/archive"]
    """
    store = spark_jobs.open_archive(archive, store_options, "numpy", "pyarrow")
    from logd.archive.offset_ranges import OffsetRange
    from logd.archive.partition_file import archive_partition as archive_file
    from logd.wire.commands import checked_topic

    try:
        topic, first, next_ = (os.environ[name] for name in VARIABLES)
        range_ = OffsetRange(int(first), int(next_))
    except (KeyError, ValueError):
        raise Misuse(
            f"this is for the daemon to run, which sets {', '.join(VARIABLES)};"
            " by hand, use `log-cli archive`"
        ) from None
    done = archive_file(store, file, checked_topic(topic), range_)
    print(
        f"archived {done.topic} {done.first}..{done.next - 1}: {counted(done.read, 'message')} ="
        f" {done.already} already there + {done.written} written + {done.lost} lost;"
        f" {counted(done.files, 'file')}"
    )
