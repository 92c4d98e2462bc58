"""Connections of followers without a daemon: real sockets, and a clock that the test sets.

`Scene` is a store with one topic and its connections, on an event loop that runs one turn at a
time. A `Peer` is the client's side of one connection: it knows which replies are due, and checks
each when it has read all of it. Connections are of two kinds: those whose replies go directly to
the socket, and those whose replies go through the transport, as with TLS.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

from logd.access.access_file import Access, Grant, token_sum
from logd.config import Config
from logd.net import follow
from logd.net.connection import Connection
from logd.net.follow import Follower, FollowerGroup
from logd.net.large_replies import HIGH_BYTES, BufferedSender
from logd.service import SMALL_REPLY_BYTES, Service
from logd.storage.disk import File, NotCached
from logd.storage.scheduler import Done
from logd.store import Store
from logd.tcp import Connections
from logd.topic import Topic
from tests.support.daemon import batches
from tests.support.topic_loop import START_MS, Pushing, batch_of

SOCKET_BYTES = 4608  # the smallest buffer that Linux allows
SETTLED_TURNS = 8  # in which nothing happens: nothing more will
_DIRECT_BYTES = HIGH_BYTES + SMALL_REPLY_BYTES + 1000  # that may wait for a stalled client
_BUFFERED_BYTES = (512 << 10) + (64 << 10) + _DIRECT_BYTES


class TurnLoop(asyncio.SelectorEventLoop):
    """An event loop that runs one turn at a time. It is also the scheduler of the store."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.errors: list[dict[str, Any]] = []
        self.fatalities: list[str] = []
        self.offload_cpu = self.offload_hook = self.offload
        self.set_exception_handler(self._note_error)

    def time(self) -> float:
        return self.now_s

    def _note_error(self, _: object, context: dict[str, Any]) -> None:
        """Except for one of asyncio's own: a transport that is closed while it resumes writing is
        told twice that the connection is lost. The daemon does not use asyncio's transports."""
        if "_call_connection_lost" not in context["message"]:
            self.errors.append(context)

    def turn(self) -> None:
        self.call_soon(self.stop)
        self.run_forever()
        assert not self.errors, str(self.errors)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """Without a thread: the result comes in the next turn."""
        future = self.create_future()

        def done(result: Any, error: BaseException | None) -> None:
            if not future.done():  # it was not cancelled
                future.set_result(result)

        self.offload(partial(func, *args), done)
        return future

    # -- the scheduler --------------------------------------------------------------------------

    def soon(self, call: Callable[[], None]) -> None:
        self.call_soon(call)

    def later(self, delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return self.call_later(delay_s, call)

    def offload(self, work: Callable[[], Any], done: Done) -> None:
        def run() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001  as a thread pool hands it on
                done(None, error)
            else:
                done(result, None)

        self.call_soon(run)

    def now_ms(self) -> int:
        return START_MS + int((self.now_s - 1000) * 1000)

    def monotonic_s(self) -> float:
        return self.now_s

    def fatal(self, reason: str) -> None:
        self.fatalities.append(reason)


class BufferedConnection(Connection):
    """Its replies go through the transport and not directly to the socket, as with TLS."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=HIGH_BYTES)
        make_sender = partial(BufferedSender, is_tls=True)
        self.open(transport, "", self._owner.authorizer(None), make_sender)
        self._admit(self._service.connection_limits.enter("", had_turn=True))


class Expected(NamedTuple):
    """A command that was sent and has no complete reply yet."""

    verb: bytes
    least: int = 0  # where a FOLLOW starts, at least
    most: int = 0
    max_bytes: int = 1 << 20  # of a reply
    body: bytes = b""
    is_next: bool = False  # it starts at the end of the topic, whatever that is
    is_far: bool = False  # it starts after the end


class Scene:
    """One topic, its connections, and the messages that it is known to contain."""

    def __init__(self, directory: Path, *, tokens: bool = False, **settings: Any) -> None:
        self.loop = TurnLoop()
        self.config = Config(data_dir=directory, min_free_bytes=0, **settings)
        store = Store(self.config, self.loop)
        store.open()
        self.store = store
        self.service = Service(store, self.config, self.loop)
        if tokens:
            self.service.access = Access({}, {})
        self.connections = Connections(self.service)
        self.messages: dict[int, bytes] = {}  # by offset
        self.cold_reads = 0  # so many of the next reads find nothing in the page cache
        self.short_sends = 0  # so many of the next sends are accepted in part only
        self.peers: list[Peer] = []
        self.is_closing = False
        self._pushed = 0
        self._deliver: Callable[[list[int], bytes], list[tuple[int, int]]] = vars(follow)["deliver"]
        topic = store.topic_to_write("app")
        self.loop.turn()
        self.topic: Topic = topic
        self.push([b"first"])
        self.settle()

    def next_message(self, size: int = 0) -> bytes:
        """Each is another one."""
        self._pushed += 1
        return b"%d " % self._pushed + b"x" * size

    def push(self, *groups: list[bytes]) -> None:
        """Store one batch for each list of messages."""
        for messages in groups:
            self.topic.push(StoredBatch(self, messages))

    def found(self, offset: int, messages: list[bytes]) -> None:
        """Somebody was told that these messages are stored there."""
        for at, message in enumerate(messages, offset):
            assert self.messages.setdefault(at, message) == message, f"another message at {at}"

    def settle(self) -> None:
        """Run turns until nothing happens any more."""
        quiet = 0
        while quiet < SETTLED_TURNS:
            before = self._state()
            self.loop.turn()
            quiet = quiet + 1 if self._state() == before else 0
        self.check()

    def _state(self) -> object:
        streams = [(peer.follower, peer.unwritten_bytes()) for peer in self.peers]
        offsets = [(one.offset, one.group is None) for one, _ in streams if one is not None]
        return offsets, [size for _, size in streams], self.topic.readable.next, self.cold_reads

    def pass_time(self, seconds: float) -> None:
        self.loop.now_s += seconds
        self.loop.turn()

    def end(self) -> None:
        for peer in self.peers:
            peer.disconnect()
        self.settle()
        for _ in range(100):
            if self.connections.open and not self.is_closing:
                self.pass_time(61)  # a READ that waits ends; a write finds that the client is gone
                self.settle()
        if self.is_closing:
            for connection in list(self.connections.open):
                connection.end()  # the daemon does this when all topics are closed
            self.settle()
        waiting = self.topic.waiting_readers
        assert (waiting.followers, waiting.group, waiting.reads) == (0, None, 0)
        assert not waiting.calls
        assert not self.connections.open
        self.close()
        self.settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Release the sockets, also after a failure."""
        self.loop.set_exception_handler(lambda loop, context: None)
        self.loop.errors.clear()
        for peer in self.peers:
            peer.release()
        for _ in range(SETTLED_TURNS):
            self.loop.turn()
        self.loop.close()

    def close(self, *, stop_connections: bool = True) -> None:
        """Stop as the daemon does, or close only the topic."""
        if not self.is_closing:
            self.is_closing = True
            for peer in self.peers:
                peer.streams_at_stop = peer.streams if peer.follower is not None else 0
            if stop_connections:
                self.connections.stop()
            self.store.close(lambda: None)

    def deliver(self, sockets: list[int], data: bytes) -> list[tuple[int, int]]:
        """`deliver` of the module, with sockets that accept less than they could."""
        left = []
        for i, one in enumerate(sockets):
            accepted = data
            if self.short_sends:
                self.short_sends -= 1
                accepted = data[: self.short_sends * 7 % len(data)]
            (sent,) = [sent for _, sent in self._deliver([one], accepted)] or [len(accepted)]
            if sent < len(data):
                left.append((i, sent))
        return left

    # -- rights ---------------------------------------------------------------------------------

    def grant(self, name: str, *, may_read: bool) -> Grant:
        read = ("*",) if may_read else ()
        return Grant(name, read=read, write=("*",), proof=token_sum(token(name)))

    def reload_access(self) -> None:
        grants = [
            self.grant(peer.name, may_read=peer.may_read) for peer in self.peers if peer.has_token
        ]
        self.service.access = Access({cast(bytes, one.proof): one for one in grants}, {})
        for connection in list(self.connections.open):
            connection.reauthorize()

    # -- invariants -----------------------------------------------------------------------------

    def check(self) -> None:
        """What always holds between two turns."""
        waiting, group = self.topic.waiting_readers, self.topic.waiting_readers.group
        followers = [peer.follower for peer in self.peers if peer.follower is not None]
        assert waiting.followers == len(followers)
        polls = [peer for peer in self.peers if peer.connection._waiting_read is not None]
        assert waiting.reads == len(polls)
        members = {one for one in followers if one.group is not None}
        assert all(one.group is group for one in members)
        assert not any(one.connection.is_closing for one in members), "it is sent more messages"
        if group is None:
            assert not members
        else:
            self._check_group(cast(FollowerGroup, group), members)
        for peer in self.peers:
            most = _DIRECT_BYTES if peer.is_direct else _BUFFERED_BYTES
            assert peer.unwritten_bytes() <= most, "too much is held for a stalled client"

    def _check_group(self, group: FollowerGroup, members: set[Follower]) -> None:
        direct, buffered = group._members, group._buffered
        assert members, "an empty group remains"
        assert members == {*direct, *buffered}
        assert len(members) == len(direct) + len(buffered)
        assert [one.index for one in direct] == list(range(len(direct)))
        assert group._sockets == [one.connection.socket_fd for one in direct]
        assert all(one.connection.socket_fd >= 0 for one in direct)
        assert all(not one.connection.unwritten_bytes() for one in direct)
        assert group.offset == self.topic.readable.next
        assert group in self.topic.waiting_readers.calls


class StoredBatch(Pushing):
    """A push that tells the scene what was stored."""

    def __init__(self, scene: Scene, messages: list[bytes]) -> None:
        super().__init__(batch_of(messages))
        self._scene, self._messages = scene, messages

    def stored(self) -> None:
        super().stored()
        self._scene.found(self.offset, self._messages)


class Peer:
    """The client's side of one connection."""

    def __init__(self, scene: Scene, *, is_direct: bool) -> None:
        self._scene, self.is_direct = scene, is_direct
        self.name = f"peer{len(scene.peers)}"
        self.may_read = True
        self.was_revoked = False  # its right to read, at some time
        self.has_token = True
        self.is_open = True
        self.is_cut = False  # the daemon has closed the connection
        self.has_eof = False
        self.heartbeats = 0
        self.expected: deque[Expected] = deque()
        self.streams_at_stop = 0  # of which one had started, if it is not 0
        self.position: int | None = None  # in the stream that is being received
        self._seen_to = 0  # the end of the last reply with messages
        self._rest = b""
        theirs, self._socket = socket.socketpair()
        for one in (theirs, self._socket):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
            one.setblocking(False)
        kind = Connection if is_direct else BufferedConnection
        scene.peers.append(self)
        if scene.service.access is not None:
            scene.reload_access()
        self.connection: Connection = kind(scene.connections)
        self._transport, _ = scene.loop.run_until_complete(
            scene.loop.connect_accepted_socket(lambda: self.connection, theirs)
        )
        if scene.service.access is not None:
            self.send(b"AUTH " + token(self.name) + b"\r\n", Expected(b"AUTH"))

    @property
    def follower(self) -> Follower | None:
        """If there is a stream at the daemon."""
        follower = self.connection._follower
        return follower if follower is not None and follower.request is not None else None

    def unwritten_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    @property
    def is_streaming(self) -> bool:
        """Is a FOLLOW the last command?"""
        return self.is_open and len(self.expected) == 1 and self.expected[0].verb == b"FOLLOW"

    @property
    def reads(self) -> int:
        """READs without a reply."""
        return 0 if self.is_cut else sum(one.verb == b"READ" for one in self.expected)

    @property
    def streams(self) -> int:
        return sum(one.verb == b"FOLLOW" for one in self.expected)

    # -- sending --------------------------------------------------------------------------------

    def send(self, data: bytes, *expected: Expected) -> None:
        """Send commands; as much as the socket accepts, which is all unless they are very long."""
        if not self.is_open or self.has_eof or self._scene.is_closing:
            return
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            return
        except OSError:
            self.is_cut = True
            return
        assert sent == len(data)
        self.expected += expected

    def follow(self, where: bytes, max_bytes: int | None = None) -> None:
        readable = self._scene.topic.readable
        least, most = readable.next, 1 << 62
        if where == b"first":
            least = readable.first
        elif where != b"next":
            least = most = int(where)
        words = [b"FOLLOW app", where]
        if max_bytes is not None:
            words.append(b"bytes=%d" % max_bytes)
        limit = (1 << 20) if max_bytes is None else max_bytes
        is_far = least > readable.next
        expected = Expected(b"FOLLOW", least, most, limit, b"", where == b"next", is_far)
        self.send(b" ".join(words) + b"\r\n", expected)

    def push(self, message: bytes) -> None:
        body = message + b"\n"
        self.send(b"PUSH app %d\r\n" % len(body) + body, Expected(b"PUSH", body=message))

    def read(self, offset: int | None, wait_ms: int = 0) -> None:
        where = b"next" if offset is None else b"%d" % offset
        self.send(b"READ app %s 5 wait=%d\r\n" % (where, wait_ms), Expected(b"READ"))

    def half_close(self) -> None:
        if self.is_open and not self.has_eof:
            self.has_eof = True
            self._socket.shutdown(socket.SHUT_WR)

    def disconnect(self, *, reset: bool = False) -> None:
        if self.is_open:
            if reset:
                linger = struct.pack("ii", 1, 0)
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._socket.close()
            self.is_open = False
            self.expected.clear()
            self.position = None

    def release(self) -> None:
        self._socket.close()
        if not self._transport.is_closing():
            self._transport.abort()

    # -- receiving ------------------------------------------------------------------------------

    def receive(self, size: int) -> int:
        """Read up to `size` bytes, and check the replies that are complete."""
        if not self.is_open or self.is_cut:
            return 0
        try:
            data = self._socket.recv(size)
        except BlockingIOError:
            return 0
        except ConnectionError:
            data = b""
        if not data:
            self.is_cut = True
            return 0
        self._rest += data
        while (end := self._rest.find(b"\r\n")) >= 0:
            head = self._rest[:end]
            word, _, words = head.partition(b" ")
            stop = end + 2
            if word in (b"BATCHES", b"TEXT"):
                stop += int(words.split(b" ")[-1])
            if stop > len(self._rest):
                break
            body, self._rest = self._rest[end + 2 : stop], self._rest[stop:]
            self._check(word, head, body)
        return len(data)

    def drain(self) -> None:
        """Read everything that the daemon has for this client."""
        quiet = 0
        while quiet < SETTLED_TURNS:
            self._scene.loop.turn()
            quiet = 0 if self.receive(1 << 20) else quiet + 1
        self._scene.check()

    def _check(self, word: bytes, head: bytes, body: bytes) -> None:
        assert self.expected, f"not expected: {head!r}"
        due = self.expected[0]
        assert due.verb == b"FOLLOW" or self.position is None
        if word == b"BATCHES":
            self._check_batches(due, head, body)
            if due.verb == b"FOLLOW":
                return
            assert due.verb == b"READ", head
        elif word == b"END":
            offset = int(head.split(b" ")[1])
            assert due.verb == b"FOLLOW"
            self._check_start(due, offset)
            assert offset == self.position
            assert len(self.expected) > 1 or self._scene.is_closing, "END without a reason"
        elif word == b"ERR":
            self._check_error(due, head)
        elif due.verb == b"PUSH":
            self._scene.found(int(head.split(b" ")[1]), [due.body])
        else:
            assert (word, due.verb) in ((b"OK", b"PING"), (b"OK", b"AUTH"), (b"TEXT", b"STATS"))
        self.expected.popleft()
        self.position = None

    def _check_start(self, due: Expected, offset: int) -> None:
        """The first reply of a stream shows where it started."""
        if self.position is None:
            least = max(due.least, self._seen_to) if due.is_next else due.least
            assert least <= offset <= due.most, f"{least} <= {offset} <= {due.most}"
            assert offset <= self._scene.topic.readable.next
            self.position = offset

    def _check_batches(self, due: Expected, head: bytes, body: bytes) -> None:
        offset, count, size = map(int, head.split(b" ")[1:])
        assert size == len(body)
        found = batches(body)
        if due.verb == b"FOLLOW":
            self._check_start(due, offset)
            assert offset == self.position, f"{offset} follows {self.position}"
            assert size <= due.max_bytes or len(found) == 1, f"{size} bytes in one reply"
            self.heartbeats += not count
            self.position = offset + count
        assert not count or found[0].header.offset <= offset < found[0].header.next
        at = found[0].header.offset if found else offset
        for batch in found:
            assert batch.header.offset == at
            self._scene.found(at, batch.messages)
            at = batch.header.next
        assert at == offset + count
        self._seen_to = max(self._seen_to, at)

    def _check_error(self, due: Expected, head: bytes) -> None:
        code = head.split(b" ")[1]
        readable = self._scene.topic.readable
        if code == b"forbidden":
            assert self.was_revoked
        elif code == b"unauthorized":
            assert not self.has_token
        elif code == b"shutting-down":
            assert self._scene.is_closing
        elif code == b"faulted":
            assert readable.damages
            if self.position is not None:
                assert any(one.first <= self.position < one.next for one in readable.damages)
        elif code == b"out-of-range":
            assert due.verb in (b"FOLLOW", b"READ")
            if due.verb == b"FOLLOW":
                at = due.least if self.position is None else self.position
                assert at < readable.first or due.is_far
        else:
            raise AssertionError(head)

    def check_complete(self) -> None:
        """Everything was received: a stream is at the end of the topic."""
        if not self.is_open or self.is_cut:
            return
        assert not self._rest, f"an incomplete reply: {self._rest[:100]!r}"
        if self._scene.is_closing:
            assert self.streams < self.streams_at_stop or not self.streams_at_stop
        elif self.is_streaming:
            assert self.follower is not None
            assert self.follower.group is not None, "it does not wait for messages"
            if self.position is not None:
                assert self.position == self._scene.topic.readable.next
        else:
            assert not self.expected, f"no reply: {self.expected}"


def token(name: str) -> bytes:
    return name.encode() + b"-0123456789abcdef"


def reading_from(scene: Callable[[], Scene | None]) -> Callable[[File, int, int], bytearray]:
    """`File.read` that finds nothing in the page cache as often as the scene wants."""
    real = File.read

    def read(self: File, position: int, size: int) -> bytearray:
        current = scene()
        if current is not None and current.cold_reads:
            current.cold_reads -= 1
            raise NotCached(self, position, size)
        return real(self, position, size)

    return read
