"""The reader: a topic's messages in order, from any place, to the end or on and on.

On its own connection it asks for the next reply before it splits the current one, so that daemon
and client work at the same time; when the connection breaks it makes a new one and goes on behind
the last message. On a Client it was given it leaves no reply behind when it is abandoned, and does
not reconnect.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Self, Unpack

from logd.client.backoff import RetryDeadline
from logd.client.client import Client
from logd.client.cursors import LocalCursor, SavedCursor, ServerCursor
from logd.client.read_progress import ReadProgress
from logd.errors import Busy, LogdError, NotFound, ShuttingDown
from logd.wire.addresses import ConnectionLost, Target
from logd.wire.commands import Batches
from logd.wire.read_state import Batch, Message, ReadOptions, ReadState, messages_of
from logd.wire.topic_identity import TopicIdentity

PATIENCE_S = 60.0
TRY_AGAIN = (ConnectionLost, Busy, ShuttingDown)


class Reader:
    """Reads one topic; iterate it for Messages, or `batches()` for lists of them. Not both.

    `start` is an offset, "first", "next" or `At(ms)`; `tail=n` starts n messages before the end.
    It ends after `limit` messages, before the offset `until`, before the first message that is of
    the time `until_ms` or later, or where the topic ends; `follow` waits there for more, but not
    past `until_ms` by this machine's clock. With `or_first` an offset that has expired is skipped
    to the first there is. What is skipped goes to `on_gap`.

    With a `cursor`, a name that the daemon keeps or a Path of a local file, it goes on where the
    last one stopped, and `start` is for the first time. What was handed out counts as read when the
    next is asked for; that is saved every second, by `commit` and by `close`. So after a crash some
    messages come again, and none is left out. A program that processes messages later than it asks
    for the next ones passes `consumed`: it returns the offset before which everything is processed,
    or None if nothing is, and only that is saved.

    When nobody has answered for `patience_s` (None: never) it gives up; before each new try
    `on_trouble` hears why.
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
        self._reading = ReadState(topic, **options)
        self._target = None if isinstance(target, Client) else target
        self._interrupted = threading.Event()
        self._on_trouble = on_trouble
        self._patience = RetryDeadline(patience_s, monotonic())
        self._progress = ReadProgress(monotonic(), consumed)
        self._resumed_at: int | None = None
        self._asked = False  # a reply is due
        self._seen: TopicIdentity | None = None
        self._client: Client | None = target if isinstance(target, Client) else None
        if self._client is None:
            self._connect()
        try:
            self._bookmark = self._open_bookmark(cursor)
        except BaseException:
            self._hang_up()
            raise
        self._batches = self._run()
        self._messages: Iterator[Message] = chain.from_iterable(map(messages_of, self._batches))
        if self._bookmark is not None:
            self._messages = self._one_by_one()

    def __iter__(self) -> Iterator[Message]:
        return self._messages

    def batches(self) -> Iterator[Batch]:
        return self._batches

    def followed(self) -> Iterator[Batch]:
        """From where it ended, wait for more."""
        self._reading.follow()
        self._batches = self._run()
        return self._batches

    @property
    def next_offset(self) -> int | None:
        """Where the reply after the current one starts; None before the first."""
        return self._reading.where if isinstance(self._reading.where, int) else None

    @property
    def resumed_at(self) -> int | None:
        """The offset at which the cursor stood; None without a cursor, or for a new one."""
        return self._resumed_at

    def commit(self, offset: int | None = None) -> None:
        """Save the cursor: everything before `offset`, or all that was handed out, is done with."""
        if self._bookmark is None:
            raise ValueError("this reader has no cursor")
        self._progress.commit(offset)
        self._save()

    def save_if_due(self) -> None:
        """Save the cursor if that was last done a second ago or more."""
        if self._bookmark is not None and self._progress.is_due(monotonic()):
            try:
                self._save()
            except TRY_AGAIN as error:
                self._progress.put_off(monotonic())
                self._on_trouble(error)

    def close(self) -> None:
        """End it. What was handed out last counts as not read, unless `commit` said otherwise."""
        try:
            if self._bookmark is not None:
                self._save()
                self._bookmark.close()
        finally:
            if self._target is not None and self._client is not None:
                self._client.close()

    def interrupt(self) -> None:
        """Let another thread that reads or waits come back at once, with a ConnectionLost."""
        self._interrupted.set()
        client = self._client
        if client is not None:
            client.interrupt()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- replies ---------------------------------------------------------------------------------

    def _run(self) -> Iterator[Batch]:
        reading = self._reading
        while not reading.is_done:
            reply = self._reply()
            self.save_if_due()
            if reply is None:
                continue
            if self._target is not None and reading.wants_more(reply):
                self._ask(reply.messages)
            for batch in reading.cut(reply):
                self._progress.handed_out = batch.next
                yield batch
                self._asked_again()

    def _one_by_one(self) -> Iterator[Message]:
        for batch in self._batches:
            for message in messages_of(batch):
                self._progress.handed_out = message.offset + 1
                yield message
                self._asked_again()

    def _reply(self) -> Batches | None:
        """The next reply; None where something came between and it is to be asked for anew."""
        try:
            if self._client is None:
                self._connect()
            if not self._asked:
                self._ask()
            self._asked = False
            assert self._client is not None
            reply: Batches = self._client.receive()
        except TRY_AGAIN as error:
            self._wait(error)
            return None
        except LogdError as error:
            self._reading.refused(error)
            return None
        self._patience.answered(monotonic())
        self._reading.arrived(reply)
        return reply

    def _ask(self, but: int = 0) -> None:
        assert self._client is not None
        try:
            self._client.send(self._reading.ask(but))
            self._asked = True
        except ConnectionLost:
            if not but:
                raise
            self._hang_up()  # what is here is handed out first

    # -- the connection ---------------------------------------------------------------------------

    def _connect(self) -> None:
        assert self._target is not None
        client = Client(self._target)
        try:
            self._seen = _seen(client, self._reading.topic)
        except BaseException:
            client.close()
            raise
        self._client = client
        self._reading.connected(self._seen)

    def _wait(self, error: Exception) -> None:
        """Before the next try; raises the error where there will be none."""
        if self._target is None or self._interrupted.is_set():
            raise error
        if isinstance(error, ConnectionLost):
            self._hang_up()
        if self._reading.is_time_up:
            self._patience.end_within(PATIENCE_S)
        pause_s = self._patience.pause_s(error, monotonic())
        self._on_trouble(error)
        if self._interrupted.wait(pause_s):
            raise error

    def _hang_up(self) -> None:
        if self._client is not None and self._target is not None:
            self._client.close()
        self._client, self._asked = None, False

    def _open_bookmark(self, cursor: str | Path | None) -> SavedCursor | None:
        if cursor is None:
            return None
        topic = self._reading.topic
        bookmark: SavedCursor
        if isinstance(cursor, Path):
            bookmark = LocalCursor(cursor, topic)
        elif self._target is None:
            raise ValueError("a named cursor needs an address, not a Client that is in use")
        else:
            bookmark = ServerCursor(self._target, topic, cursor)
        try:
            found = bookmark.load()
            if found is not None:
                self._reading.go_on(*found)
                self._progress.found(found[0])
                self._resumed_at = found[0]
        except BaseException:
            bookmark.close()
            raise
        return bookmark

    # -- the cursor -----------------------------------------------------------------------------

    def _asked_again(self) -> None:
        self._progress.asked_again()
        self.save_if_due()

    def _save(self) -> None:
        offset = self._progress.unsaved()
        if offset is not None and self._bookmark is not None:
            self._bookmark.save(offset, self._seen)
            self._progress.saved(offset, monotonic())


def _seen(client: Client, topic: str) -> TopicIdentity | None:
    try:
        return TopicIdentity.of(client.stats(topic))
    except (NotFound, ValueError):
        return None
