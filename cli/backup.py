"""`log-cli backup`: a copy of a data directory, made beside the daemon that uses it.

And `log-cli restore`, which is the same the other way round, into an empty directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import exit_codes
from cli.check_report import Output, Topics, print_reports
from cli.exit_codes import Misuse
from cli.message_formats import Table, json_line, notice, stdout
from cli.message_output import Quiet
from cli.numbers import bytes_text
from cli.progress import progress
from logd.wire.text import counted

if TYPE_CHECKING:
    from logd.offline.backup import Copied

Source = Annotated[
    Path,
    typer.Option("--data-dir", exists=True, file_okay=False, envvar="LOGD_DATA_DIR", metavar="DIR",
                 help="The data directory; its daemon may run."),
]  # fmt: skip
To = Annotated[
    Path, typer.Option("--to", file_okay=False, metavar="DIR", help="Where the copy is, or goes.")
]
Check = Annotated[
    bool, typer.Option("--check", help="Then read all of the copy, as log-cli check does.")
]
From = Annotated[
    Path,
    typer.Option("--from", exists=True, file_okay=False, metavar="DIR", help="The backup."),
]
NewDir = Annotated[
    Path,
    typer.Option("--data-dir", file_okay=False, envvar="LOGD_DATA_DIR", metavar="DIR",
                 help="A new data directory; nothing may be in it."),
]  # fmt: skip


def backup(
    data_dir: Source,
    to: To,
    topic: Topics = None,
    check: Check = False,
    output: Output = Table.text,
    quiet: Quiet = False,
) -> None:
    """Copy a data directory, also while its daemon runs.

    Again, it takes only what is new. The copy is a data directory: check it, read it with
    --data-dir, or restore it. Exits 3 if a topic could not be copied, or is damaged.

    \b
    log-cli backup --data-dir /var/lib/logd --to /backup/logd
    """
    is_whole = _copy(data_dir, to, topic or [], check, output, quiet)
    if not is_whole:
        raise typer.Exit(exit_codes.LOSS)


def restore(
    from_: From,
    data_dir: NewDir,
    topic: Topics = None,
    output: Output = Table.text,
    quiet: Quiet = False,
) -> None:
    """Copy a backup into a new data directory, and check it.

    Every byte is read again. Then start logd there.

    \b
    log-cli restore --from /backup/logd --data-dir /var/lib/logd
    """
    if (data_dir / "topics").is_dir() and any((data_dir / "topics").iterdir()):
        raise Misuse(f"{data_dir} has topics already; restore into an empty directory")
    is_whole = _copy(from_, data_dir, topic or [], True, output, quiet)
    if not is_whole:
        raise typer.Exit(exit_codes.LOSS)


def _copy(
    source: Path, target: Path, names: list[str], check: bool, output: Table, quiet: bool
) -> bool:
    """Copy, say what was done, check if asked. Is all of it there and sound?"""
    from logd import store
    from logd.offline import integrity
    from logd.offline.backup import back_up, to_copy_bytes, topics_of
    from logd.storage import disk

    directories, others = topics_of(source, names)
    for other in others:
        notice(f"{other} is not a topic, and is left out", quiet)
    _refuse_odd_places(source, target)
    topics = target.absolute() / "topics"
    disk.make_directories(topics)
    lock = store.lock(target)
    total_bytes = sum(to_copy_bytes(each, topics / each.name) for each in directories)
    done = []
    with progress("copying", total_bytes, quiet) as advance:
        for directory in directories:
            done.append(back_up(directory, topics / directory.name, advance))
    _print(done, output)
    sound = not any(each.problem or each.damages for each in done)
    if check:
        there = [topics / each.topic for each in done if (topics / each.topic).is_dir()]
        with progress("checking", sum(map(integrity.size_of, there)), quiet) as advance:
            reports = [integrity.check(directory, advance).report for directory in there]
        print_reports(reports, output)
        sound = sound and not any(report.damages or report.cut_bytes for report in reports)
    del lock
    if not sound:
        notice("not everything was copied, or something is damaged: see above", quiet)
    return sound


def _refuse_odd_places(source: Path, target: Path) -> None:
    ours, theirs = source.resolve(), target.resolve()
    if ours == theirs or ours in theirs.parents or theirs in ours.parents:
        raise Misuse(f"{target} and {source} lie in one another; copy to a place of its own")
    if target.is_dir() and any(target.iterdir()) and not (target / "topics").is_dir():
        raise Misuse(f"{target} has other files in it; copy to an empty directory")


def _print(done: list[Copied], output: Table) -> None:
    with stdout() as out:
        for each in done:
            if output is Table.json:
                out.write(json_line(_as_object(each)))
            else:
                out.write("".join(f"{line}\n" for line in _lines(each)).encode())
        if output is not Table.json:
            out.write(f"{_total(done)}\n".encode())


def _lines(each: Copied) -> list[str]:
    lines = [f"{each.topic}: {damage}" for damage in each.damages]
    if each.problem:
        lines.append(f"{each.topic}: {each.problem}")
    if each.partitions:
        count = each.next - each.first
        new = f"{counted(each.new_bytes, 'byte')} and {counted(each.new_partitions, 'file')}"
        line = f"{each.topic}: {counted(count, 'message')} from {each.first} on"
        line += f" in {counted(each.partitions, 'file')}; new are {new}"
        if each.expired_partitions:
            line += f"; {counted(each.expired_partitions, 'file')} expired"
        lines.append(line)
    return lines


def _total(done: list[Copied]) -> str:
    messages = sum(each.next - each.first for each in done)
    new_bytes, bytes_ = sum(each.new_bytes for each in done), sum(each.bytes for each in done)
    return (
        f"{counted(len(done), 'topic')}, {counted(messages, 'message')}, {bytes_text(bytes_)};"
        f" {bytes_text(new_bytes)} of it new"
    )


def _as_object(each: Copied) -> dict[str, object]:
    return {
        "topic": each.topic, "first": each.first, "next": each.next,
        "messages": each.next - each.first, "partitions": each.partitions, "bytes": each.bytes,
        "new_bytes": each.new_bytes, "new_partitions": each.new_partitions,
        "expired_partitions": each.expired_partitions, "problem": each.problem or None,
        "damages": [damage._asdict() for damage in each.damages],
    }  # fmt: skip
