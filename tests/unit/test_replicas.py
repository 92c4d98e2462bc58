"""The commit rule and the in-sync set, as tables and dialogues."""

from __future__ import annotations

import pytest

from logd.cluster.replicas import Replicas, Stream

LAG_S = 10.0


def replicas(*in_sync: str, min_in_sync: int = 2, **election_ends: int) -> Replicas:
    return Replicas("a", in_sync, min_in_sync, election_ends or {"app": 0})


def stream(known: Replicas, node: str, number: int, end: int = 0, **acked: int) -> Stream:
    opened = Stream(node, number, {"app": end}, 0.0)
    known.open(opened)
    for topic, offset in acked.items():
        assert known.acknowledge(number, topic, offset)
    return opened


# -- commits ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("b", "c", "own", "committed"),
    [(7, 9, 9, 7), (9, 7, 9, 7), (9, 9, 8, 8), (0, 9, 9, 0), (9, 9, 9, 9)],
)
def test_committed_is_what_all_nodes_of_the_set_have(
    b: int, c: int, own: int, committed: int
) -> None:
    known = replicas("a", "b", "c")
    stream(known, "b", 1, app=b)
    stream(known, "c", 2, app=c)
    assert known.commit("app", own) == committed


def test_a_node_without_a_stream_has_acknowledged_nothing() -> None:
    known = replicas("a", "b", "c")
    stream(known, "b", 1, app=5)
    assert known.commit("app", 5) == 0


def test_nodes_outside_the_set_do_not_count() -> None:
    known = replicas("a", "b")
    stream(known, "b", 1, app=5)
    stream(known, "c", 2, app=1)
    assert known.commit("app", 6) == 5


def test_a_new_stream_starts_without_acknowledgements_and_committed_does_not_go_back() -> None:
    known = replicas("a", "b")
    stream(known, "b", 1, app=5)
    assert known.commit("app", 8) == 5
    replacement = Stream("b", 2, {"app": 8}, 1.0)
    replaced = known.open(replacement)
    assert replaced is not None
    assert replaced.number == 1
    assert not known.acknowledge(1, "app", 8)  # arrives late, on the old stream
    assert known.commit("app", 8) == 5
    assert known.acknowledge(2, "app", 8)
    assert known.commit("app", 8) == 8


def test_the_end_of_a_replaced_stream_does_not_close_the_new_one() -> None:
    known = replicas("a", "b")
    stream(known, "b", 1)
    stream(known, "b", 2, app=3)
    known.close(1, now_s=1.0)
    assert known.commit("app", 3) == 3


def test_while_an_outcome_is_unknown_both_sets_count() -> None:
    known = replicas("a", "b", "c")
    stream(known, "b", 1, app=5)
    known.propose(frozenset("ab"))
    assert known.commit("app", 5) == 0  # c may still be in the set
    known.propose(frozenset("abd"))
    assert known.required == frozenset("bcd")
    known.settle("ab")
    assert known.commit("app", 5) == 5


def test_a_node_counts_before_it_is_added() -> None:
    known = replicas("a", "b")
    stream(known, "b", 1, app=5)
    stream(known, "c", 2, app=3)
    known.propose(frozenset("abc"))
    assert known.commit("app", 5) == 3


@pytest.mark.parametrize(("in_sync", "streams", "writable"), [
    ("ab", "b", True), ("ab", "", False), ("abc", "b", True), ("abc", "", False),
    ("a", "b", False),
])  # fmt: skip
def test_pushes_need_enough_nodes_with_a_stream(in_sync: str, streams: str, writable: bool) -> None:
    known = replicas(*in_sync)
    for number, node in enumerate(streams):
        stream(known, node, number)
    assert known.is_writable is writable


# -- membership ---------------------------------------------------------------------------------


def test_a_node_is_added_when_it_has_the_log_of_the_election() -> None:
    """The committed offset that a new leader knows may be lower than what was acknowledged."""
    known = replicas("a", "b", app=6)
    stream(known, "c", 1, app=5)
    assert known.change(LAG_S, 0.0) is None
    known.acknowledge(1, "app", 6)
    assert known.change(LAG_S, 0.0) == frozenset("abc")


def test_a_node_is_added_when_it_has_every_topic() -> None:
    known = replicas("a", "b", app=1, web=0)
    stream(known, "c", 1, app=1)
    assert known.change(LAG_S, 0.0) is None  # it does not have the empty topic
    known.acknowledge(1, "web", 0)
    assert known.change(LAG_S, 0.0) == frozenset("abc")


def test_a_node_is_added_when_it_has_what_was_committed_since() -> None:
    known = replicas("a", "b", app=1)
    stream(known, "b", 1, app=9)
    stream(known, "c", 2, app=8)
    assert known.commit("app", 9) == 9
    assert not known.is_caught_up("c")
    known.acknowledge(2, "app", 9)
    assert known.is_caught_up("c")


def test_a_suspect_node_needs_what_the_leader_had_when_its_stream_began() -> None:
    known = replicas("a", "b", app=1)
    opened = stream(known, "c", 1, end=7, app=1)
    opened.is_suspect = True
    assert not known.is_caught_up("c")
    known.acknowledge(1, "app", 7)
    assert known.is_caught_up("c")


def test_a_node_without_a_stream_is_removed_after_a_while() -> None:
    known = replicas("a", "b", "c")
    stream(known, "b", 1, app=0)
    known.streams["b"].level_at_s = 111.0
    assert known.change(LAG_S, 100.0) is None  # it may come in a moment
    assert known.change(LAG_S, 109.0) is None
    assert known.change(LAG_S, 111.0) == frozenset("ab")


def test_the_set_does_not_shrink_below_the_minimum() -> None:
    known = replicas("a", "b")
    assert known.change(LAG_S, 0.0) is None
    assert known.change(LAG_S, 1000.0) is None


def test_a_follower_under_constant_load_is_level() -> None:
    """It never has the current end, but it has what there was a moment ago."""
    known = replicas("a", "b", "c")
    level, slow = stream(known, "b", 1, app=0), stream(known, "c", 2, app=0)
    for second in range(1, 30):
        known.acknowledge(1, "app", 100 * (second - 1))
        for one in (level, slow):
            one.note_progress({"app": 100 * second}, float(second))
    assert level.level_at_s >= 27.0
    assert slow.level_at_s <= 1.0
    assert known.change(LAG_S, 29.0) == frozenset("ab")


def test_a_caught_up_node_is_added_before_another_is_removed() -> None:
    """So a set of the smallest size can replace one that is gone."""
    known = replicas("a", "b")
    stream(known, "c", 1, app=0)
    assert known.change(LAG_S, 1000.0) == frozenset("abc")
    known.settle("abc")
    known.streams["c"].level_at_s = 1011.0
    assert known.change(LAG_S, 1000.0) is None
    assert known.change(LAG_S, 1011.0) == frozenset("ac")
