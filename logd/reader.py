"""The reader: a topic's messages in order, from any place, to the end or on and on.

Always: every header and body is checked by `batch.scan` before a message of it is handed out, the
first message is the one asked for, and no more than `limit` come. On its own connection the reader
asks for the next reply before it splits the current one, so that daemon and client work at the
same time; on a Client it was given, it leaves no reply behind when it is abandoned.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from types import TracebackType
from typing import NamedTuple, Self

from logd.batch import GAP, MAX_NUMBER, Found, reading, scan, split_body
from logd.client import Batches, Client
from logd.errors import BadRequest, DamagedBatch, OutOfRange
from logd.protocol import Read, Where, topic_name, where

WAIT_MS = 30_000  # of one long poll, well below the daemon's limit

_RANGE = re.compile(r"first=([0-9]{1,19}) next=([0-9]{1,19})")
_log = logging.getLogger("logd.reader")


class Message(NamedTuple):
    offset: int
    time_ms: int
    value: bytes


class Batch(NamedTuple):
    """Messages that were stored together: the first one's offset, and the time of them all."""

    offset: int
    time_ms: int
    messages: list[bytes]


class Gap(NamedTuple):
    """Messages that cannot be had: lost and accepted as lost, or expired before they were read."""

    offset: int
    messages: int
    reason: str

    def __str__(self) -> str:
        last = self.offset + self.messages - 1
        return f"skipped offsets {self.offset} to {last}: {self.reason}"


OnGap = Callable[[Gap], None]


def warn_of_gap(gap: Gap) -> None:
    _log.warning("%s", gap)
