"""Reading a split in one of Spark's Python processes, through restarts of the daemon.

Always: every header and sum is checked, the messages are exactly those of the split in order, and
what is missing goes to `on_loss`. Where the connection breaks, a new one goes on behind the last
reply, if the topic is still the same.
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
from logd.wire.read_state import check
from logd.wire.topic_identity import kept
from pyspark_logd.arrow_columns import ColumnChunk, piece, record_batch
from pyspark_logd.data_loss import OnLoss
from pyspark_logd.query_ranges import within
from pyspark_logd.splits import Split
from pyspark_logd.topic_sources import TopicSource, open_place

PATIENCE_S = 60.0
CHUNK_BYTES = 32 << 20  # of inflated messages in one record batch


def record_batches(split: Split, schema: pa.Schema, on_loss: OnLoss) -> Iterator[pa.RecordBatch]:
    for reply in replies(split, on_loss):
        for pieces in chunks(reply, split, on_loss):
            yield record_batch(split.topic, pieces, reply.offset, split.stop, schema)


def replies(split: Split, on_loss: OnLoss) -> Iterator[Batches]:
    """Replies that follow on each other, from the start of the split to its end."""
    patience = RetryDeadline(PATIENCE_S, monotonic())
    at = split.start
    while at < split.stop:
        try:
            with closing(open_place(split.site)) as place:
                at, stop = still_there(place, split, at, on_loss)
                if at >= stop:
                    return
                for reply in place.replies(split.topic, at, stop):
                    patience.answered(monotonic())
                    at = reply.offset + reply.messages
                    yield reply
                if at >= stop:
                    return
                raise OutOfRange(f"topic {split.topic} ends at {at}, and {stop} was there before")
        except (*RETRYABLE, OutOfRange) as error:  # it may have expired just now: look again
            sleep(patience.pause_s(error, monotonic()))


def still_there(place: TopicSource, split: Split, at: int, on_loss: OnLoss) -> tuple[int, int]:
    """From where to where it can be read now."""
    try:
        extent = place.extent(split.topic)
    except NotFound:
        on_loss(split.topic, at, split.stop, f"{place.site.name} has no such topic any more")
        return split.stop, split.stop
    if extent.seen.id != split.seen.id:
        on_loss(split.topic, at, split.stop, "the topic was made anew")
        return split.stop, split.stop
    sound = kept(split.seen, extent.seen, split.stop)
    if sound < split.stop:
        first = max(at, sound)
        on_loss(split.topic, first, split.stop, "the daemon lost them in a crash of its machine")
        return at, max(at, sound)
    found = within(split.topic, extent, at, split.stop, on_loss)
    return found.start, max(found.start, found.stop)


def chunks(reply: Batches, split: Split, on_loss: OnLoss) -> Iterator[list[ColumnChunk]]:
    """The batches of a reply, checked, in groups that fit into a record batch each."""
    pieces: list[ColumnChunk] = []
    size = 0
    for found in check(reply):
        if found.header.enc == GAP:
            start = max(found.header.offset, reply.offset)
            stop = min(found.header.next, split.stop)
            on_loss(split.topic, start, stop, "they were lost on the daemon's disk")
            continue
        pieces.append(piece(found))
        size += len(pieces[-1].data)
        if size >= CHUNK_BYTES:
            yield pieces
            pieces, size = [], 0
    if pieces:
        yield pieces
