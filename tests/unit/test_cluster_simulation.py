"""The decisions of a cluster in simulation: thousands of failovers, and each rule is needed."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import pytest

from logd.cluster.node import Node
from logd.cluster.register import ClusterState
from logd.cluster.replicas import Replicas
from tests.support.cluster_simulation import Broken, simulate
from tests.support.long_run import LONG

FAILOVERS = 1_000_000 if LONG else 10_000
GROUPS = 8  # tests that run side by side
_PER_RUN = 20
_MUTATION_RUNS = 3000


@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.timeout(3600)
def test_failovers(group: int) -> None:
    """No acknowledged message is lost, and no offset has two contents. A failed seed replays."""
    failovers = 0
    while failovers < FAILOVERS / GROUPS:
        seed = secrets.randbits(32)
        try:
            failovers += simulate(seed, _PER_RUN, syncs=bool(seed % 2)).elections
        except Broken as error:
            raise AssertionError(
                f"simulate({seed}, {_PER_RUN}, syncs={bool(seed % 2)}): {error}"
            ) from error


# -- without one of the rules -------------------------------------------------------------------


def _forget_proposals(patch: pytest.MonkeyPatch) -> None:
    """While the outcome of a change is unknown, count the nodes of the known set only."""
    patch.setattr(Replicas, "propose", lambda replicas, in_sync: None)


def _shrink_below_minimum(patch: pytest.MonkeyPatch) -> None:
    change = Replicas.change

    def without_minimum(replicas: Replicas, *times_s: float) -> frozenset[str] | None:
        minimum, replicas.min_in_sync = replicas.min_in_sync, 1
        try:
            return change(replicas, *times_s)
        finally:
            replicas.min_in_sync = minimum

    patch.setattr(Replicas, "change", without_minimum)
    patch.setattr(Replicas, "is_writable", True)


def _add_without_catching_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replicas, "is_caught_up", lambda replicas, node: node in replicas.streams)


def _trust_after_power_loss(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Node, "_may_lead", lambda node, state: node.name in state.in_sync)


def _lead_without_being_in_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Node, "_may_lead", lambda node, state: not node.is_suspect)


def _resume_leadership(patch: pytest.MonkeyPatch) -> None:
    """Lead again in the epoch that the register names, after a restart."""
    stand = Node._stand

    def resume(node: Node, state: ClusterState) -> object:
        return node._become_leader(state) if state.leader == node.name else stand(node, state)

    patch.setattr(Node, "_stand", resume)


# Acknowledgements of a replaced stream matter only if the leader dies within a few milliseconds of
# another fault: the simulation does not find that rule.
RULES: list[Callable[[pytest.MonkeyPatch], None]] = [
    _forget_proposals, _shrink_below_minimum, _add_without_catching_up, _trust_after_power_loss,
    _lead_without_being_in_sync, _resume_leadership,
]  # fmt: skip


@pytest.mark.parametrize("remove", RULES, ids=lambda remove: remove.__name__.strip("_"))
def test_without_this_rule_the_simulation_fails(
    remove: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch)
    for seed in range(_MUTATION_RUNS):
        try:
            simulate(seed, _PER_RUN)
        except Broken as error:
            print(f"seed {seed}: {error}")
            return
    raise AssertionError(f"{_MUTATION_RUNS} runs without the rule found nothing")
