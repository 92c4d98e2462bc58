"""A check, a start and reads of a damaged topic, compared with what is promised for it."""

from __future__ import annotations

from pathlib import Path

from logd.batch import split_body
from logd.errors import DamagedBatch, Faulted, LogdError
from logd.offline import integrity
from logd.storage.disk import NotCached
from logd.storage.topic_files import Opened
from logd.topic import Topic
from logd.wire.commands import Batches
from logd.wire.read_state import check as check_reply
from logd.wire.requests import At
from tests.integration.storage.promises import (
    ALL,
    Expected,
    at_check,
    at_start,
    index_fits,
    readable_to,
)
from tests.integration.storage.small_log import Files, Part, State, Stored, read_files, slots
from tests.support.topic_loop import Loop, batch_of, new_topic, push


def open_topic(directory: Path) -> tuple[Topic, Opened]:
    topic = new_topic(directory, Loop())
    return topic, topic.open()


def read(topic: Topic, offset: int, messages: int = ALL, max_bytes: int = ALL) -> Batches:
    """What a READ answers."""
    view = topic.readable
    for _ in range(100):
        try:
            plan = view.plan(view.resolve(offset), messages, max_bytes)
            data = b"".join(part.file.read(part.position, part.size) for part in plan.slices)
            return Batches(plan.offset, plan.messages, bytearray(data))
        except NotCached as cold:
            cold.warm()
    raise AssertionError("the page cache does not keep it")


def at_time(topic: Topic, time_ms: int) -> int:
    """The offset that READ @<time> starts at."""
    for _ in range(100):
        try:
            return topic.readable.resolve(At(time_ms))
        except NotCached as cold:
            cold.warm()
    raise AssertionError("the page cache does not keep it")


def accepted(reply: Batches) -> tuple[dict[int, bytes], bool]:
    """The messages that a client takes from a reply, and whether it took all of it."""
    messages: dict[int, bytes] = {}
    try:
        for found in check_reply(reply):
            split = split_body(found.body, found.header.enc)
            assert len(split) == found.header.messages
            messages |= dict(enumerate(split, found.header.offset))
    except DamagedBatch:
        return messages, False
    return messages, True


def read_one(topic: Topic, offset: int) -> bytes | str:
    """The message that a client gets at an offset, or the word that it is refused with."""
    try:
        messages, _ = accepted(read(topic, offset, 1))
    except DamagedBatch:
        return "faulted"
    except LogdError as error:
        return error.code
    return messages.get(offset, "refused by the client")


def look(directory: Path, state: State, files: Files) -> None:
    """Check, start and read a topic that was given these files; all of it must be as promised."""
    _look_at_check(directory, state, files)
    expected = at_start(state, files)
    topic, opened = open_topic(directory)
    found = [(damage.first, damage.next) for damage in opened.damages]
    assert found == expected.damages, f"damages {found}, not {expected.damages}"
    after = read_files(directory)
    if expected.damages:
        changed = [name for name in _changed(files, after) if not _is_right(state, name, after)]
        assert not changed, f"a faulted topic was changed: {changed}"
    else:
        _look_at_files(state, files, after, expected, opened)
    _look_at_reads(topic, state, files, expected)
    _look_at_indexes(directory, state, after)


def look_faulted_as_a_whole(directory: Path, state: State, files: Files) -> None:
    """Start and read a topic that has all its messages, and yet must not be written to."""
    report = integrity.check(directory).report
    assert [(damage.first, damage.next) for damage in report.damages] == [(0, 0)], "check"
    topic, opened = open_topic(directory)
    assert [(damage.first, damage.next) for damage in opened.damages] == [(0, 0)], "start"
    after = read_files(directory)
    changed = [name for name in _changed(files, after) if not _is_right(state, name, after)]
    assert not changed, f"a faulted topic was changed: {changed}"
    _look_at_reads(topic, state, files, Expected())
    pushing = push(topic, Loop(), batch_of([b"more"]))
    assert isinstance(pushing.error, Faulted), "it takes writes"


def _look_at_check(directory: Path, state: State, files: Files) -> None:
    expected = at_check(state, files)
    report = integrity.check(directory).report
    found = [(damage.first, damage.next) for damage in report.damages]
    assert found == expected.damages, f"check: damages {found}, not {expected.damages}"
    size = len(files[state.active.name])
    cut_bytes = size - expected.cut_at if expected.cut_at is not None and not found else 0
    if not found:
        assert report.cut_bytes == cut_bytes, f"check: {report.cut_bytes} torn, not {cut_bytes}"


def _look_at_indexes(directory: Path, state: State, before: Files) -> None:
    """Reading leaves an index as it is, or makes it right."""
    after = read_files(directory)
    for name in _changed(before, after):
        assert _is_right(state, name, after), f"{name} is wrong after reading"


def _is_right(state: State, name: str, after: Files) -> bool:
    """Is this the index that a sound partition should have? Then it may have been made anew."""
    part = next((part for part in state.parts if part.index_name == name), None)
    return part is not None and after[name] == part.index(sealed=part is not state.active)


def _changed(before: Files, after: Files) -> list[str]:
    names = before.keys() | after.keys()
    return sorted(name for name in names if before.get(name) != after.get(name))


