# Generated from aio/read_loop.py by tools/async_to_sync.py. Do not edit.
"""How a reader connects, asks, retries, and saves its cursor. The base class of the readers.

`wire.read_state` decides what to ask for and what a reply means. On its own connection the loop
asks for the next reply before it splits the current one, so that the server and the client work at
the same time, it follows with a stream, to which it sends nothing, and it reconnects. On a Client
that it was given it leaves no reply unread when the program stops reading, and does not reconnect.

A subclass provides how one command is sent and its reply received, and how to pause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Self, Unpack

from logd.client.backoff import RETRYABLE, RetryDeadline
from logd.client.client import Client
from logd.client.client_commands import find_identity
from logd.client.local_cursor import LocalCursor
from logd.client.read_progress import ReadProgress
from logd.client.server_cursor import ServerCursor
from logd.errors import LogdError
from logd.wire.addresses import ConnectionLost, Target
from logd.wire.commands import Batches, Command
from logd.wire.read_state import Batch, Message, ReadOptions, ReadState, messages_of
from logd.wire.topic_identity import TopicIdentity

PATIENCE_S = 60.0


class ReadLoop:
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
        self._state = ReadState(topic, streams=not isinstance(target, Client), **options)
        self._target = None if isinstance(target, Client) else target
        self._client = target if isinstance(target, Client) else None
        self._patience_s, self._on_trouble = patience_s, on_trouble
        self._deadline = RetryDeadline(patience_s, monotonic())
        self._cursor: LocalCursor | ServerCursor | None = None
        if isinstance(cursor, Path):
            self._cursor = LocalCursor(cursor, topic)
        elif cursor is not None:
            if self._target is None:
                raise ValueError("a named cursor needs an address, not a Client that is in use")
            self._cursor = ServerCursor(self._target, topic, cursor)
        self._progress = ReadProgress(monotonic(), consumed)
        self.resumed_at: int | None = None  # the offset that the cursor had, if there was one
        self._identity: TopicIdentity | None = None
        self._batches: Iterator[Batch] = iter(())  # the rest of the current reply
        self._messages: Iterator[Message] = iter(())  # the rest of the current batch
        self._failure: Exception | None = None
        self._is_busy = self._is_closed = self._is_interrupted = False

    def open(self) -> Self:
        """Connect, and load the cursor; ConnectionLost if no server answers."""
        self._deadline = RetryDeadline(self._patience_s, monotonic())
        try:
            if self._client is None:
                self._connect()
            self._load_cursor()
        except BaseException:
            self._end()
            raise
        return self

    def close(self) -> None:
        """End the reader. The last message does not count as read unless `commit` was called."""
        if not self._is_closed:
            self._is_closed = True
            try:
                if self._cursor is not None:
                    self._save()
            finally:
                self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def next_offset(self) -> int | None:
        """The start of the reply after the current one; None before the first."""
        return self._state.where if isinstance(self._state.where, int) else None

    # -- messages -------------------------------------------------------------------------------

    def next_message(self) -> Message | None:
        """The next message; None at the end."""
        if self._cursor is not None:
            self._count_as_read()
        while True:
            for message in self._messages:
                self._progress.handed_out = message.offset + 1
                return message
            batch = self._next()
            if batch is None:
                return None
            self._messages = iter(messages_of(batch))

    def next_batch(self) -> Batch | None:
        """The next batch; None at the end."""
        if self._cursor is not None:
            self._count_as_read()
        batch = self._next()
        if batch is not None:
            self._progress.handed_out = batch.next
        return batch

    def _next(self) -> Batch | None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self._is_closed:
            raise ValueError("this reader is closed")
        if self._is_busy:
            raise RuntimeError("another task is waiting for the next message of this reader")
        self._is_busy = True
        try:
            return self._find()
        except Exception as error:
            self._failure = error
            raise
        finally:
            self._is_busy = False

    def _find(self) -> Batch | None:
        while True:
            for batch in self._batches:
                return batch
            self.save_if_due()
            if self._state.is_done:
                if self._target is not None and self._is_reply_due:
                    self._disconnect()  # the server does not know that this is the end
                return None
            reply = self._next_reply()
            if reply is not None:
                self._batches = self._state.cut(reply)
                if self._target is not None and not self._is_reply_due:
                    self._ask_ahead(reply)

    def _next_reply(self) -> Batches | None:
        """The next reply; None if there was an error and the loop has to ask again."""
        try:
            if self._client is None:
                self._connect()
            if not self._is_reply_due:
                self._send(self._state.ask())
            reply = self._receive()
        except RETRYABLE as error:
            self._recover(error)
            return None
        except LogdError as error:
            self._state.refused(error)
            if error.closes:
                self._disconnect()
            return None
        self._deadline.answered(monotonic())
        self._state.arrived(reply)
        return reply

    def _ask_ahead(self, reply: Batches) -> None:
        if self._state.wants_more(reply):
            try:
                self._send(self._state.ask(reply.messages))
            except ConnectionLost:
                self._disconnect()  # the reply that has arrived is used first

    # -- the connection ---------------------------------------------------------------------------

    def _connect(self) -> None:
        assert self._target is not None
        client = Client(self._target)
        try:
            self._identity = find_identity(client, self._state.topic)
        except BaseException:
            client.close()
            raise
        self._client = client
        if self._is_interrupted:  # before there was a connection to interrupt
            raise ConnectionLost("this reader was interrupted")
        self._state.connected(self._identity)

    def _recover(self, error: Exception) -> None:
        """Pause before the next attempt; raises the error if there is none."""
        if self._target is None or self._is_interrupted:
            raise error
        if isinstance(error, ConnectionLost):
            self._disconnect()
        if self._state.is_time_up:
            self._deadline.end_within(PATIENCE_S)
        pause_s = self._deadline.pause_s(error, monotonic())
        self._on_trouble(error)
        self._pause(pause_s, error)

    def _disconnect(self) -> None:
        self._drop_reply()
        if self._client is not None and self._target is not None:
            self._client.close()
        self._client = None

    def _end(self) -> None:
        self._drop_reply()
        try:
            if isinstance(self._cursor, ServerCursor):
                self._cursor.close()
        finally:
            if self._target is not None and self._client is not None:
                self._client.close()

    def _send(self, command: Command[Batches]) -> None:
        raise NotImplementedError

    @property
    def _is_reply_due(self) -> bool:
        raise NotImplementedError

    def _receive(self) -> Batches:
        raise NotImplementedError

    def _drop_reply(self) -> None:
        """The reply that is due is not needed."""

    def _pause(self, pause_s: float, error: Exception) -> None:
        raise NotImplementedError

    # -- the cursor -----------------------------------------------------------------------------

    def _load_cursor(self) -> None:
        offset, identity = None, None
        if isinstance(self._cursor, LocalCursor):
            offset, identity = self._cursor.load() or (None, None)
        elif self._cursor is not None:
            offset = self._cursor.load()
        if offset is not None:
            self._state.go_on(offset, identity)
            self._progress.found(offset)
            self.resumed_at = offset

    def commit(self, offset: int | None = None) -> None:
        """Save the cursor: everything before `offset`, or all that was returned, is processed."""
        if self._cursor is None:
            raise ValueError("this reader has no cursor")
        self._progress.commit(offset)
        self._save()

    def save_if_due(self) -> None:
        """Save the cursor if it was last saved a second ago or more."""
        if self._cursor is not None and self._progress.is_due(monotonic()):
            try:
                self._save()
            except RETRYABLE as error:
                self._progress.postpone(monotonic())
                self._on_trouble(error)

    def _count_as_read(self) -> None:
        """The program asks for more: what it was given before is processed."""
        self._progress.asked_again()
        self.save_if_due()

    def _save(self) -> None:
        offset = self._progress.unsaved()
        if offset is None:
            return
        if isinstance(self._cursor, LocalCursor):
            self._cursor.save(offset, self._identity)  # it syncs
        elif self._cursor is not None:
            self._cursor.save(offset)
        self._progress.saved(offset, monotonic())
