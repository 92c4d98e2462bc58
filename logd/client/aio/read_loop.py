"""How a reader connects, asks, retries, and saves its cursor. The base class of the readers.

`wire.read_state` decides what to ask for and what a reply means. On its own connection the loop
asks for the next reply before it splits the current one, so that the server and the client work at
the same time, it follows with a stream, to which it sends nothing, and it reconnects. On a Client
that it was given it leaves no reply unread when the program stops reading, and does not reconnect.

A subclass provides how one command is sent and its reply received, and how to pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Self, Unpack

from logd.client.aio.client import AsyncClient
from logd.client.aio.client_commands import find_identity
from logd.client.aio.server_cursor import AsyncServerCursor
from logd.client.backoff import RETRYABLE, RetryDeadline
from logd.client.local_cursor import LocalCursor
from logd.client.read_progress import ReadProgress
from logd.errors import LogdError
from logd.wire.addresses import ConnectionLost, Target
from logd.wire.commands import Batches, Command
from logd.wire.read_state import Batch, Message, ReadOptions, ReadState, messages_of
from logd.wire.topic_identity import TopicIdentity

PATIENCE_S = 60.0


class AsyncReadLoop:
    def __init__(
        self,
        target: Target | AsyncClient,
        topic: str,
        *,
        cursor: str | Path | None = None,
        consumed: Callable[[], int | None] | None = None,
        patience_s: float | None = PATIENCE_S,
        on_trouble: Callable[[Exception], None] = lambda error: None,
        **options: Unpack[ReadOptions],
    ) -> None:
        self._state = ReadState(topic, streams=not isinstance(target, AsyncClient), **options)
        self._target = None if isinstance(target, AsyncClient) else target
        self._client = target if isinstance(target, AsyncClient) else None
        self._patience_s, self._on_trouble = patience_s, on_trouble
        self._deadline = RetryDeadline(patience_s, monotonic())
        self._cursor: LocalCursor | AsyncServerCursor | None = None
        if isinstance(cursor, Path):
            self._cursor = LocalCursor(cursor, topic)
        elif cursor is not None:
            if self._target is None:
                raise ValueError("a named cursor needs an address, not a Client that is in use")
            self._cursor = AsyncServerCursor(self._target, topic, cursor)
        self._progress = ReadProgress(monotonic(), consumed)
        self.resumed_at: int | None = None  # the offset that the cursor had, if there was one
        self._identity: TopicIdentity | None = None
        self._batches: Iterator[Batch] = iter(())  # the rest of the current reply
        self._messages: Iterator[Message] = iter(())  # the rest of the current batch
        self._failure: Exception | None = None
        self._is_busy = self._is_closed = self._is_interrupted = False

    async def open(self) -> Self:
        """Connect, and load the cursor; ConnectionLost if no server answers."""
        self._deadline = RetryDeadline(self._patience_s, monotonic())
        try:
            if self._client is None:
                await self._connect()
            await self._load_cursor()
        except BaseException:
            await self._end()
            raise
        return self

    async def close(self) -> None:
        """End the reader. The last message does not count as read unless `commit` was called."""
        if not self._is_closed:
            self._is_closed = True
            try:
                if self._cursor is not None:
                    await self._save()
            finally:
                await self._end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def next_offset(self) -> int | None:
        """The start of the reply after the current one; None before the first."""
        return self._state.where if isinstance(self._state.where, int) else None

    # -- messages -------------------------------------------------------------------------------

    async def next_message(self) -> Message | None:
        """The next message; None at the end."""
        if self._cursor is not None:
            await self._count_as_read()
        while True:
            for message in self._messages:
                self._progress.handed_out = message.offset + 1
                return message
            batch = await self._next()
            if batch is None:
                return None
            self._messages = iter(messages_of(batch))

    async def next_batch(self) -> Batch | None:
        """The next batch; None at the end."""
        if self._cursor is not None:
            await self._count_as_read()
        batch = await self._next()
        if batch is not None:
            self._progress.handed_out = batch.next
        return batch

    async def _next(self) -> Batch | None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self._is_closed:
            raise ValueError("this reader is closed")
        if self._is_busy:
            raise RuntimeError("another task is waiting for the next message of this reader")
        self._is_busy = True
        try:
            return await self._find()
        except Exception as error:
            self._failure = error
            raise
        finally:
            self._is_busy = False

    async def _find(self) -> Batch | None:
        while True:
            for batch in self._batches:
                return batch
            await self.save_if_due()
            if self._state.is_done:
                if self._target is not None and self._is_reply_due:
                    self._disconnect()  # the server does not know that this is the end
                return None
            reply = await self._next_reply()
            if reply is not None:
                self._batches = self._state.cut(reply)
                if self._target is not None and not self._is_reply_due:
                    self._ask_ahead(reply)

    async def _next_reply(self) -> Batches | None:
        """The next reply; None if there was an error and the loop has to ask again."""
        try:
            if self._client is None:
                await self._connect()
            if not self._is_reply_due:
                self._send(self._state.ask())
            reply = await self._receive()
        except RETRYABLE as error:
            await self._recover(error)
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

    async def _connect(self) -> None:
        assert self._target is not None
        client = await AsyncClient(self._target).open()
        try:
            self._identity = await find_identity(client, self._state.topic)
        except BaseException:
            client.abort()
            raise
        self._client = client
        if self._is_interrupted:  # before there was a connection to interrupt
            raise ConnectionLost("this reader was interrupted")
        self._state.connected(self._identity)

    async def _recover(self, error: Exception) -> None:
        """Pause before the next attempt; raises the error if there is none."""
        if self._target is None or self._is_interrupted:
            raise error
        if isinstance(error, ConnectionLost):
            self._disconnect()
        if self._state.is_time_up:
            self._deadline.end_within(PATIENCE_S)
        pause_s = self._deadline.pause_s(error, monotonic())
        self._on_trouble(error)
        await self._pause(pause_s, error)

    def _disconnect(self) -> None:
        self._drop_reply()
        if self._client is not None and self._target is not None:
            self._client.abort()
        self._client = None

    async def _end(self) -> None:
        self._drop_reply()
        try:
            if isinstance(self._cursor, AsyncServerCursor):
                await self._cursor.close()
        finally:
            if self._target is not None and self._client is not None:
                await self._client.close()

    def _send(self, command: Command[Batches]) -> None:
        raise NotImplementedError

    @property
    def _is_reply_due(self) -> bool:
        raise NotImplementedError

    async def _receive(self) -> Batches:
        raise NotImplementedError

    def _drop_reply(self) -> None:
        """The reply that is due is not needed."""

    async def _pause(self, pause_s: float, error: Exception) -> None:
        raise NotImplementedError

    # -- the cursor -----------------------------------------------------------------------------

    async def _load_cursor(self) -> None:
        offset, identity = None, None
        if isinstance(self._cursor, LocalCursor):
            offset, identity = self._cursor.load() or (None, None)
        elif self._cursor is not None:
            offset = await self._cursor.load()
        if offset is not None:
            self._state.go_on(offset, identity)
            self._progress.found(offset)
            self.resumed_at = offset

    async def commit(self, offset: int | None = None) -> None:
        """Save the cursor: everything before `offset`, or all that was returned, is processed."""
        if self._cursor is None:
            raise ValueError("this reader has no cursor")
        self._progress.commit(offset)
        await self._save()

    async def save_if_due(self) -> None:
        """Save the cursor if it was last saved a second ago or more."""
        if self._cursor is not None and self._progress.is_due(monotonic()):
            try:
                await self._save()
            except RETRYABLE as error:
                self._progress.postpone(monotonic())
                self._on_trouble(error)

    async def _count_as_read(self) -> None:
        """The program asks for more: what it was given before is processed."""
        self._progress.asked_again()
        await self.save_if_due()

    async def _save(self) -> None:
        offset = self._progress.unsaved()
        if offset is None:
            return
        if isinstance(self._cursor, LocalCursor):
            await asyncio.to_thread(self._cursor.save, offset, self._identity)  # it syncs
        elif self._cursor is not None:
            await self._cursor.save(offset)
        self._progress.saved(offset, monotonic())