def _look_at_files(
    state: State, files: Files, after: Files, expected: Expected, opened: Opened
) -> None:
    """No damage: logs as they were, but for a torn tail; indexes whole; the checkpoint moved."""
    active = state.active
    data, position = files[active.name], state.checkpoint.position
    kept = active.cut(expected.cut_at if expected.cut_at is not None else len(data))
    unclean = not state.checkpoint.clean or len(data) != position
    wanted = {**files, active.name: data[: len(kept.data)]}
    if expected.cut_at is not None and expected.cut_at < len(data):
        copy = f"quarantine/{active.first:020d}-{expected.cut_at}-{len(data)}"
        wanted[copy] = data[expected.cut_at :]
        assert opened.report is not None, "a cut without a report"
        assert opened.report.cut_bytes == len(data) - expected.cut_at, "not what was cut"
    for part in state.parts[:-1]:
        if not index_fits(part, files):
            wanted[part.index_name] = part.index(sealed=True)
    if unclean or files.get(active.index_name) != kept.index(sealed=False):
        wanted[active.index_name] = kept.index(sealed=False)
    now = after["checkpoint"]
    changed = _changed({**wanted, "checkpoint": now}, after)
    assert not changed, f"not as they should be: {changed}"
    if not unclean:
        assert now == files["checkpoint"], "a clean start wrote a checkpoint"
    else:
        _look_at_checkpoint(state, kept, now)
    assert opened.clean == (not unclean)
    assert opened.state.epoch == state.checkpoint.epoch + unclean, "the epoch"
    assert opened.state.next == kept.next, f"next is {opened.state.next}, not {kept.next}"
    for part in (*state.parts[:-1], kept):
        for batch in part.batches:
            if batch.id != "-" and batch.first not in expected.unread:
                place = opened.producers.stored(batch.id, batch.sum)
                assert place == (batch.first, len(batch.messages)), f"{batch.id} is forgotten"


def _look_at_checkpoint(state: State, kept: Part, data: bytes) -> None:
    """One of its slots says what this start has found; the other may be damaged."""
    before = state.checkpoint
    wanted = (
        f"checkpoint {before.sequence + 1} first={before.first} partition={kept.first}"
        f" position={len(kept.data)} next={kept.next} epoch={before.epoch + 1} began={kept.next}"
        " since="
    )
    said = [slot.rstrip(b"\0").decode("ascii", "replace") for slot in slots(data)]
    found = [line for line in said if line.startswith(wanted) and " clean=0 " in line]
    assert found, f"the checkpoint says {said}"


def _look_at_reads(topic: Topic, state: State, files: Files, expected: Expected) -> None:
    """Exactly the bytes of the files outside of damage, and `faulted` inside of it."""
    for stretch in _stretches(state, expected):
        first, next_ = stretch[0][1].first, stretch[-1][1].next
        on_disk = b"".join(files[part.name][b.position : b.end] for part, b in stretch)
        unread = sorted(expected.unread & {batch.first for _, batch in stretch})
        _read_exactly(topic, first, next_, on_disk, [b for _, b in stretch], unread)
        for part, batch in (stretch[0], stretch[-1]):
            own = files[part.name][batch.position : batch.end]
            _read_exactly(topic, batch.next - 1, batch.next, own, [batch], unread, messages=1)
    for first, next_ in expected.damages:
        for offset in {first, next_ - 1} if next_ > first else ():
            _read_faulted(topic, offset, first, next_)


def _read_exactly(
    topic: Topic,
    offset: int,
    next_: int,
    on_disk: bytes,
    batches: list[Stored],
    unread: list[int],
    messages: int = ALL,
) -> None:
    try:
        reply = read(topic, offset, messages)
    except (Faulted, DamagedBatch):
        assert unread, f"READ {offset} was refused"
        return
    truth = {b.first + i: message for b in batches for i, message in enumerate(b.messages)}
    taken, whole = accepted(reply)
    assert taken.items() <= truth.items(), "a wrong message was accepted"
    if not unread:
        assert bytes(reply.data) == on_disk, f"READ {offset} answers other bytes"
        assert (reply.offset, reply.messages) == (offset, next_ - offset)
        assert whole
    else:
        bad = [first for first in unread if any(b.first == first for b in batches)]
        assert not (whole and bad), "a bad batch was accepted"
        assert not taken.keys() & set(bad)


def _read_faulted(topic: Topic, offset: int, first: int, next_: int) -> None:
    try:
        answer = str(read(topic, offset))
    except LogdError as error:
        answer = str(error)
    wanted = f"faulted: first={first} next={next_} "
    assert answer.startswith(wanted), f"READ {offset}, known as damaged, answers {answer}"


def _stretches(state: State, expected: Expected) -> list[list[tuple[Part, Stored]]]:
    """Batches that can be read, in runs without damage between them."""
    stretches: list[list[tuple[Part, Stored]]] = [[]]
    for part in (*state.parts[:-1], state.active.cut(readable_to(expected))):
        for batch in part.batches:
            if any(first <= batch.first < next_ for first, next_ in expected.damages):
                if stretches[-1]:
                    stretches.append([])
            else:
                stretches[-1].append((part, batch))
    return [stretch for stretch in stretches if stretch]
