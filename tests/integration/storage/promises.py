"""What the design promises for a damaged log, worked out from the model of what was written.

The rules, for one file: a batch is bad if its header is not what was written, if it is not all
there, or, where bodies are read, if its body is not what was written. A bad batch of the newest
partition at or behind the checkpoint begins a torn tail. Any other is damage, up to the next batch
that the index lists and that is still there, or to the end of what is known to have been written.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.integration.storage.small_log import Files, Part, State, Stored

ALL = 1 << 40
Offsets = tuple[int, int]


@dataclass
class Expected:
    """What must be found. Positions are in the newest partition."""

    damages: list[Offsets] = field(default_factory=list)
    cut_at: int | None = None  # where a torn tail begins
    ends_at: int = ALL  # where damage begins behind which nothing can be found any more
    unread: set[int] = field(default_factory=set)  # first offsets of bad batches nobody looked at


def is_bad(batch: Stored, part: Part, data: bytes, bodies_from: int) -> bool:
    """Is this batch not what it was, as far as somebody looks who reads bodies from there on?"""
    looked_at = slice(batch.position, batch.end if batch.position >= bodies_from else batch.body)
    return len(data) < batch.end or data[looked_at] != part.data[looked_at]


def at_check(state: State, files: Files) -> Expected:
    """Everything is read."""
    expected = Expected()
    for part in state.parts:
        _survey(state, part, files, expected, bodies_from=0)
    return expected


def at_start(state: State, files: Files) -> Expected:
    """A sealed partition is read only if its index does not end as the file does."""
    expected = Expected()
    for part in state.parts[:-1]:
        if index_fits(part, files):
            _unread(part, files[part.name], expected)
        else:
            _survey(state, part, files, expected, bodies_from=ALL)
    part, checkpoint = state.active, state.checkpoint
    data = files[part.name]
    clean = checkpoint.clean and checkpoint.position == len(data)
    index_is_whole = files.get(part.index_name) == part.index(sealed=False)
    listed = [b for b in state.listed(part) if b.position < len(data)] if index_is_whole else []
    start = listed[-1].position if clean and listed else 0
    position = checkpoint.position if checkpoint.partition == part.first else 0
    _survey(state, part, files, expected, bodies_from=position, start=start)
    _unread(part.cut(readable_to(expected)), data, expected)
    return expected


def readable_to(expected: Expected) -> int:
    return expected.ends_at if expected.cut_at is None else expected.cut_at


def index_fits(part: Part, files: Files) -> bool:
    closing = part.index(sealed=True)[-32:]
    same_size = len(files[part.name]) == len(part.data)
    return same_size and files.get(part.index_name, b"")[-32:] == closing


def _unread(part: Part, data: bytes, expected: Expected) -> None:
    """Bad batches that are in no damage and behind no cut."""
    for batch in part.batches:
        known = any(first <= batch.first < next_ for first, next_ in expected.damages)
        if is_bad(batch, part, data, 0) and not known:
            expected.unread.add(batch.first)


def _survey(
    state: State, part: Part, files: Files, expected: Expected, bodies_from: int, start: int = 0
) -> None:
    data, checkpoint = files[part.name], state.checkpoint
    is_active = part is state.active
    durable_to = checkpoint.position if part.first == checkpoint.partition else 0
    known_next = checkpoint.next if is_active else part.next
    listed = _still_listed(state, part, files)
    while True:
        bad = next(
            (b for b in part.batches if b.position >= start and is_bad(b, part, data, bodies_from)),
            None,
        )
        if bad is None:
            if len(data) > len(part.data) and is_active:
                expected.cut_at = len(part.data)
            elif len(data) > len(part.data):
                expected.damages.append((part.next, part.next))
            return
        if is_active and bad.position >= durable_to:
            expected.cut_at = bad.position
            return
        resume = next((b for b in listed if b.position > bad.position), None)
        if resume is None:
            expected.damages.append((bad.first, known_next))
            if is_active:
                expected.ends_at = bad.position
            return
        expected.damages.append((bad.first, resume.first))
        start = resume.position


def _still_listed(state: State, part: Part, files: Files) -> list[Stored]:
    """Batches that the index file lists by a sound entry, and whose header is still there."""
    data, index = files[part.name], files.get(part.index_name, b"")
    entries = {index[i : i + 32] for i in range(0, len(index) - 31, 32)}
    whole = part.index(sealed=True)
    positions = {
        int.from_bytes(whole[i + 8 : i + 16], "little")
        for i in range(0, len(whole), 32)
        if whole[i : i + 32] in entries
    }
    return [
        batch
        for batch in part.batches
        if batch.position in positions
        and data[batch.position : batch.body] == part.data[batch.position : batch.body]
    ]
