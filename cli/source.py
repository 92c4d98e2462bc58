"""Where messages and counters come from: a daemon, or with --data-dir the files it left.

The commands ask for a reader or a list and do not care which of the two answers.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import connection_options
from cli.exit_codes import Misuse, OutputGone
from cli.follow import wait_while_read
from cli.message_formats import notice, stdout

if TYPE_CHECKING:
    from logd.client.reader import Reader
    from logd.client.topics_reader import TopicsReader
    from logd.offline.reader import DirectoryReader
    from logd.wire.commands import TopicInfo
    from logd.wire.read_state import Gap, Rewind

LOOK_MS = 1000  # between two looks whether a topic exists
PATIENCE_S = 10.0  # with a daemon that went away in the middle of a read

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
        from logd.client.reader import Reader

        address = connection_options.address(ctx, host)
        place |= _patience(follow, quiet)
        return Reader(address, topic, follow=follow, on_gap=on_gap, **place)
    refuse_both(host, data_dir)
    if follow:
        raise Misuse("files do not wait: leave out --forever, or ask the daemon without --data-dir")
    from logd.offline.reader import DirectoryReader

    files = DirectoryReader(data_dir, topic, on_gap=on_gap, **place)
    if not say_in_use(data_dir, quiet) and files.torn:
        notice(f"{files.torn}; the next start of the daemon sets them aside", quiet)
    return files


def several(
    ctx: typer.Context,
    names: list[str],
    host: str | None,
    merge: str,
    follow: bool,
    quiet: bool,
    **place: Any,
) -> TopicsReader:
    from logd.client.topics_reader import TopicsReader

    if merge not in ("time", "arrival"):
        raise Misuse("--merge is time or arrival")
    order: Any = merge
    return TopicsReader(
        connection_options.address(ctx, host), names, merge=order, follow=follow,
        on_gap=lambda gap: notice(str(gap), quiet), **_patience(follow, quiet), **place,
    )  # fmt: skip


def say_missing(reader: TopicsReader, names: list[str], follow: bool, quiet: bool) -> None:
    """Name what matches no topic; a follower goes on looking for it."""
    from fnmatch import fnmatchcase

    for name in names:
        if not any(fnmatchcase(topic, name) for topic in reader.topics):
            waiting = " yet; waiting for one" if follow else ""
            notice(f"no topic matches {name}{waiting}", quiet)


def wait_for_topic(
    ctx: typer.Context, topic: str, host: str | None, until_ms: int | None, quiet: bool
) -> bool:
    """For a follower: wait until the topic exists. False if it did from the start.

    It ends the command when the time `until_ms` comes, or when nobody reads the output any more.
    """
    from logd.wire.addresses import ConnectionLost

    if _exists(ctx, topic, host):
        return False
    notice(f"no topic {topic} yet; waiting for its first message", quiet)
    with stdout() as out:
        while True:
            now_ms = time.time_ns() // 1_000_000
            if until_ms is not None and now_ms >= until_ms:
                raise typer.Exit(0)
            look_ms = now_ms + LOOK_MS if until_ms is None else min(until_ms, now_ms + LOOK_MS)
            if not wait_while_read(out.fileno(), look_ms):
                raise OutputGone
            try:
                if _exists(ctx, topic, host):
                    return True
            except ConnectionLost as error:
                notice(f"{error}; trying again", quiet)


def from_first(place: dict[str, Any]) -> dict[str, Any]:
    """The place where to start in a topic that was waited for: all its messages are new."""
    is_relative = place.get("tail") is not None or place.get("start") == "next"
    return {"start": "first", "tail": None} if is_relative else {}


def _exists(ctx: typer.Context, topic: str, host: str | None) -> bool:
    from logd.errors import NotFound

    with connection_options.client(ctx, host) as client:
        try:
            client.stats(topic)
        except NotFound:
            return False
    return True


def is_glob(name: str) -> bool:
    return not set(name).isdisjoint("*?[")


def _patience(follow: bool, quiet: bool) -> dict[str, Any]:
    """A follower waits for a daemon that is away for as long as it takes, and says so."""

    def on_trouble(error: Exception) -> None:
        notice(f"{error}; trying again", quiet)

    return {"patience_s": None if follow else PATIENCE_S, "on_trouble": on_trouble}


def topics(
    ctx: typer.Context, glob: str, *, host: str | None, data_dir: Path | None, quiet: bool
) -> list[TopicInfo]:
    if data_dir is None:
        with connection_options.client(ctx, host) as client:
            return client.topics(glob)
    refuse_both(host, data_dir)
    say_in_use(data_dir, quiet)
    from logd.offline import reader

    return reader.topics(data_dir, glob)


def stats(
    ctx: typer.Context, topic: str | None, *, host: str | None, data_dir: Path | None, quiet: bool
) -> dict[str, str]:
    if data_dir is None:
        with connection_options.client(ctx, host) as client:
            return client.stats(topic)
    refuse_both(host, data_dir)
    say_in_use(data_dir, quiet)
    from logd.offline import reader

    return reader.stats(data_dir, topic)


def refuse_both(host: str | None, data_dir: Path | None) -> None:
    if host is not None and data_dir is not None:
        raise Misuse("give --host or --data-dir, not both")


def say_in_use(data_dir: Path, quiet: bool) -> bool:
    from logd.offline.reader import in_use

    used = in_use(data_dir)
    if used:
        notice(f"a daemon is using {data_dir}; this is what its files hold at the moment", quiet)
    return used
