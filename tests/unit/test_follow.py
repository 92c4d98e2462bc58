"""Parts of FOLLOW without a daemon: sending the same bytes to many sockets, with and without C, and
what happens if a descriptor or a right is missing."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from types import ModuleType

import pytest

from logd.net import follow
from logd.partition import Slice
from logd.storage.disk import File, NotCached
from tests.unit.compiled import source
from tests.unit.following import Peer, Scene

FORMS = [
    pytest.param(source("net.follow", native=False), id="Python"),
    pytest.param(follow, id="installed"),
]


@pytest.mark.parametrize("module", FORMS)
def test_who_does_not_accept_everything_is_returned(module: ModuleType) -> None:
    pairs = [socket.socketpair() for _ in range(100)]
    try:
        for ours, _ in pairs:
            ours.setblocking(False)
        pairs[7][0].send(bytes(8 << 20))  # what fits, so that nothing more does
        with pytest.raises(BlockingIOError):
            pairs[7][0].send(b"more")
        pairs[9][1].close()
        sockets = [ours.fileno() for ours, _ in pairs]
        assert module.deliver(sockets, b"hello\n") == [(7, 0), (9, 0)]
        assert all(theirs.recv(100) == b"hello\n" for _, theirs in pairs[10:])
        large = bytes(8 << 20)
        left = module.deliver(sockets[20:22], large)
        assert [index for index, _ in left] == [0, 1]
        for (_, theirs), (_, sent) in zip(pairs[20:22], left, strict=True):
            assert 0 < sent < len(large)
            theirs.setblocking(False)
            assert received(theirs) == sent
        assert module.deliver([], b"hello\n") == []
    finally:
        for pair in pairs:
            for one in pair:
                one.close()


def received(connection: socket.socket) -> int:
    size = 0
    try:
        while piece := connection.recv(1 << 20):
            size += len(piece)
    except BlockingIOError:
        pass
    return size


def test_the_rest_of_slices() -> None:
    """What was sent already is left out, wherever that ends."""
    file = object()
    slices = [Slice(file, 100, 10), Slice(file, 0, 1), Slice(file, 5, 20)]  # type: ignore[arg-type]
    whole = [(one.position + i) for one in slices for i in range(one.size)]
    for skipped in range(len(whole) + 1):
        rest = follow._without_start(slices, skipped)
        assert all(part.size > 0 for part in rest)
        found = [(part.position + i) for part in rest for i in range(part.size)]
        assert found == whole[skipped:]


def test_without_descriptors_a_stalled_follower_delays_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its socket does not accept cannot be sent from the file, which needs a descriptor."""

    def refuse(descriptor: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with Scene(tmp_path) as scene:
        stalled, pusher = Peer(scene, is_direct=True), Peer(scene, is_direct=True)
        stalled.follow(b"next")
        scene.settle()
        with monkeypatch.context() as patch:
            patch.setattr(os, "dup", refuse)
            for _ in range(20):
                pusher.push(scene.next_message(1000))
                scene.settle()
                pusher.drain()
                assert not pusher.expected, "it is acknowledged"
            assert stalled.unwritten_bytes() > 0
        stalled.drain()
        scene.settle()
        scene.end()


def test_rights_are_checked_again_when_the_start_was_read_from_the_disk(tmp_path: Path) -> None:
    with Scene(tmp_path, tokens=True) as scene:
        peer = Peer(scene, is_direct=True)
        scene.settle()
        peer.drain()
        read, cold = File.read, [True]

        def read_once_cold(self: File, position: int, size: int) -> bytearray:
            if cold:
                cold.clear()
                raise NotCached(self, position, size)
            return read(self, position, size)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(File, "read", read_once_cold)
            peer._socket.send(b"FOLLOW app @1\r\n")
            while cold:
                scene.loop.turn()
            peer.may_read = False
            scene.reload_access()
            for _ in range(20):
                scene.loop.turn()
        assert peer._socket.recv(1000).startswith(b"ERR forbidden ")
        assert peer.follower is None
