"""`log-cli backup`: copy a data directory while its daemon may be running."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import exit_codes
from cli.arguments.data_directory import DataDir
from cli.arguments.topic_names import TopicNames
from cli.check import check_topics
from cli.exit_codes import UsageError
from cli.output.number_text import bytes_text
from cli.output.progress import progress
from cli.output.stdout import Quiet, ReportFormat, ReportOutput, notice, print_report
from logd.wire.text import counted

if TYPE_CHECKING:
    from logd.offline.backup import Copied

To = Annotated[
    Path, typer.Option("--to", file_okay=False, metavar="DIR", help="Directory of the backup.")
]
Check = Annotated[
    bool,
    typer.Option("--check", help="Read the complete backup afterwards, as log-cli check does."),
]


def backup(
    data_dir: DataDir,
    to: To,
    topic: TopicNames = None,
    check: Check = False,
    output: ReportOutput = ReportFormat.text,
    quiet: Quiet = False,
) -> None:
    """Back up a data directory. The daemon may be running.

    If the backup exists, only new data is copied. A backup is a data directory: it can be checked,
    read with --data-dir, and restored. Exits with 3 if a topic could not be copied or is damaged.

    \b
    log-cli backup --data-dir /var/lib/logd --to /backup/logd
    """
    copy_topics(data_dir, to, topic or [], check, output, quiet)


def copy_topics(
    source: Path, target: Path, names: list[str], check: bool, output: ReportFormat, quiet: bool
) -> None:
    """Copy, print a report, and optionally check the copy. Exits with 3 if it is not complete."""
    from logd import store
    from logd.offline.backup import back_up, to_copy_bytes, topics_of
    from logd.storage import disk

    directories, others = topics_of(source, names)
    for other in others:
        notice(f"skipping {other}: not a topic", quiet)
    _check_target(source, target)
    topics = target.absolute() / "topics"
    disk.make_directories(topics)
    lock = store.lock(target)
    total_bytes = sum(to_copy_bytes(each, topics / each.name) for each in directories)
    with progress("copying", total_bytes, quiet) as advance:
        copied = [back_up(each, topics / each.name, advance) for each in directories]
    print_report(output, map(_as_object, copied), _lines(copied))
    is_complete = not any(each.problem or each.damages for each in copied)
    if check:
        existing = [topics / each.topic for each in copied if (topics / each.topic).is_dir()]
        is_complete &= check_topics(existing, output, quiet)
    del lock
    if not is_complete:
        notice("the copy is incomplete or damaged: see the messages above", quiet)
        raise typer.Exit(exit_codes.LOSS)


def _check_target(source: Path, target: Path) -> None:
    ours, theirs = source.resolve(), target.resolve()
    if ours == theirs or ours in theirs.parents or theirs in ours.parents:
        raise UsageError(f"{target} and {source} overlap; use separate directories")
    if target.is_dir() and any(target.iterdir()) and not (target / "topics").is_dir():
        raise UsageError(f"{target} contains other files; use an empty directory")


def _lines(copied: list[Copied]) -> Iterator[str]:
    for each in copied:
        yield from (f"{each.topic}: {damage}" for damage in each.damages)
        if each.problem:
            yield f"{each.topic}: {each.problem}"
        if each.partitions:
            yield f"{each.topic}: {_copied_text(each)}"
    messages = sum(each.next - each.first for each in copied)
    new_bytes, bytes_ = sum(each.new_bytes for each in copied), sum(each.bytes for each in copied)
    yield (
        f"{counted(len(copied), 'topic')}, {counted(messages, 'message')}, {bytes_text(bytes_)};"
        f" {bytes_text(new_bytes)} new"
    )


def _copied_text(each: Copied) -> str:
    text = f"{counted(each.next - each.first, 'message')} from offset {each.first}"
    text += f" in {counted(each.partitions, 'file')}; new:"
    text += f" {counted(each.new_bytes, 'byte')} in {counted(each.new_partitions, 'new file')}"
    if each.expired_partitions:
        text += f"; {counted(each.expired_partitions, 'file')} expired"
    return text


def _as_object(each: Copied) -> dict[str, object]:
    return {
        "topic": each.topic, "first": each.first, "next": each.next,
        "messages": each.next - each.first, "partitions": each.partitions, "bytes": each.bytes,
        "new_bytes": each.new_bytes, "new_partitions": each.new_partitions,
        "expired_partitions": each.expired_partitions, "problem": each.problem or None,
        "damages": [damage._asdict() for damage in each.damages],
    }  # fmt: skip
