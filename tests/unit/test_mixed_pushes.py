"""Interleaved pushes and their replies, in C and in Python."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logd.batch import Buffer
from tests.unit.compiled import source

_native = pytest.importorskip("logd._native", reason="no compiler where this was installed")
requests = source("wire.requests", native=False)
replies = source("net.replies", native=False)

PREFIXES = [b"PUSH a ", b"PUSH bb ", b"PUSH c "]
PUSHES = st.sampled_from(
    [
        b"PUSH a 2\r\n1\n",
        b"PUSH a 2\n2\n",
        b"PUSH bb 4\r\n333\n",
        b"PUSH c 1\r\n\n",
        b"PUSH c 11\r\n0123456789\n",  # larger than allowed
        b"PUSH c 3\r\n4\n\n",
        b"PUSH d 2\r\n5\n",
        b"PUSH a 0\r\n",
        b"PUSH a 2 enc=lines\r\n6\n",
        b"push a 2\r\n7\n",
        b"PING\r\n",
        b"P",
    ]
)


@given(st.lists(PUSHES, max_size=12), st.data())
def test_both_forms_find_the_same(pushes: list[bytes], data: st.DataObject) -> None:
    text = b"".join(pushes)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    prefixes = data.draw(st.permutations(PREFIXES))[: data.draw(st.integers(0, 3))]

    def found(form: object) -> tuple[int, list[list[Buffer]], bytes]:
        bodies: list[list[Buffer]] = [[] for _ in prefixes]
        turns = bytearray()
        find = form.mixed_pushes  # type: ignore[attr-defined]
        return find(text, start, end, 10, prefixes, bodies, turns), bodies, bytes(turns)

    assert found(_native) == found(requests)
    stop, bodies, turns = found(_native)
    assert start <= stop <= end
    assert [len(run) for run in bodies] == [turns.count(i) for i in range(len(prefixes))]


@given(st.lists(st.integers(0, 2**63 - 1000), min_size=1, max_size=4), st.binary(max_size=100))
def test_both_forms_answer_the_same(offsets: list[int], numbers: bytes) -> None:
    turns = bytes(number % len(offsets) for number in numbers)
    lines = _native.ok_lines(turns, offsets)
    assert lines == replies.ok_lines(turns, offsets)
    assert lines.count(b"\r\n") == len(turns)


@pytest.mark.parametrize(
    "arguments",
    [
        (b"", 1, 0, 10, [], [], bytearray()),
        (b"", 0, 1, 10, [], [], bytearray()),
        (b"", -1, 0, 10, [], [], bytearray()),
        (b"", 0, 0, 10, [b""], [], bytearray()),
        (b"PUSH a 1\n\n", 0, 10, 10, [b"PUSH a "], [()], bytearray()),
        (b"PUSH a 1\n\n", 0, 10, 10, [b"PUSH a "], [[]], b""),
        (b"", 0, 0, 10, [b""] * 257, [[]] * 257, bytearray()),
    ],
)
def test_wrong_arguments_raise(arguments: tuple[object, ...]) -> None:
    with pytest.raises((TypeError, ValueError)):
        _native.mixed_pushes(*arguments)


@pytest.mark.parametrize(
    "arguments", [(b"\1", [0]), (b"\0", []), (b"\0", [-1]), (b"\0", [1 << 64])]
)
def test_wrong_turns_raise(arguments: tuple[object, ...]) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        _native.ok_lines(*arguments)
