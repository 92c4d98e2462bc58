"""Reads a split in a Python process of Spark, also while the daemon restarts.

Invariants: every header and checksum is verified; the messages are those of the split, in order;
missing ones are passed to `on_loss`. After a lost connection, reading continues after the last
reply if the topic is still the same one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from time import monotonic, sleep

import pyarrow as pa

from logd.batch import GAP
from logd.client.backoff import RETRYABLE, RetryDeadline
from logd.errors import NotFound, OutOfRange
from logd.wire.commands import Batches
from logd.wire.offset_ranges import OffsetRange
from logd.wire.read_state import check
from logd.wire.topic_identity import kept
from pyspark_logd.arrow_batches import ColumnChunk, decode_batch, record_batch
from pyspark_logd.errors import LOST_ON_DISK, OnLoss
from pyspark_logd.splits import Split
from pyspark_logd.topic_sources import TopicSource, open_source, within

RETRY_TIMEOUT_S = 60.0
CHUNK_BYTES = 32 << 20  # uncompressed messages in one record batch


def record_batches(split: Split, schema: pa.Schema, on_loss: OnLoss) -> Iterator[pa.RecordBatch]:
    for reply in replies(split, on_loss):
        for chunks in column_chunks(reply, split, on_loss):
            yield record_batch(split.topic, chunks, reply.offset, split.stop, schema)


def replies(split: Split, on_loss: OnLoss) -> Iterator[Batches]:
    """Consecutive replies, from the start of the split to its end."""
    deadline = RetryDeadline(RETRY_TIMEOUT_S, monotonic())
    at = split.start
    while at < split.stop:
        try:
            with closing(open_source(split.location)) as source:
                at, stop = readable_range(source, split, at, on_loss)
                if at >= stop:
                    return
                for reply in source.replies(split.topic, at, stop):
                    deadline.answered(monotonic())
                    at = reply.offset + reply.messages
                    yield reply
                if at >= stop:
                    return
                raise OutOfRange(f"topic {split.topic} ends at {at}, but reported {stop} before")
        except (*RETRYABLE, OutOfRange) as error:  # out of range: it may just have expired
            sleep(deadline.pause_s(error, monotonic()))


def readable_range(source: TopicSource, split: Split, at: int, on_loss: OnLoss) -> OffsetRange:
    """The offsets of the split from `at` on that can be read now."""
    try:
        extent = source.extent(split.topic)
    except NotFound:
        on_loss(split.topic, at, split.stop, f"{source.location.name} no longer has the topic")
        return OffsetRange(split.stop, split.stop)
    if extent.identity.id != split.identity.id:
        on_loss(split.topic, at, split.stop, "the topic was deleted and created again")
        return OffsetRange(split.stop, split.stop)
    intact_end = kept(split.identity, extent.identity, split.stop)
    if intact_end < split.stop:
        first = max(at, intact_end)
        on_loss(split.topic, first, split.stop, "the machine of the daemon crashed and lost them")
        return OffsetRange(at, first)
    first, next_ = within(split.topic, extent, at, split.stop, on_loss)
    return OffsetRange(first, max(first, next_))


def column_chunks(reply: Batches, split: Split, on_loss: OnLoss) -> Iterator[list[ColumnChunk]]:
    """The verified batches of a reply, in groups of one record batch each."""
    chunks: list[ColumnChunk] = []
    size = 0
    for found in check(reply):
        if found.header.enc == GAP:
            start = max(found.header.offset, reply.offset)
            stop = min(found.header.next, split.stop)
            on_loss(split.topic, start, stop, LOST_ON_DISK)
            continue
        chunks.append(decode_batch(found))
        size += len(chunks[-1].data)
        if size >= CHUNK_BYTES:
            yield chunks
            chunks, size = [], 0
    if chunks:
        yield chunks
