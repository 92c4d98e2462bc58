# cython: language_level=3, annotation_typing=False
"""The fast path of small reads: one READ of a few messages by offset, whose batches are cached.

No request and no reply object is made for such a READ: one call finds the batches with the index,
reads them and sends them. It gives up, and has sent nothing, if anything is unusual: a damaged
topic, a file or an index that is not open, data that is not in the page cache or not valid. Then
the READ takes the same way as any other, which also reports errors. Imports neither asyncio nor
sockets.
"""

from __future__ import annotations

from logd.partition import Partition
from logd.storage.readable_range import ReadableRange

try:
    from logd._native import one_read, send_batches

    IS_AVAILABLE = True
except ImportError:  # installed without a compiler
    IS_AVAILABLE = False


class SingleReads:
    """The small reads of one topic on one connection. Only if `IS_AVAILABLE`."""

    def __init__(self, topic: str, readable: ReadableRange, counters: dict[str, int]) -> None:
        self.topic, self._prefix = topic, b"READ %b " % topic.encode()
        self._readable, self._counters = readable, counters
        self._partition: Partition | None = None  # of the last read

    def answer(self, data: bytes, socket: int) -> bytes | None:
        """Send the reply to a READ; returns what the socket did not accept. None: it is no such
        READ, or not one for this path, and nothing was sent."""
        request = one_read(data, self._prefix)
        if request is None:
            return None
        offset, messages = request
        readable, partition = self._readable, self._partition
        if not readable.first <= offset < readable.next or readable.damages:
            return None
        if partition is None or not partition.first <= offset < partition.next:
            self._partition = partition = readable.holding(offset)
        file, index = partition.open_file, partition.open_index
        if file is None or index is None:
            return None
        messages = min(messages, readable.next - offset)  # what is written after that is not synced
        sent = send_batches(
            socket, file.fd, index.data, offset, messages, partition.next, partition.size
        )
        if sent is None:
            return None
        size, rest = (sent, b"") if isinstance(sent, int) else sent
        self._counters["reads"] += 1
        self._counters["read_bytes"] += size
        return rest
