"""Check and repair a data directory while its daemon is stopped: `log-cli check` and `repair`.

A check reads every byte and changes nothing. A repair cuts a torn tail, with a copy in
`quarantine/`. It leaves all other damage alone unless its loss is accepted: then gap batches
replace what is lost, and the topic can be written to again. A repair that was killed can be run
again and gives the same result.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path

from logd.batch import GAP, MAX_NUMBER, ScannedBatch
from logd.errors import DataDirError
from logd.partition import Partition
from logd.repair import (
    SEALED,
    Damage,
    PartitionScan,
    RepairReport,
    cut_tail,
    fill_gaps,
    gap,
    scan_partition,
)
from logd.storage import disk
from logd.storage.checkpoint import Checkpoint, CheckpointState
from logd.storage.cursors import CURSORS, CursorFile
from logd.storage.recovery import (
    active_damages,
    known_durable,
    partition_firsts,
    read_layout,
    saved_index,
    tail_damage,
)
from logd.storage.topic_files import CHECKPOINT, HIDDEN, META, encode_meta
from logd.wire.offset_ranges import OffsetRange, count_offsets, merge

Progress = Callable[[int], object]  # receives the number of bytes read since the last call


@dataclass(slots=True)
class Findings:
    """Everything that a check found in one topic."""

    directory: Path
    report: RepairReport
    state: CheckpointState | None
    partitions: list[Partition]
    torn: PartitionScan | None  # of the newest partition, if it ends in a torn tail
    cursors: CursorFile


def topic_directories(data_dir: Path, names: list[str]) -> list[Path]:
    root = data_dir / "topics"
    if not root.is_dir():
        raise DataDirError(f"{data_dir} is not a data directory of logd: it has no topics/")
    found = sorted(
        path
        for path in root.iterdir()
        if path.is_dir() and not path.is_symlink() and not path.name.startswith(HIDDEN)
    )
    missing = set(names) - {path.name for path in found}
    if missing:
        raise DataDirError(f"{data_dir} has no topic {', '.join(sorted(missing))}")
    return [path for path in found if not names or path.name in names]


def size_of(directory: Path) -> int:
    """The bytes of the partitions of a topic."""
    total = 0
    for path in directory.glob("*.log"):
        with suppress(FileNotFoundError):  # it has just expired
            total += path.stat().st_size
    return total


def check(directory: Path, progress: Progress = lambda size: None) -> Findings:
    """Read a whole topic and verify all checksums. Changes nothing."""
    state = Checkpoint(directory / CHECKPOINT).state
    _, known, firsts, damages = read_layout(directory, state)
    partitions = [Partition.open_sealed(directory, *pair) for pair in pairwise(firsts)]
    messages = kept_bytes = since_ms = 0
    gaps: list[OffsetRange] = []

    def add(found: ScannedBatch) -> None:
        progress(found.end - found.position)
        if found.header.enc == GAP:
            gaps.append(OffsetRange(found.header.offset, found.header.next))

    for partition in partitions:
        result = _scan(partition, SEALED, since_ms, add, until=partition.next)
        since_ms = result.time_ms
        damages += tail_damage(partition, result, partition.next)
        messages += result.next - partition.first
        kept_bytes += result.end
    torn = None
    if firsts:
        active = Partition.open_sealed(directory, firsts[-1], firsts[-1])
        partitions.append(active)
        durable, epoch = known_durable(active, known), (known.began, known.since_ms)
        result = _scan(active, durable, since_ms, add, epoch=epoch)
        damages += active_damages(active, result, known)
        torn = result if result.torn and not _reaches_end(damages, active) else None
        active.next, active.max_time_ms = result.next, result.time_ms
        messages += result.next - active.first
        kept_bytes += result.end
    cursors = CursorFile.read(directory)
    damages += filter(None, [cursors.damage()])
    report = RepairReport(
        directory.name, kept_bytes, messages - count_offsets(gaps),
        cut_bytes=active.size - torn.end if torn else 0,
        cut_reason=torn.torn.reason if torn and torn.torn else "",
        damages=damages, gaps=merge(gaps),
    )  # fmt: skip
    return Findings(directory, report, state, partitions, torn, cursors)


def repair(
    directory: Path,
    *,
    accept_loss: bool,
    dry_run: bool = False,
    progress: Progress = lambda size: None,
) -> RepairReport:
    """Repair a topic as far as allowed. The report lists the remaining damage."""
    findings = check(directory, progress)
    report = findings.report
    if report.damages and not accept_loss:
        return replace(report, cut_bytes=0, cut_reason="")
    if dry_run:
        return replace(report, filled=report.damages, damages=[])
    copies = []
    if findings.torn is not None:
        active = findings.partitions[-1]
        file = Partition.open_active(directory, active.first).file
        copies.append(cut_tail(file, findings.torn.end, directory, active.path.name))
    if report.damages:
        copies += _accept_loss(findings)
    else:
        findings.cursors.make_sound(None)  # they may have a torn tail too
    return replace(report, quarantine=copies, filled=report.damages, damages=[])


def _scan(
    partition: Partition,
    safe_to: int,
    since_ms: int,
    on_batch: Callable[[ScannedBatch], None],
    until: int = MAX_NUMBER,
    epoch: tuple[int, int] = (0, 0),
) -> PartitionScan:
    file, name, known = partition.file, partition.path.name, saved_index(partition)
    return scan_partition(
        file, name, partition.first,
        known=known, safe_to=safe_to, until=until, epoch=epoch, since_ms=since_ms,
        on_batch=on_batch,
    )  # fmt: skip


def _reaches_end(damages: list[Damage], partition: Partition) -> bool:
    return any(d.file == partition.path.name and d.end == partition.size for d in damages)


def _accept_loss(findings: Findings) -> list[str]:
    """Replace damage by gaps, then write a new checkpoint and, if needed, a new meta file."""
    directory = findings.directory
    copies = findings.cursors.accept_loss() if findings.cursors.damage() else []
    in_log = [damage for damage in findings.report.damages if damage.file != CURSORS]
    if not in_log:
        return copies
    for name, damages in _by_file(in_log):
        path = directory / name
        if path.exists():
            copies += fill_gaps(path, damages)
        else:
            disk.replace(path, b"".join(map(gap, damages)))
        path.with_suffix(".index").unlink(missing_ok=True)
    if any(damage.file == META for damage in findings.report.damages):
        disk.replace(directory / META, encode_meta(secrets.token_hex(16), time.time_ns() // 10**6))
    _new_checkpoint(directory, findings.state or CheckpointState())
    return copies


def _by_file(damages: list[Damage]) -> Iterator[tuple[str, list[Damage]]]:
    in_files = sorted(d for d in damages if d.next > d.first or d.end > d.position)
    for name, group in groupby(sorted(in_files, key=lambda d: d.file), key=lambda d: d.file):
        yield name, list(group)


def _new_checkpoint(directory: Path, state: CheckpointState) -> None:
    """Record that the files are on disk as they are now."""
    firsts = partition_firsts(directory, state)
    if not firsts:
        disk.replace(directory / f"{state.first:020d}.log", b"")
        firsts = [state.first]
    active = Partition.open_active(directory, firsts[-1])
    disk.sync(active.file)
    result = _scan(active, 0, 0, lambda found: None)
    new = replace(
        state, first=firsts[0], partition=active.first, position=result.end, next=result.next,
        began=result.next, clean=False, sequence=state.sequence + 1,
    )  # fmt: skip
    disk.replace(directory / CHECKPOINT, Checkpoint.blank(new))
