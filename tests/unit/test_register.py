"""The state of a cluster as JSON, and the register in memory that other tests use."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logd.cluster.register import ClusterState, Register, Versioned
from logd.errors import InvalidState, LogdError, OutcomeUnknown, RegisterUnavailable
from tests.support.memory_register import APPLIED, LATE, LOST, UNAVAILABLE, MemoryRegister

STATE = ClusterState(7, "b", ("c", "b", "a"), 2)
TEXT = b'{"epoch":7,"leader":"b","in_sync":["a","b","c"],"min":2}'


def test_a_state_as_json() -> None:
    assert STATE.encode() == TEXT
    assert ClusterState.decode(TEXT) == STATE
    assert STATE.in_sync == ("a", "b", "c")


def changed(**fields: object) -> bytes:
    values = {**json.loads(TEXT), **fields}
    return json.dumps({name: value for name, value in values.items() if value is not ...}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"null", b"[]", b"{}", b"7", b'"text"', b"\xff", TEXT[:-1], TEXT + b"}",
        b"[" * 100_000,
        changed(epoch=-1), changed(epoch="7"), changed(epoch=7.5), changed(epoch=True),
        changed(epoch=1 << 63), changed(epoch=10**400), changed(epoch=None), changed(epoch=...),
        changed(leader=""), changed(leader="a b"), changed(leader="\n"), changed(leader="\udc00"),
        changed(leader="x" * 256), changed(leader=None), changed(leader=7), changed(leader=...),
        changed(in_sync=[]), changed(in_sync=["a", "a"]), changed(in_sync="abc"),
        changed(in_sync=["a", 7]), changed(in_sync=["a", ""]), changed(in_sync=...),
        changed(min=0), changed(min=-1), changed(min="2"), changed(min=None), changed(min=...),
        changed(another=1),
    ],
)  # fmt: skip
def test_anything_else_is_not_a_state(data: bytes) -> None:
    with pytest.raises(InvalidState):
        ClusterState.decode(data)


@given(
    st.binary() | st.recursive(st.none() | st.integers(), st.lists).map(json.dumps).map(str.encode)
)
def test_any_bytes_are_a_state_or_an_error(data: bytes) -> None:
    with pytest.raises(LogdError):
        ClusterState.decode(data)


node = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=255)


@given(
    st.builds(
        ClusterState,
        st.integers(0, (1 << 63) - 1),
        node,
        st.lists(node, min_size=1, unique=True).map(tuple),
        st.integers(1, (1 << 63) - 1),
    )
)
def test_each_state_can_be_read_again(state: ClusterState) -> None:
    assert ClusterState.decode(state.encode()) == state


def test_the_register_in_memory() -> None:
    memory = MemoryRegister()
    register: Register = memory
    assert register.get(1) == Versioned(None, 0)
    assert register.compare_and_set(STATE, 1, 1) is None
    assert register.compare_and_set(STATE, 0, 1) == 1
    assert register.compare_and_set(STATE, 0, 1) is None
    assert register.get(1) == Versioned(STATE, 1)


def test_faults_of_the_register_in_memory() -> None:
    memory = MemoryRegister()
    states = [replace(STATE, epoch=epoch) for epoch in range(4)]
    memory.plan = iter([UNAVAILABLE, UNAVAILABLE, LOST, APPLIED, LATE])
    with pytest.raises(RegisterUnavailable):
        memory.get(1)
    with pytest.raises(RegisterUnavailable):
        memory.compare_and_set(states[0], 0, 1)
    for state, revision in ((states[1], 0), (states[2], 0), (states[3], 1)):
        with pytest.raises(OutcomeUnknown):
            memory.compare_and_set(state, revision, 1)
    assert memory.get(1) == Versioned(states[2], 1)  # and the next is still on its way
    memory.deliver()
    assert memory.get(1) == Versioned(states[3], 2)
