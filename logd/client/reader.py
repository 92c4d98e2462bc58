"""The blocking reader: the messages of a topic in order, from any position, once or continuously.

The loop is in `read_loop`, which is generated from its asyncio source. This class iterates without
running Python code for each message, and can be interrupted by another thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Unpack

from logd.client.client import Client
from logd.client.read_loop import PATIENCE_S, ReadLoop
from logd.wire.addresses import Target
from logd.wire.commands import Batches, Command
from logd.wire.read_state import Batch, Message, ReadOptions, messages_of


class Reader(ReadLoop):
    """Reads one topic: iterate it for Messages, or `batches()` for batches. Not both.

    `start` is an offset, "first", "next" or `At(ms)`; `tail=n` starts n messages before the end.
    The reader ends after `limit` messages, before the offset `until`, before the first message with
    the time `until_ms` or later, or at the end of the topic; with `follow` it waits there for more,
    but not past `until_ms` by this machine's clock. With `or_first`, a start that has expired is
    moved to the oldest message. `on_gap` is called with each range that was skipped.

    With a `cursor`, a name that the server stores or the Path of a local file, it continues where
    the last reader stopped, and `start` applies only to the first one. A message counts as read
    when the next is asked for; the cursor is saved every second, by `commit` and by `close`. After
    a crash some messages are read again, and none is missed. A program that processes messages
    later than it asks for the next ones passes `consumed`, which returns the offset before which
    everything is processed, or None; then only that is saved.

    After `patience_s` without a reply (None: never) it fails; before each retry `on_trouble` is
    called with the error. A follower uses FOLLOW, unless it has `until_ms` or the server is too old
    for it. On a Client that it was given it does not reconnect, does not ask ahead, and follows
    with repeated reads. A reader that has failed raises the same error again.
    """

    def __init__(
        self,
        target: Target | Client,
        topic: str,
        *,
        cursor: str | Path | None = None,
        consumed: Callable[[], int | None] | None = None,
        patience_s: float | None = PATIENCE_S,
        on_trouble: Callable[[Exception], None] = lambda error: None,
        **options: Unpack[ReadOptions],
    ) -> None:
        super().__init__(
            target, topic, cursor=cursor, consumed=consumed, patience_s=patience_s,
            on_trouble=on_trouble, **options,
        )  # fmt: skip
        self._interrupted = threading.Event()
        self.open()
        self._iterator: Iterator[Message]
        if self._cursor is None:
            self._iterator = chain.from_iterable(map(messages_of, self.batches()))
        else:
            self._iterator = iter(self.next_message, None)

    def __iter__(self) -> Iterator[Message]:
        return self._iterator

    def batches(self) -> Iterator[Batch]:
        return iter(self.next_batch, None)

    def followed(self) -> Iterator[Batch]:
        """After the end of the topic: wait there for more."""
        self._state.follow()
        return self.batches()

    def interrupt(self) -> None:
        """Let another thread that reads or waits return at once, with a ConnectionLost."""
        self._is_interrupted = True
        self._interrupted.set()
        client = self._client
        if client is not None:
            client.interrupt()

    def _send(self, command: Command[Batches]) -> None:
        assert self._client is not None
        self._client.send(command)

    @property
    def _is_reply_due(self) -> bool:
        return self._client is not None and self._client.in_flight > 0

    def _receive(self) -> Batches:
        assert self._client is not None
        reply: Batches = self._client.receive()
        return reply

    def _pause(self, pause_s: float, error: Exception) -> None:
        if self._interrupted.wait(pause_s):
            raise error
