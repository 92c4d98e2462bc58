"""Who may connect, decided with a clock of the test's own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from logd.access.connection_limits import AdmittedConnection, ConnectionLimits
from logd.config import Config
from tests.support.clock import Clock


def admission(**settings: int) -> tuple[ConnectionLimits, Clock]:
    clock = Clock()
    return ConnectionLimits(Config(**settings), clock), clock  # type: ignore[arg-type]


def is_in(entry: AdmittedConnection) -> bool:
    return entry.refusal is None


def test_a_rate_lets_a_second_of_it_in_at_once() -> None:
    limits, clock = admission(connection_rate=10)
    assert [is_in(limits.enter("a")) for _ in range(12)] == [True] * 10 + [False] * 2
    clock.now_s += 0.25
    assert [is_in(limits.enter("a")) for _ in range(4)] == [True] * 2 + [False] * 2
    clock.now_s += 1000
    assert [is_in(limits.enter("a")) for _ in range(11)] == [True] * 10 + [False]


def test_a_handshake_has_had_its_turn() -> None:
    limits, _ = admission(connection_rate=1)
    assert limits.may_begin(0)
    assert is_in(limits.enter("a", had_turn=True))
    assert not limits.may_begin(0)
    assert not is_in(limits.enter("a"))


def test_addresses_of_one_machine_are_one() -> None:
    limits, _ = admission(max_connections_per_address=1)
    for first, same, other in (
        ("10.0.0.1", "10.0.0.1", "10.0.0.2"),
        ("2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1"),
        ("fe80::1%eth0", "fe80::2%eth0", "fe80:0:0:1::1"),
        ("?", "?", ""),
    ):
        assert is_in(limits.enter(first))
        assert not is_in(limits.enter(same))
        assert is_in(limits.enter(other))


def test_only_some_of_those_turned_away_are_answered() -> None:
    """A flood of them costs no memory and no descriptors for the sake of politeness."""
    limits, _ = admission(max_connections=1)
    limits.enter("a")
    refused = [limits.enter("a") for _ in range(1000)]
    assert [entry.is_answered for entry in refused] == [True] * 256 + [False] * 744
    for entry in refused:
        limits.leave(entry)
    assert limits.enter("a").is_answered


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abc")), max_size=200))
def test_counts_are_right_whatever_comes_and_goes(steps: list[tuple[bool, str]]) -> None:
    limits, _ = admission(max_connections=5, max_connections_per_address=3)
    inside: list[AdmittedConnection] = []
    outside: list[AdmittedConnection] = []
    for comes, address in steps:
        if comes:
            entry = limits.enter(address)
            from_there = sum(one.address == address for one in inside)
            assert is_in(entry) == (len(inside) < 5 and from_there < 3)
            (inside if is_in(entry) else outside).append(entry)
        elif outside and len(outside) > len(inside):
            limits.leave(outside.pop())
        elif inside:
            limits.leave(inside.pop(0))
        assert (limits.open, limits.refused) == (len(inside), len(outside))
