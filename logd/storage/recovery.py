"""Open the files of a topic at the start, and recover them after a crash.

After a clean stop only the last batches of the newest partition are read. Otherwise that partition
is synced, its page cache is dropped, and everything after the checkpoint is checked; a torn tail is
moved to quarantine. Anything else that is inconsistent is damage: the topic opens with a list of
it, can be read around it, and cannot be written to. An I/O or permission error stops the start
without changes. Blocks.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from logd.batch import MAX_HEADER_BYTES, MAX_NUMBER, Header, parse_header, scan
from logd.errors import DamagedBatch, DataDirError
from logd.partition import Partition
from logd.repair import SEALED, Damage, PartitionScan, RepairReport, cut_tail, scan_partition
from logd.storage import disk, topic_files
from logd.storage.checkpoint import Checkpoint, CheckpointState
from logd.storage.cursors import CursorFile
from logd.storage.disk import NO_SPACE, File
from logd.storage.index import ENTRY_BYTES, BadIndex, Index, IndexEntry
from logd.storage.producers import Producers
from logd.storage.topic_files import CHECKPOINT, FORMAT, META, Opened, meta_sum

_FILE_NAME = re.compile(r"([0-9]{20})\.(log|ids)")


def open_topic(name: str, directory: Path) -> Opened:
    """Open an existing topic."""
    disk.refuse_link(directory)
    checkpoint = Checkpoint(directory / CHECKPOINT)
    topic_id, state, firsts, damages = read_layout(directory, checkpoint.state)
    if not damages:
        _remove_expired(directory, state)
    cursors = CursorFile.read(directory)
    sealed = []
    for first, next_ in pairwise(firsts):
        partition, found = _open_sealed(directory, first, next_)
        sealed.append(partition)
        damages += found
    if not firsts:
        cursors.make_sound(None)
        return Opened(
            topic_id, [], checkpoint, Producers(), 0, state, True, None, cursors, tuple(damages)
        )
    active = Partition.open_active(directory, firsts[-1])
    clean = state.clean and (state.partition, state.position) == (active.first, active.file.size())
    if not clean:
        disk.sync(active.file)
        disk.drop_cache(active.file)
    result, found = read_active(active, state, clean)
    damages += found
    producers = _load_producers(directory, sealed, active)  # it may fail: nothing is changed yet
    report = None
    if not damages:
        report, damages = _make_sound(name, active, result, clean)
    time_ms = active.max_time_ms or max((p.max_time_ms for p in sealed[-1:]), default=0)
    if not clean and not damages:
        state = _next_epoch(state, active, time_ms)
        checkpoint.write(state, synced=True)
    cursors.make_sound(None if damages else active.next)
    return Opened(
        topic_id, [*sealed, active], checkpoint, producers, time_ms, state, clean, report, cursors,
        tuple(damages),
    )  # fmt: skip


def _next_epoch(state: CheckpointState, active: Partition, time_ms: int) -> CheckpointState:
    """Start an epoch: the log is on disk as it is, and later batches are not older than now."""
    now_ms = max(time.time_ns() // 1_000_000, time_ms)
    return CheckpointState(
        state.first, active.first, active.size, active.next, state.epoch + 1, active.next, now_ms,
        clean=False,
    )  # fmt: skip


def read_layout(
    directory: Path, state: CheckpointState | None
) -> tuple[str, CheckpointState, list[int], list[Damage]]:
    """The id of a topic, its checkpoint, the first offsets of its partitions, and their damage."""
    topic_id, damages = read_meta(directory)
    if state is None:
        damages.append(Damage(0, 0, CHECKPOINT, 0, 0, "neither of its slots is valid"))
        state = CheckpointState(clean=False)
    firsts = partition_firsts(directory, state)
    return topic_id, state, firsts, damages + _missing_files(firsts, state)


def read_meta(directory: Path) -> tuple[str, list[Damage]]:
    try:
        content = json.loads(File(directory / META).read_waiting(0, 1 << 16))
        sound = content.pop("sum") == meta_sum(content)
        format_, topic_id = content["format"], str(content.get("id"))
    except FileNotFoundError:
        return "", [Damage(0, 0, META, 0, 0, "it is missing")]
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        sound = False
    if not sound:
        return "", [Damage(0, 0, META, 0, 0, "it does not match its sum")]
    if format_ != FORMAT:
        raise DataDirError(f"{directory} has format {format_}; use the logd that wrote it")
    return topic_id, []


def partition_firsts(directory: Path, state: CheckpointState) -> list[int]:
    """First offsets of the partitions that have not expired.

    Those before `first` have expired if a partition begins there; if none does, the checkpoint is
    wrong.
    """
    names = [match for match in map(_FILE_NAME.fullmatch, os.listdir(directory)) if match]
    firsts = sorted(int(match[1]) for match in names if match[2] == "log")
    lowest = state.first if state.first in firsts else 0
    return [first for first in firsts if lowest <= first <= MAX_NUMBER]


def _remove_expired(directory: Path, state: CheckpointState) -> None:
    """Delete expired partitions that were left by a crash."""
    names = [match for match in map(_FILE_NAME.fullmatch, os.listdir(directory)) if match]
    expired = {int(match[1]) for match in names if int(match[1]) < state.first}
    for first in sorted(expired):
        topic_files.remove(Partition(directory, first))
    topic_files.remove_old_ids(directory, state.first)


def _missing_files(firsts: list[int], state: CheckpointState) -> list[Damage]:
    """Damage at the beginning of the log, according to the checkpoint."""
    if firsts and firsts[0] == state.first:
        return []
    if firsts and firsts[0] < state.first:
        reason = f"no partition begins at its first offset, {state.first}"
        return [Damage(0, 0, CHECKPOINT, 0, 0, reason)]
    next_, name = firsts[0] if firsts else state.next, f"{state.first:020d}.log"
    return [Damage(state.first, next_, name, 0, 0, "the file is missing")]


def _open_sealed(directory: Path, first: int, next_: int) -> tuple[Partition, list[Damage]]:
    """A partition that must end where the next begins. Reads it if the index does not show that."""
    partition = Partition.open_sealed(directory, first, next_)
    index, damages = read_sealed(partition)
    if index is not None and not damages:
        disk.replace_if_room(partition.index_path, index.encoded())
    return partition, damages


def read_sealed(partition: Partition) -> tuple[Index | None, list[Damage]]:
    """The damage of a sealed partition, and the right index if its index is wrong.

    Changes no file.
    """
    closing = closing_entry(partition)
    if partition.size and closing[:2] == (partition.next, partition.size):
        partition.max_time_ms = closing.time_ms
        return None, []
    file, name, known = partition.file, partition.path.name, saved_index(partition)
    result = scan_partition(
        file, name, partition.first, known=known, until=partition.next, bodies=False
    )
    partition.max_time_ms = result.time_ms
    damages = tail_damage(partition, result, partition.next)
    if damages:
        partition.use_partial_index(result.index, result.end)
    else:
        result.index.append(IndexEntry(partition.next, partition.size, result.time_ms))
    return result.index, damages


def tail_damage(partition: Partition, result: PartitionScan, next_: int) -> list[Damage]:
    """The damage of a sealed partition, including messages missing at its end."""
    if result.torn is None and result.next == next_:
        return result.damages
    reason = result.torn.reason if result.torn else "the next file starts at another offset"
    size = partition.file.size()
    lost = Damage(result.next, next_, partition.path.name, result.end, size, reason, result.time_ms)
    return [*result.damages, lost]


def closing_entry(partition: Partition) -> IndexEntry:
    """The last entry of the index file, or an entry that matches nothing."""
    try:
        file = File(partition.index_path)
        size = file.size()
        return Index(bytearray(file.read_waiting(size - ENTRY_BYTES, ENTRY_BYTES))).entry(0)
    except (OSError, BadIndex):
        return IndexEntry(-1, -1, -1)


def saved_index(partition: Partition) -> Index | None:
    """The index file, which may be damaged; None if there is none."""
    data = _content(partition.index_path)
    return None if data is None else Index.salvaged(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES])


def read_active(
    active: Partition, state: CheckpointState, clean: bool
) -> tuple[PartitionScan, list[Damage]]:
    """Read the newest partition as far as needed. Changes no file."""
    file, known = active.file, saved_index(active)
    start = _last_entry(known, active) if clean else None
    result = scan_partition(
        file, active.path.name, active.first,
        known=known, safe_to=known_durable(active, state), epoch=(state.began, state.since_ms),
        bodies=False, start=start,
    )  # fmt: skip
    active.load(result.index, result.end, result.next, result.time_ms)
    return result, active_damages(active, result, state)


def _make_sound(
    name: str, active: Partition, result: PartitionScan, clean: bool
) -> tuple[RepairReport | None, list[Damage]]:
    """Cut a torn tail, and save the index if its file is wrong."""
    report = None if clean else RepairReport(name, result.end, result.next - active.first)
    damages: list[Damage] = []
    if result.torn:
        report, damages = _cut(name, active, result)
    index = result.index.encoded()
    if not damages and _content(active.index_path) != index:
        disk.replace_if_room(active.index_path, index)
    return report, damages


def _content(path: Path) -> bytes | None:
    try:
        file = File(path)
    except FileNotFoundError:
        return None
    return file.read_waiting(0, file.size())


def known_durable(active: Partition, state: CheckpointState) -> int:
    """Up to which position the newest partition is on disk, according to the checkpoint."""
    if state.partition == active.first:
        return state.position
    return 0 if state.partition < active.first else SEALED


def active_damages(
    active: Partition, result: PartitionScan, state: CheckpointState
) -> list[Damage]:
    """Damage of the newest partition to messages that were on disk."""
    if result.next >= state.next:
        return result.damages
    reason = result.torn.reason if result.torn else "shorter than the checkpoint says"
    name, size = active.path.name, active.file.size()
    lost = Damage(result.next, state.next, name, result.end, size, reason, result.time_ms)
    return [*result.damages, lost]


def _cut(name: str, active: Partition, result: PartitionScan) -> tuple[RepairReport, list[Damage]]:
    assert result.torn is not None
    file_name, size = active.path.name, active.file.size()
    try:
        copy = cut_tail(active.file, result.end, active.path.parent, file_name)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        reason = f"no room to set the torn tail aside: {error.strerror}"
        return RepairReport(name), [
            Damage(result.next, result.next, file_name, result.end, size, reason)
        ]
    kept = result.next - active.first
    return RepairReport(name, result.end, kept, size - result.end, result.torn.reason, [copy]), []


def _last_entry(known: Index | None, active: Partition) -> IndexEntry | None:
    """Where to start reading after a clean stop, if the saved index is valid."""
    try:
        if known is None or known.entry(0)[:2] != (active.first, 0):
            return None
        for i in range(len(known)):
            known.entry(i)
        last = known.entry(len(known) - 1)
    except BadIndex:
        return None
    header = parse_header(active.file.read_waiting(last.position, MAX_HEADER_BYTES))
    return last if header and header.offset == last.offset else None


# -- producers ----------------------------------------------------------------------------------


def _load_producers(directory: Path, sealed: list[Partition], active: Partition) -> Producers:
    """The newest saved producers, updated from the partitions after them."""
    names = sorted(os.listdir(directory), reverse=True)
    producers, known_to = Producers(), 0
    for name in filter(_FILE_NAME.fullmatch, names):
        content = _content(directory / name) if name.endswith(".ids") else None
        saved = Producers.decode(content) if content is not None else None
        if saved is not None and saved[1] <= active.next:
            producers, known_to = saved[0], saved[1]
            break
    for partition in [*sealed, active]:
        if partition.next > known_to:
            for header in _headers(partition):
                if header.offset >= known_to:
                    producers.note(header.id, header.offset, header.messages, header.sum)
    return producers


def _headers(partition: Partition) -> Iterator[Header]:
    """All headers up to the first damage; there may be millions."""
    try:
        for found in scan(partition.file.read_waiting, 0, partition.size, bodies=False):
            yield found.header
    except DamagedBatch:
        pass  # already reported when the partition was opened
