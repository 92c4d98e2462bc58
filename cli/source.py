"""Where messages and counters come from: a daemon, or with --data-dir the files it left.

The commands ask for a reader or a list and do not care which of the two answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import connect
from cli.failures import Misuse
from cli.output import notice

if TYPE_CHECKING:
    from logd.commands import TopicInfo
    from logd.offline_reader import DirectoryReader
    from logd.reader import Reader
    from logd.reading import Gap, Rewind

# Without LOGD_DATA_DIR: where that is set for the daemon, a read should still ask the daemon.
Files = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        exists=True,
        file_okay=False,
        metavar="DIR",
        help="Read the files in there, without a daemon; changes none of them.",
    ),
]


def reader(
    ctx: typer.Context,
    topic: str,
    *,
    host: str | None,
    data_dir: Path | None,
    follow: bool,
    quiet: bool,
    **place: Any,
) -> Reader | DirectoryReader:
    def on_gap(gap: Gap | Rewind) -> None:
        notice(str(gap), quiet)

    if data_dir is None:
        from logd.reader import Reader

        address = connect.address(ctx, host)
        return Reader(address, topic, follow=follow, on_gap=on_gap, **place)
    refuse_both(host, data_dir)
    if follow:
        raise Misuse("files do not wait: leave out --forever, or ask the daemon without --data-dir")
    from logd.offline_reader import DirectoryReader

    files = DirectoryReader(data_dir, topic, on_gap=on_gap, **place)
    if not say_in_use(data_dir, quiet) and files.torn:
        notice(f"{files.torn}; the next start of the daemon sets them aside", quiet)
    return files


def topics(
    ctx: typer.Context, glob: str, *, host: str | None, data_dir: Path | None, quiet: bool
) -> list[TopicInfo]:
    if data_dir is None:
        with connect.client(ctx, host) as client:
            return client.topics(glob)
    refuse_both(host, data_dir)
    say_in_use(data_dir, quiet)
    from logd import offline_reader

    return offline_reader.topics(data_dir, glob)


def stats(
    ctx: typer.Context, topic: str | None, *, host: str | None, data_dir: Path | None, quiet: bool
) -> dict[str, str]:
    if data_dir is None:
        with connect.client(ctx, host) as client:
            return client.stats(topic)
    refuse_both(host, data_dir)
    say_in_use(data_dir, quiet)
    from logd import offline_reader

    return offline_reader.stats(data_dir, topic)


def refuse_both(host: str | None, data_dir: Path | None) -> None:
    if host is not None and data_dir is not None:
        raise Misuse("give --host or --data-dir, not both")


def say_in_use(data_dir: Path, quiet: bool) -> bool:
    from logd.offline_reader import in_use

    used = in_use(data_dir)
    if used:
        notice(f"a daemon is using {data_dir}; this is what its files hold at the moment", quiet)
    return used
