"""One partition against a list that is walked: every offset, every time, every boundary."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from logd.batch import Buffer, scan
from logd.errors import DamagedBatch
from logd.partition import Partition
from logd.storage import disk
from logd.storage.disk import File
from logd.storage.index import ENTRY_BYTES, IndexEntry
from tests.unit.logs import LARGE, SMALL, Filled, Shape, Written, active, append, seal, sealed

Make = Callable[[Path, Sequence[Shape], int], Filled]
FIRSTS = [0, 1_000_000_007]


@pytest.fixture(params=[active, sealed], ids=["active", "sealed"])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


@pytest.mark.parametrize("first", FIRSTS)
@pytest.mark.parametrize("shapes", [SMALL, LARGE], ids=["small", "large"])
def test_every_offset(tmp_path: Path, make: Make, shapes: list[Shape], first: int) -> None:
    partition, written = make(tmp_path, shapes, first)
    assert (partition.first, partition.next) == (first, written[-1].next)
    assert partition.size == written[-1].end == partition.path.stat().st_size
    for batch in written:
        for offset in range(batch.offset, batch.next):
            assert partition.position_of(offset) == batch.position
            found = partition.holding(offset)
            assert (found.position, found.end) == (batch.position, batch.end)
            assert (found.header.offset, found.header.next) == (batch.offset, batch.next)


@pytest.mark.parametrize("shapes", [SMALL, LARGE], ids=["small", "large"])
def test_every_time(tmp_path: Path, make: Make, shapes: list[Shape]) -> None:
    partition, written = make(tmp_path, shapes, 0)
    oldest, newest = written[0].time_ms, written[-1].time_ms
    assert (partition.min_time_ms, partition.max_time_ms) == (oldest, newest)
    for time_ms in range(oldest - 2, newest + 3):
        found = partition.since(time_ms)
        expected = next((batch for batch in written if batch.time_ms >= time_ms), None)
        assert (found and found.position) == (expected and expected.position)


def walked_boundary(written: list[Written], start: int, limit: int) -> tuple[int, int]:
    fitting = [b for b in written if b.position == start or (start < b.position and b.end <= limit)]
    return fitting[-1].end, fitting[-1].next


def test_a_boundary_at_every_position(tmp_path: Path, make: Make) -> None:
    partition, written = make(tmp_path, SMALL, 7)
    for start in (batch.position for batch in written):
        for limit in range(start + 1, partition.size + 2):
            assert partition.boundary(start, limit) == walked_boundary(written, start, limit)


def test_boundaries_across_index_entries(tmp_path: Path, make: Make) -> None:
    partition, written = make(tmp_path, LARGE, 0)
    assert len(partition.index) > 5
    for start in (batch.position for batch in written):
        edges = {batch.end + d for batch in written for d in (-1, 0, 1) if batch.end + d > start}
        for limit in {*edges, start + 1}:
            assert partition.boundary(start, limit) == walked_boundary(written, start, limit)


def test_more_batches_than_are_kept_at_hand(tmp_path: Path) -> None:
    partition, written = active(tmp_path, [Shape(2, 0)] * 9000)
    for batch in random.Random(1).sample(written, 300):
        assert partition.position_of(batch.offset) == batch.position
        assert partition.position_of(batch.offset + 1) == batch.position


# -- writing ------------------------------------------------------------------------------------


def sound_batches(partition: Partition) -> int:
    read = File(partition.path).read_waiting
    return len(list(scan(read, 0, partition.path.stat().st_size, expect=partition.first)))


def test_a_write_that_fails_half_way_counts_as_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition, written = active(tmp_path, SMALL)
    before = (partition.size, partition.next, partition.max_time_ms, partition.index.encoded())

    def half(file: File, buffers: Sequence[Buffer], position: int) -> None:
        whole(file, [bytes(buffers[0])[:20]], position)
        raise OSError(errno.ENOSPC, "no space")

    whole = disk.write_at
    monkeypatch.setattr(disk, "write_at", half)
    with pytest.raises(OSError, match="no space"):
        append(partition, Shape(3))
    assert before == (
        partition.size, partition.next, partition.max_time_ms, partition.index.encoded()
    )  # fmt: skip
    assert partition.path.stat().st_size == partition.size + 20
    partition.truncate()
    assert partition.path.stat().st_size == partition.size
    monkeypatch.undo()
    again = append(partition, Shape(3))
    assert again.position == written[-1].end
    assert partition.holding(again.offset).position == again.position
    assert sound_batches(partition) == len(written) + 1


def test_many_buffers_in_one_append(tmp_path: Path) -> None:
    """More than one call to the kernel takes, which is 1,024."""
    file = disk.create(tmp_path / "file")
    disk.write_at(file, [b"%04d" % i for i in range(3000)], 5)
    assert (tmp_path / "file").read_bytes()[5:] == b"".join(b"%04d" % i for i in range(3000))


def test_files_are_private_and_links_not_followed(tmp_path: Path) -> None:
    partition, _ = active(tmp_path, SMALL)
    assert partition.path.stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to(partition.path)
    with pytest.raises(OSError, match="link"):
        File(tmp_path / "link")
    with pytest.raises(FileExistsError):
        disk.create(partition.path)


# -- the index file -----------------------------------------------------------------------------


def test_the_index_file_of_a_sealed_partition(tmp_path: Path) -> None:
    partition, written = sealed(tmp_path, LARGE)
    data = partition.index_path.read_bytes()
    last = written[-1]
    assert data.endswith(IndexEntry(last.next, last.end, last.time_ms).encode())
    listed: list[Written] = []
    for batch in written:
        if not listed or batch.position - listed[-1].position >= 4096:
            listed.append(batch)
    expected = [IndexEntry(b.offset, b.position, b.time_ms).encode() for b in listed]
    assert data == b"".join(expected) + data[-ENTRY_BYTES:]


def test_saving_the_index_bit_by_bit_gives_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "once").mkdir()
    (tmp_path / "often").mkdir()
    once, _ = active(tmp_path / "once", LARGE)
    often, _ = active(tmp_path / "often", [])
    for shape in LARGE:
        append(often, shape)
        often.save_index()
    seal(once)
    seal(often)
    assert once.index_path.read_bytes() == often.index_path.read_bytes()


def another(index: bytes, tmp_path: Path) -> bytes:
    (tmp_path / "another").mkdir()
    return sealed(tmp_path / "another", LARGE[7:])[0].index_path.read_bytes()


SPOILED: dict[str, Callable[[bytes, Path], bytes | None]] = {
    "missing": lambda index, _: None,
    "empty": lambda index, _: b"",
    "one byte": lambda index, _: b"x",
    "one byte short": lambda index, _: index[:-1],
    "one entry short": lambda index, _: index[:-ENTRY_BYTES],
    "without its first entry": lambda index, _: index[ENTRY_BYTES:],
    "one byte over": lambda index, _: index + b"\0",
    "one entry over": lambda index, _: index + bytes(ENTRY_BYTES),
    "zeros": lambda index, _: bytes(len(index)),
    "garbage": lambda index, _: random.Random(1).randbytes(len(index)),
    "its first bit flipped": lambda index, _: bytes([index[0] ^ 1]) + index[1:],
    "its last bit flipped": lambda index, _: index[:-1] + bytes([index[-1] ^ 128]),
    "of another partition": another,
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_a_spoiled_index_is_rebuilt_byte_for_byte(
    tmp_path: Path, spoil: Callable[[bytes, Path], bytes | None]
) -> None:
    partition, written = sealed(tmp_path, LARGE)
    index = partition.index_path.read_bytes()
    partition.index_path.unlink()
    spoiled = spoil(index, tmp_path)
    if spoiled is not None:
        partition.index_path.write_bytes(spoiled)
    check_every_offset(partition, written)
    assert partition.index_path.read_bytes() == index
    assert partition.max_time_ms == written[-1].time_ms


def test_on_a_full_disk_an_index_is_rebuilt_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    partition, written = sealed(tmp_path, LARGE)
    partition.index_path.unlink()
    monkeypatch.setattr("logd.storage.disk.replace", no_room)
    check_every_offset(partition, written)
    assert not partition.index_path.exists()


def check_every_offset(partition: Partition, written: list[Written]) -> None:
    for batch in written:
        assert partition.position_of(batch.next - 1) == batch.position
        since = partition.since(batch.time_ms)
        assert since is not None
        assert since.header.time_ms == batch.time_ms
        assert partition.boundary(0, batch.end) == (batch.end, batch.next)


def test_garbage_in_the_middle_of_an_index_misleads_nobody(tmp_path: Path) -> None:
    """Only the ends are looked at when it is opened; what lies between is checked when used."""
    partition, written = sealed(tmp_path, LARGE)
    index = partition.index_path.read_bytes()
    noise = random.Random(2)
    for at in range(ENTRY_BYTES, len(index) - ENTRY_BYTES, 5):
        spoiled = bytearray(index)
        spoiled[at] ^= 1 << noise.randrange(8)
        partition.index_path.write_bytes(spoiled)
        check_every_offset(
            Partition.open_sealed(tmp_path, 0, partition.next, partition.max_time_ms), written
        )
        entry = at - at % ENTRY_BYTES
        spoiled[entry : entry + ENTRY_BYTES] = noise.randbytes(ENTRY_BYTES)
        partition.index_path.write_bytes(spoiled)
        check_every_offset(
            Partition.open_sealed(tmp_path, 0, partition.next, partition.max_time_ms), written
        )


def test_an_index_cannot_be_rebuilt_over_damage(tmp_path: Path) -> None:
    partition, written = sealed(tmp_path, LARGE)
    partition.index_path.unlink()
    data = bytearray(partition.path.read_bytes())
    data[written[30].position + 7] ^= 1
    partition.path.write_bytes(data)
    with pytest.raises(DamagedBatch) as caught:
        partition.position_of(0)
    assert caught.value.position == written[30].position
    assert not partition.index_path.exists()


def test_what_a_fitting_index_promises_and_the_file_lacks_is_damage(tmp_path: Path) -> None:
    """Neither the index nor one made anew from the file leads to the last batch."""
    partition, written = sealed(tmp_path, SMALL)
    size = written[-1].position
    partition.path.write_bytes(partition.path.read_bytes()[:size])
    closing = IndexEntry(partition.next, size, partition.max_time_ms).encode()
    partition.index_path.write_bytes(partition.index_path.read_bytes()[:-ENTRY_BYTES] + closing)
    short = Partition.open_sealed(tmp_path, 0, partition.next, partition.max_time_ms)
    with pytest.raises(DamagedBatch):
        short.position_of(written[-1].offset)
    for batch in written[:-1]:
        assert short.position_of(batch.offset) == batch.position


def test_an_idle_partition_comes_back(tmp_path: Path) -> None:
    partition, written = sealed(tmp_path, SMALL)
    check_every_offset(partition, written)
    partition.release()
    check_every_offset(partition, written)
