# cython: language_level=3, annotation_typing=False
"""One partition file and its index: append, look up, slice, seal.

Always: up to `size` the file consists of valid batches without gaps; `size`, `next` and
`max_time_ms` describe complete writes only. Only the newest partition of a topic is written to. The
others are sealed: their index is mapped, and they are opened when they are read. Knows nothing of
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
_RECENT_BATCHES = 4096  # positions of the newest batches of the active partition, for followers


class Slice(NamedTuple):
    """Whole batches of a file."""

    file: File
    position: int
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
        self.open_file: File | None = None  # None: opened again when it is needed
        self.open_index: Index | None = None  # the same
        self._saved_entries = 0
        self._is_damaged = False
        self._is_read_only = False
        self._recent: dict[int, int] = {}
        self._found: ScannedBatch | None = None  # by the last look-up; the next is often the same

    @classmethod
    def create(cls, directory: Path, first: int) -> Partition:
        """A new, empty, active partition. The caller syncs the directory."""
        partition = cls(directory, first)
        partition.open_file = disk.create(partition.path)
        partition.open_index = Index()
        return partition

    @classmethod
    def open_sealed(
        cls, directory: Path, first: int, next_: int, max_time_ms: int = 0
    ) -> Partition:
        """A partition that is not written to. To read by time, the caller gives the newest time."""
        partition = cls(directory, first)
        partition.next, partition.max_time_ms, partition.sealed = next_, max_time_ms, True
        partition.size = os.lstat(partition.path).st_size
        return partition

    @classmethod
    def open_active(cls, directory: Path, first: int) -> Partition:
        """A partition to append to. The caller describes its content with `load`."""
        partition = cls(directory, first)
        partition.open_file = File(partition.path, os.O_RDWR)
        return partition

    @classmethod
    def open_read_only(cls, directory: Path, first: int, next_: int) -> Partition:
        """As `open_sealed`, but a rebuilt index is not saved either, and reads block."""
        partition = cls.open_sealed(directory, first, next_)
        partition._is_read_only = True
        return partition

    def load(self, index: Index, size: int, next_: int, max_time_ms: int) -> None:
        """Set the content of an active partition. All of `index` is in the index file."""
        self.open_index, self._saved_entries = index, len(index)
        self.size, self.next, self.max_time_ms = size, next_, max_time_ms

    # -- content --------------------------------------------------------------------------------

    @property
    def file(self) -> File:
        if self.open_file is None:
            self.open_file = (BlockingFile if self._is_read_only else File)(self.path)
        return self.open_file

    @property
    def index(self) -> Index:
        if self.open_index is None:
            self.open_index = self._mapped_index() or self._rebuilt_index()
        return self.open_index

    @property
    def min_time_ms(self) -> int:
        """The time of its first batch; 0 if that is no longer known."""
        if not self.size or (self._is_damaged and not len(self.index)):
            return 0
        try:
            return self._indexed(lambda index: index.entry(0).time_ms)
        except DamagedBatch:
            return 0

    def use_partial_index(self, index: Index, size: int) -> None:
        """Read this damaged, sealed partition with an index that skips the damage."""
        self.open_index, self._is_damaged = index, True
        self.size = size

    def is_in_place(self) -> bool:
        """Is the file still there, not replaced or truncated? One system call, on any thread."""
        return disk.is_in_place(self.path, self.open_file, self.size)

    def release(self) -> None:
        """Close the descriptor and the index map; both are opened again when they are needed."""
        if self.sealed and not self._is_damaged:
            self.close()

    def close(self) -> None:
        """Close it. Replies that are being sent keep the file open."""
        self.open_file = self.open_index = self._found = None

    # -- writing --------------------------------------------------------------------------------

    def append(
        self, buffers: Sequence[Buffer], placed: Sequence[tuple[int, int]], next_: int, time_ms: int
    ) -> None:
        """Write whole batches in one call; `placed` has the offset and the size of each. If it
        fails, none of them is stored, and `truncate` must be called."""
        file, index, recent = self.open_file, self.open_index, self._recent
        assert file is not None and index is not None  # noqa: PT018  it is active
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
        """Remove what a failed write left after the last batch."""
        disk.cut(self.file, self.size)

    def sync(self) -> None:
        disk.sync(self.file)

    def save_index(self, *, closing: bool = False) -> None:
        """Append new entries to the index file. Not synced: it can be rebuilt."""
        missing = self.index.encoded(self._saved_entries)
        saved = len(missing) // ENTRY_BYTES
        if closing:
            missing += IndexEntry(self.next, self.size, self.max_time_ms).encode()
        if missing:
            file = File(self.index_path, os.O_RDWR | os.O_CREAT)
            disk.write_at(file, [missing], self._saved_entries * ENTRY_BYTES)
        self._saved_entries += saved

    def seal(self) -> None:
        """Stop writing to it; its files are complete."""
        self.sealed = True
        self._recent.clear()
        self.release()

    # -- look-up --------------------------------------------------------------------------------

    def position_of(self, offset: int) -> int:
        """The position of the batch that contains `offset`."""
        position = self._recent.get(offset)
        return self.holding(offset).position if position is None else position

    def holding(self, offset: int) -> ScannedBatch:
        """The batch that contains `offset`."""
        found = self._found
        if found is None or not found.header.offset <= offset < found.header.next:
            found = self._found = self._from(
                lambda index: index.at_offset(offset), lambda found: found.header.next > offset
            )
        return found

    def since(self, time_ms: int) -> ScannedBatch | None:
        """The first batch that is not older than `time_ms`, if there is one."""
        if not self.size or self.max_time_ms < time_ms:
            return None
        return self._from(
            lambda index: index.before_time(time_ms), lambda found: found.header.time_ms >= time_ms
        )

    def boundary(self, start: int, limit: int) -> tuple[int, int]:
        """The last end of a batch up to `limit`, and the offset that follows it.

        The batch that starts at `start` is always included, whatever its size.
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
            raise BadIndex("no batch where the index lists one")

        return self._indexed(search)

    def _headers(self, position: int, offset: int) -> Iterator[ScannedBatch]:
        """Headers from `position` on. The first must have this offset, unless it is -1."""
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
        """Query the index; if it is wrong, rebuild it and query again. If that fails, the partition
        file itself is damaged."""
        if not self._is_damaged:
            try:
                return ask(self.index)
            except BadIndex:
                self.open_index = self._rebuilt_index()
        try:
            return ask(self.index)
        except BadIndex as error:
            raise DamagedBatch(str(error)) from None

    def _mapped_index(self) -> Index | None:
        """The index file of a sealed partition, if it fits the partition."""
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
        """Rebuild the index from the headers, and save it unless the partition is read-only."""
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
