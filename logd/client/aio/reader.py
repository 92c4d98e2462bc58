"""The asyncio reader: a topic's messages in order, from any place, to the end or on and on.

What it asks and what it makes of replies is in `reading`, as for the blocking reader. Nothing is
lost when a task that waits for the next message is cancelled: what was asked for stays asked, and
whoever reads next gets it. For one task at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Self, Unpack

from logd.client.aio.client import AsyncClient
from logd.client.aio.cursors import AsyncLocalCursor, AsyncSavedCursor, AsyncServerCursor
from logd.client.backoff import RetryDeadline
from logd.client.read_progress import ReadProgress
from logd.client.reader import PATIENCE_S, TRY_AGAIN
from logd.errors import LogdError, NotFound
from logd.wire.addresses import ConnectionLost, Target
from logd.wire.commands import Batches
from logd.wire.read_state import Batch, Message, ReadOptions, ReadState, messages_of
from logd.wire.topic_identity import TopicIdentity


class AsyncReader:
    """Reads one topic: `async for` gives Messages, `batches()` lists of them. Not both.

    `async with Reader(...) as reader`, or `open` and `close`. The options are those of the blocking
    Reader: `start` is an offset, "first", "next" or `At(ms)`; `tail=n` starts n messages before the
    end. It ends after `limit` messages, before the offset `until`, before the first message that is
    of the time `until_ms` or later, or where the topic ends; `follow` waits there for more, but not
    past `until_ms` by this machine's clock. With `or_first` an offset that has expired is skipped
    to the first there is. What is skipped goes to `on_gap`.

    With a `cursor`, a name that the daemon keeps or a Path of a local file, it goes on where the
    last one stopped, and `start` is for the first time. What was handed out counts as read when the
    next is asked for; that is saved every second, by `commit` and by `close`. So after a crash some
    messages come again, and none is left out. A program that processes messages later than it asks
    for the next ones passes `consumed`: it returns the offset before which everything is processed,
    or None if nothing is, and only that is saved.

    When nobody has answered for `patience_s` (None: never) it gives up; before each new try
    `on_trouble` hears why. On a Client that it was given it does not reconnect, and does not ask
    ahead. A reader that has raised an error raises it again.
    """

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
        self._reading = ReadState(topic, **options)
        self._target = None if isinstance(target, AsyncClient) else target
        self._client = target if isinstance(target, AsyncClient) else None
        self._patience_s, self._on_trouble = patience_s, on_trouble
        self._patience = RetryDeadline(patience_s, monotonic())
        self._bookmark = self._make_bookmark(cursor)
        self._progress = ReadProgress(monotonic(), consumed)
        self._resumed_at: int | None = None
        self._seen: TopicIdentity | None = None
        self._asked: asyncio.Future[Batches] | None = None  # the reply that is due
        self._cutting: Iterator[Batch] = iter(())  # of the reply that is here
        self._messages: Iterator[Message] = iter(())  # of the batch that was taken last
        self._failure: Exception | None = None
        self._is_busy = self._is_closed = False

    def _make_bookmark(self, cursor: str | Path | None) -> AsyncSavedCursor | None:
        if cursor is None:
            return None
        if isinstance(cursor, Path):
            return AsyncLocalCursor(cursor, self._reading.topic)
        if self._target is None:
            raise ValueError("a named cursor needs an address, not a Client that is in use")
        return AsyncServerCursor(self._target, self._reading.topic, cursor)

    async def open(self) -> Self:
        """Connect, and find the cursor; ConnectionLost where nobody answers."""
        self._patience = RetryDeadline(self._patience_s, monotonic())
        try:
            if self._client is None:
                await self._connect()
            found = None if self._bookmark is None else await self._bookmark.load()
            if found is not None:
                self._reading.go_on(*found)
                self._progress.found(found[0])
                self._resumed_at = found[0]
        except BaseException:
            await self._end()
            raise
        return self

    async def close(self) -> None:
        """End it. What was handed out last counts as not read, unless `commit` said otherwise."""
        if not self._is_closed:
            self._is_closed = True
            try:
                if self._bookmark is not None:
                    await self._save()
            finally:
                await self._end()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if self._bookmark is not None:
            await self._asked_again()
        while True:
            for message in self._messages:
                self._progress.handed_out = message.offset + 1
                return message
            batch = await self._next()
            if batch is None:
                raise StopAsyncIteration
            self._messages = iter(messages_of(batch))

    def batches(self) -> AsyncIterator[Batch]:
        return _ByBatches(self)

    async def next_batch(self) -> Batch | None:
        """What `batches` gives next; None at the end."""
        if self._bookmark is not None:
            await self._asked_again()
        batch = await self._next()
        if batch is not None:
            self._progress.handed_out = batch.next
        return batch

    @property
    def next_offset(self) -> int | None:
        """Where the reply after the current one starts; None before the first."""
        return self._reading.where if isinstance(self._reading.where, int) else None

    @property
    def resumed_at(self) -> int | None:
        """The offset at which the cursor stood; None without a cursor, or for a new one."""
        return self._resumed_at

    async def commit(self, offset: int | None = None) -> None:
        """Save the cursor: everything before `offset`, or all that was handed out, is done with."""
        if self._bookmark is None:
            raise ValueError("this reader has no cursor")
        self._progress.commit(offset)
        await self._save()

    async def save_if_due(self) -> None:
        """Save the cursor if that was last done a second ago or more."""
        if self._bookmark is not None and self._progress.is_due(monotonic()):
            try:
                await self._save()
            except TRY_AGAIN as error:
                self._progress.put_off(monotonic())
                self._on_trouble(error)

    # -- replies ---------------------------------------------------------------------------------

    async def _next(self) -> Batch | None:
        """The next batch; None at the end."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self._is_closed:
            raise ValueError("this reader is closed")
        if self._is_busy:
            raise RuntimeError("another task waits for this reader's next message")
        self._is_busy = True
        try:
            return await self._find()
        except Exception as error:
            self._failure = error
            raise
        finally:
            self._is_busy = False

    async def _find(self) -> Batch | None:
        reading = self._reading
        while True:
            for batch in self._cutting:
                return batch
            await self.save_if_due()
            if reading.is_done:
                return None
            reply = await self._reply()
            if reply is not None:
                self._cutting = reading.cut(reply)
                if self._target is not None and reading.wants_more(reply):
                    self._ask_ahead(reply.messages)

    async def _reply(self) -> Batches | None:
        """The next reply; None where something came between and it is to be asked for anew."""
        try:
            if self._client is None:
                await self._connect()
            if self._asked is None:
                self._asked = self._opened().send(self._reading.ask())
            await asyncio.wait([self._asked])  # which does not cancel it, if this is cancelled
            asked, self._asked = self._asked, None
            reply = asked.result()
        except TRY_AGAIN as error:
            await self._wait(error)
            return None
        except LogdError as error:
            self._reading.refused(error)
            return None
        self._patience.answered(monotonic())
        self._reading.arrived(reply)
        return reply

    def _ask_ahead(self, but: int) -> None:
        try:
            self._asked = self._opened().send(self._reading.ask(but))
        except ConnectionLost:
            self._hang_up()  # what is here is handed out first

    # -- the connection ---------------------------------------------------------------------------

    async def _connect(self) -> None:
        assert self._target is not None
        client = await AsyncClient(self._target).open()
        try:
            self._seen = await _seen(client, self._reading.topic)
        except BaseException:
            client.hang_up()
            raise
        self._client = client
        self._reading.connected(self._seen)

    async def _wait(self, error: Exception) -> None:
        """Before the next try; raises the error where there will be none."""
        if self._target is None:
            raise error
        if isinstance(error, ConnectionLost):
            self._hang_up()
        if self._reading.is_time_up:
            self._patience.end_within(PATIENCE_S)
        pause_s = self._patience.pause_s(error, monotonic())
        self._on_trouble(error)
        await asyncio.sleep(pause_s)

    def _hang_up(self) -> None:
        if self._asked is not None:
            self._asked.cancel()
        if self._client is not None:
            self._client.hang_up()
        self._client = self._asked = None

    def _opened(self) -> AsyncClient:
        if self._client is None:
            raise RuntimeError("write `async with Reader(...)`, or await open() first")
        return self._client

    async def _end(self) -> None:
        if self._asked is not None:
            self._asked.cancel()
            self._asked = None
        try:
            if self._bookmark is not None:
                await self._bookmark.close()
        finally:
            if self._target is not None and self._client is not None:
                await self._client.close()

    # -- the cursor -----------------------------------------------------------------------------

    async def _asked_again(self) -> None:
        self._progress.asked_again()
        await self.save_if_due()

    async def _save(self) -> None:
        offset = self._progress.unsaved()
        if offset is not None and self._bookmark is not None:
            await self._bookmark.save(offset, self._seen)
            self._progress.saved(offset, monotonic())


class _ByBatches:
    def __init__(self, reader: AsyncReader) -> None:
        self._reader = reader

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        batch = await self._reader.next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch


async def _seen(client: AsyncClient, topic: str) -> TopicIdentity | None:
    try:
        return TopicIdentity.of(await client.stats(topic))
    except (NotFound, ValueError):
        return None
