"""One file of a topic and its index: append, look up, cut into slices, seal.

Always: the file is sound batches back to back up to `size`; `size`, `next` and the newest time
speak of what was written whole. Only the newest partition of a topic is written to; the others are
sealed, their index is mapped, and nothing of them is read before somebody asks. Knows nothing of
topics, threads or sockets.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from logd.batch import MAX_HEADER_BYTES, Buffer, ScannedBatch, scan
from logd.errors import DamagedBatch
from logd.storage import disk
from logd.storage.disk import BlockingFile, File
from logd.storage.index import ENTRY_BYTES, INTERVAL_BYTES, BadIndex, Index, IndexEntry

T = TypeVar("T")
_RECENT_BATCHES = 4096  # batch starts of the active partition kept at hand for followers


class Slice(NamedTuple):
    """Bytes of a file, whole batches."""

    file: File
    position: int
    size: int


class Placed(NamedTuple):
    """A batch about to be written: its place in the topic and how many bytes it has."""

    offset: int
    size: int


class Partition:
    def __init__(self, directory: Path, first: int) -> None:
        self.first = first
        self.path = directory / f"{first:020d}.log"
        self.index_path = self.path.with_suffix(".index")
        self.ids_path = self.path.with_suffix(".ids")
        self.next = first
        self.size = 0
        self.max_time_ms = 0
        self.sealed = False
        self._file: File | None = None
        self._index: Index | None = None
        self._saved_entries = 0
        self._is_damaged = False
        self._is_read_only = False
        self._recent: dict[int, int] = {}
        self._found: ScannedBatch | None = (
            None  # by the last look-up; the next is often about the same
        )

    @classmethod
    def create(cls, directory: Path, first: int) -> Partition:
        """A new, empty, active partition. The caller syncs the directory."""
        partition = cls(directory, first)
        partition._file = disk.create(partition.path)
        partition._index = Index()
        return partition

    @classmethod
    def open_sealed(
        cls, directory: Path, first: int, next_: int, max_time_ms: int = 0
    ) -> Partition:
        """No more is written to it. Whoever reads it by time says when its newest batch came."""
        partition = cls(directory, first)
        partition.next, partition.max_time_ms, partition.sealed = next_, max_time_ms, True
        partition.size = os.lstat(partition.path).st_size
        return partition

    @classmethod
    def open_active(cls, directory: Path, first: int) -> Partition:
        """Open for more writing. The caller says what is in it, by `load`."""
        partition = cls(directory, first)
        partition._file = File(partition.path, os.O_RDWR)
        return partition

    @classmethod
    def open_read_only(cls, directory: Path, first: int, next_: int) -> Partition:
        """As `open_sealed`, and nothing is ever written, a rebuilt index neither; reads wait."""
        partition = cls.open_sealed(directory, first, next_)
        partition._is_read_only = True
        return partition

    def load(self, index: Index, size: int, next_: int, max_time_ms: int) -> None:
        """Say what the file of an active partition holds. All of `index` is in the index file."""
        self._index, self._saved_entries = index, len(index)
        self.size, self.next, self.max_time_ms = size, next_, max_time_ms

    # -- what it holds --------------------------------------------------------------------------

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = (BlockingFile if self._is_read_only else File)(self.path)
        return self._file

    @property
    def index(self) -> Index:
        if self._index is None:
            self._index = self._mapped_index() or self._rebuilt_index()
        return self._index

    @property
    def min_time_ms(self) -> int:
        """When its first batch was written; 0 where that is not known any more."""
        if not self.size or (self._is_damaged and not len(self.index)):
            return 0
        try:
            return self._indexed(lambda index: index.entry(0).time_ms)
        except DamagedBatch:
            return 0

    def use_partial_index(self, index: Index, size: int) -> None:
        """This sealed partition is read through an index that leads around its damage."""
        self._index, self._is_damaged = index, True
        self.size = size

    def is_in_place(self) -> bool:
        """Has nobody removed, replaced or cut its file? One system call; from any thread."""
        return disk.is_in_place(self.path, self._file, self.size)

    def release(self) -> None:
        """Let go of the descriptor and the map; both come back when somebody asks."""
        if self.sealed and not self._is_damaged:
            self.close()

    def close(self) -> None:
        """Close it; replies under way keep the file open for themselves."""
        self._file = self._index = self._found = None

    # -- writing --------------------------------------------------------------------------------

    def append(
        self,
        buffers: Sequence[Buffer],
        placed: Sequence[tuple[int, int]],
        next_: int,
        time_ms: int,
    ) -> None:
        """Write whole batches in one call, `placed` as `Placed` says. If it fails none of them
        counts: see `truncate`."""
        file, index, recent = self._file, self._index, self._recent
        assert file is not None and index is not None  # noqa: PT018  it is the active one
        disk.write_at(file, buffers, self.size)
        position = self.size
        if len(recent) > _RECENT_BATCHES:
            recent.clear()
        for offset, size in placed:
            index.note(offset, position, time_ms)
            recent[offset] = position
            position += size
        self.size, self.next, self.max_time_ms = position, next_, time_ms

    def truncate(self) -> None:
        """Remove what a failed write left behind the last whole batch."""
        disk.cut(self.file, self.size)

    def sync(self) -> None:
        disk.sync(self.file)

    def save_index(self, *, closing: bool = False) -> None:
        """Append to the index file what it does not have yet. Not synced: it can be rebuilt."""
        missing = self.index.encoded(self._saved_entries)
        saved = len(missing) // ENTRY_BYTES
        if closing:
            missing += IndexEntry(self.next, self.size, self.max_time_ms).encode()
        if missing:
            file = File(self.index_path, os.O_RDWR | os.O_CREAT)
            disk.write_at(file, [missing], self._saved_entries * ENTRY_BYTES)
        self._saved_entries += saved

    def seal(self) -> None:
        """No more writes come; the files say so already."""
        self.sealed = True
        self._recent.clear()
        self.release()

    # -- looking up -----------------------------------------------------------------------------

    def position_of(self, offset: int) -> int:
        """Where the batch that holds `offset` starts."""
        position = self._recent.get(offset)
        return self.holding(offset).position if position is None else position

    def holding(self, offset: int) -> ScannedBatch:
        """The batch that holds `offset`."""
        found = self._found
        if found is None or not found.header.offset <= offset < found.header.next:
            found = self._found = self._from(
                lambda index: index.at_offset(offset), lambda found: found.header.next > offset
            )
        return found

    def since(self, time_ms: int) -> ScannedBatch | None:
        """The first batch that is not older than `time_ms`, if this partition has one."""
        if not self.size or self.max_time_ms < time_ms:
            return None
        return self._from(
            lambda index: index.before_time(time_ms), lambda found: found.header.time_ms >= time_ms
        )

    def boundary(self, start: int, limit: int) -> tuple[int, int]:
        """The last batch end up to `limit`, and the offset that follows it.

        `start` is where a batch starts; that batch is always included, however large.
        """
        return self._indexed(lambda index: self._boundary(index.at_position(limit), start, limit))

    def _boundary(self, entry: IndexEntry, start: int, limit: int) -> tuple[int, int]:
        position, offset = start, -1
        if entry.position > start:
            position, offset = entry.position, entry.offset
        for found in self._headers(position, offset):
            if found.end > limit and position > start:
                break
            position, offset = found.end, found.header.next
            if position >= limit:
                break
        return position, offset

    def _from(
        self, entry_of: Callable[[Index], IndexEntry], wanted: Callable[[ScannedBatch], bool]
    ) -> ScannedBatch:
        def search(index: Index) -> ScannedBatch:
            entry = entry_of(index)
            for found in self._headers(entry.position, entry.offset):
                if wanted(found):
                    return found
            raise BadIndex("no batch where the index says one is")

        return self._indexed(search)

    def _headers(self, position: int, offset: int) -> Iterator[ScannedBatch]:
        """Headers from `position` on. There must be one, with this offset unless it is -1."""
        if position >= self.size:
            return
        window = INTERVAL_BYTES + MAX_HEADER_BYTES
        headers = scan(self.file.read, position, self.size, bodies=False, window_bytes=window)
        try:
            first = next(headers)
        except DamagedBatch as damage:
            raise BadIndex(f"no batch at {position}: {damage.reason}") from None
        if offset not in (-1, first.header.offset):
            raise BadIndex(f"offset {first.header.offset} where the index has {offset}")
        yield first
        yield from headers

    # -- the index ------------------------------------------------------------------------------

    def _indexed(self, ask: Callable[[Index], T]) -> T:
        """Ask the index; where it turns out wrong, rebuild it and ask again. If that is no better,
        it is the file that is not what it should be."""
        if not self._is_damaged:
            try:
                return ask(self.index)
            except BadIndex:
                self._index = self._rebuilt_index()
        try:
            return ask(self.index)
        except BadIndex as error:
            raise DamagedBatch(str(error)) from None

    def _mapped_index(self) -> Index | None:
        """The index file of a sealed partition, if it looks like one that belongs to it."""
        try:
            file = File(self.index_path)
            size = file.size()
            if not size or size % ENTRY_BYTES:
                return None
            index = Index(mmap.mmap(file.fd, size, prot=mmap.PROT_READ))
            last, first = index.entry(len(index) - 1), index.entry(0)
        except (FileNotFoundError, BadIndex):
            return None
        fits = last[:2] == (self.next, self.size) and first[:2] == (self.first, 0)
        return index if fits else None

    def _rebuilt_index(self) -> Index:
        """Read the partition's headers and, unless it is only looked at, save its index anew."""
        index = Index()
        time_ms = 0
        for found in scan(self.file.read_waiting, 0, self.size, bodies=False, expect=self.first):
            time_ms = found.header.time_ms
            index.note(found.header.offset, found.position, time_ms)
        if self.sealed:
            index.append(IndexEntry(self.next, self.size, time_ms))
        if not self._is_read_only:
            disk.replace_if_room(self.index_path, index.encoded())
        self._saved_entries = len(index)
        return index
