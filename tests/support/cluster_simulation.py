"""A cluster of simulated machines that runs the real decisions of `logd.cluster.node`.

One heap of events and one random generator: a seed gives the same run again. Nodes are killed,
suspended and lose power; links are cut in one or both directions; replies of the register are lost,
and its compare-and-sets are applied late or never. A stream keeps its order and may break anywhere.

Checked at every step: an acknowledged message is in the log of whoever leads later; an epoch and an
offset identify one message; what a node shows as committed is never taken back or replaced.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from logd.cluster import node as decisions
from logd.cluster.epoch_history import EpochHistory
from logd.cluster.node import Action, Node, Role, Timing
from logd.cluster.register import ClusterState, Versioned

NAMES = ("a", "b", "c")
TOPIC = "app"
TIMING = Timing(leader_timeout_s=1.0, replica_lag_s=2.0, retry_s=0.1)
_CALL_TIMEOUT_S = 0.5
Message = tuple[int, int]  # its epoch and a number that no other message has


class Broken(AssertionError):
    """A guarantee does not hold."""


class SimulatedRegister:
    def __init__(self) -> None:
        self.value = Versioned(None, 0)

    def set(self, state: ClusterState, revision: int) -> int | None:
        if revision != self.value.revision:
            return None
        self.value = Versioned(state, revision + 1)
        return revision + 1


class Machine:
    """A node: what is on its disk, and the process if there is one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0  # persisted
        self.is_suspect = False
        self.log: list[Message] = []
        self.synced = 0
        self.committed = 0  # as far as this process knows
        self.process: Node | None = None
        self.life = 0  # number of the process
        self.leads = False
        self.suspended_to_s = 0.0
        self.stream = 0  # to the leader, as a follower
        self.outgoing: dict[int, tuple[str, int]] = {}  # streams to followers: node, next to send

    @property
    def history(self) -> EpochHistory:
        history = EpochHistory()
        for offset, (epoch, _) in enumerate(self.log):
            if epoch != history.last_epoch:
                history = history.began(epoch, offset)
        return history


class Simulation:
    def __init__(self, seed: int, *, syncs: bool = False) -> None:
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.elections = 0
        self.register = SimulatedRegister()
        self.machines = {name: Machine(name) for name in NAMES}
        self.acked: list[Message] = []  # by offset
        self.written: dict[tuple[int, int], int] = {}  # by epoch and offset
        self.cut: set[tuple[str, str]] = set()
        self._ends: dict[int, tuple[str, str]] = {}  # of streams: follower and leader
        self._dead_streams: set[int] = set()
        self._arrives_at_s: dict[tuple[int, str], float] = {}
        self._syncs, self._numbers = syncs, 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self.is_quiet = False  # no more faults
        for name in NAMES:
            self._start(self.machines[name])
            self.later(0.05, lambda name=name: self._tick(name))  # type: ignore[misc]

    # -- time -----------------------------------------------------------------------------------

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.at(self.now_s + delay_s, call)

    def at(self, time_s: float, call: Callable[[], None], order: int = 0) -> int:
        """Call this at a time. Calls at one time are made in the order of these numbers."""
        self._order += 1
        order = order or self._order
        heapq.heappush(self._events, (time_s, order, call))
        return order

    def run(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, call = heapq.heappop(self._events)
            call()
        self.now_s = until_s

    def _at(self, machine: Machine, call: Callable[[Node], list[Action] | None]) -> None:
        """Something happens to the process that runs now; a suspended one notices it later."""
        life = machine.life

        order = 0

        def happen() -> None:
            nonlocal order
            if machine.process is None or machine.life != life:
                return
            if machine.suspended_to_s > self.now_s:
                order = self.at(machine.suspended_to_s, happen, order)
                return
            self._act(machine, call(machine.process) or [])

        happen()

    # -- processes ------------------------------------------------------------------------------

    def _start(self, machine: Machine) -> None:
        machine.life += 1
        machine.committed, machine.leads, machine.outgoing = 0, False, {}
        machine.process = Node(
            machine.name, epoch=machine.epoch, is_suspect=machine.is_suspect, min_in_sync=2,
            timing=TIMING,
        )  # fmt: skip
        machine.process.wrote({TOPIC: len(machine.log)})

    def kill(self, name: str, noticed_s: float = 0.01) -> None:
        machine = self.machines[name]
        machine.process, machine.leads = None, False
        machine.suspended_to_s = 0.0
        for number in [machine.stream, *machine.outgoing]:
            self._break(number, noticed_s)
        self.later(self.random.uniform(0.1, 5.0), lambda: self._restart(machine))

    def _restart(self, machine: Machine) -> None:
        if machine.process is None:
            self._start(machine)

    def lose_power(self, name: str) -> None:
        """What was not synced is gone, or a part of it. Fewer than two at a time."""
        machine = self.machines[name]
        if any(one.is_suspect for one in self.machines.values()):
            return
        self.kill(name, noticed_s=self.random.uniform(0.5, 3.0))  # nothing closes its connections
        if not self._syncs:
            del machine.log[self.random.randint(machine.synced, len(machine.log)) :]
            machine.is_suspect = True

    def _tick(self, name: str) -> None:
        machine = self.machines[name]
        self._at(machine, lambda node: node.tick(self.now_s))
        self._commit(machine)
        if machine.process is not None and self.random.random() < 0.05:
            machine.synced = len(machine.log)
        self.later(self.random.uniform(0.03, 0.07), lambda: self._tick(name))

    def _act(self, machine: Machine, actions: list[Action]) -> None:
        for action in actions:
            self._do(machine, action)
        self._commit(machine)

    def _do(self, machine: Machine, action: Action) -> None:
        match action:
            case decisions.ReadRegister():
                self._read_register(machine)
            case decisions.CompareAndSet(state, revision):
                self._set_register(machine, state, revision)
            case decisions.Persist(epoch, is_suspect):
                if epoch < machine.epoch:
                    raise Broken(f"{machine.name} goes back from {machine.epoch} to {epoch}")
                machine.epoch, machine.is_suspect = epoch, is_suspect
            case decisions.FollowLeader(leader, epoch):
                self._connect(machine, leader, epoch)
            case decisions.Lead():
                self._lead(machine)
            case decisions.StepDown():
                machine.leads = False
                for number in list(machine.outgoing):
                    self._break(number)
            case decisions.CloseStream(number):
                self._break(number)
            case decisions.ClearSuspicion(number):
                self._send(number, machine, lambda peer: self._cleared(peer, number))

    def _lead(self, machine: Machine) -> None:
        self.elections += 1
        machine.leads, machine.outgoing, machine.stream = True, {}, 0
        state = self.register.value.state
        is_newest = state is not None and state.epoch == machine.epoch  # not one that was suspended
        if is_newest and machine.log[: len(self.acked)] != self.acked:
            raise Broken(f"{machine.name} leads {machine.epoch} without acknowledged messages")

    # -- the register ---------------------------------------------------------------------------

    def _delay_s(self) -> float:
        if not self.is_quiet and self.random.random() < 0.03:
            return self.random.uniform(0.4, 3.0)
        return self.random.uniform(0.001, 0.01)

    def _read_register(self, machine: Machine) -> None:
        to_s, back_s, life = self._delay_s(), self._delay_s(), machine.life

        def arrive() -> None:
            view = self.register.value
            self.later(
                back_s,
                lambda: self._at_life(
                    machine, life, lambda node: node.register_read(view, self.now_s)
                ),
            )

        is_cut = (machine.name, "register") in self.cut
        if is_cut or to_s + back_s > _CALL_TIMEOUT_S:
            self.later(_CALL_TIMEOUT_S, lambda: self._at_life(machine, life, Node.register_failed))
        else:
            self.later(to_s, arrive)

    def _at_life(self, machine: Machine, life: int, call: Callable[[Node], Any]) -> None:
        if machine.life == life:
            self._at(machine, call)

    def _set_register(self, machine: Machine, state: ClusterState, revision: int) -> None:
        """Once sent it may be applied, whatever happens to its sender."""
        to_s, back_s, life = self._delay_s(), self._delay_s(), machine.life
        is_lost = (machine.name, "register") in self.cut
        if is_lost and self.random.random() < 0.5:
            to_s += self.random.uniform(0.5, 3.0)  # on its way when the link was cut
        elif is_lost:
            to_s = -1.0
        is_answered = to_s >= 0 and to_s + back_s < _CALL_TIMEOUT_S

        def arrive() -> None:
            result = self.register.set(state, revision)
            if is_answered:
                self.later(back_s, lambda: self._at_life(
                    machine, life, lambda node: node.register_set(result, self.now_s)))  # fmt: skip

        if to_s >= 0:
            self.later(to_s, arrive)
        if not is_answered:
            self.later(
                _CALL_TIMEOUT_S, lambda: self._at_life(machine, life, Node.register_set_unknown)
            )

    # -- streams --------------------------------------------------------------------------------

    def _connect(self, machine: Machine, leader: str, epoch: int) -> None:
        """Open a stream; the first message tells the leader who follows."""
        self._break(machine.stream)
        self._numbers += 1
        number = machine.stream = self._numbers
        self._ends[number] = (machine.name, leader)
        if self.machines[leader].process is None:
            self.later(0.01, lambda: self._refused(machine, number))
            return
        is_suspect = machine.is_suspect
        self._send(number, machine, lambda peer: self._opened(peer, number, epoch, is_suspect))

    def _refused(self, machine: Machine, number: int) -> None:
        if machine.stream == number:
            self._at(machine, Node.leader_lost)

    def _send(self, number: int, sender: Machine, deliver: Callable[[Machine], None]) -> None:
        """To the other end, in order. On a cut link the stream is broken, and nobody knows yet."""
        follower, leader = self._ends[number]
        target = self.machines[leader if sender.name == follower else follower]
        if number in self._dead_streams:
            return
        if (sender.name, target.name) in self.cut:
            self._break(number, self.random.uniform(0.5, 3.0))
            return
        key = (number, target.name)
        delay_s = self._delay_s()
        at_s = max(self.now_s + delay_s, self._arrives_at_s.get(key, 0.0))
        self._arrives_at_s[key] = at_s

        life = target.life

        def arrive() -> None:
            if number in self._dead_streams or target.process is None or target.life != life:
                return
            if target.suspended_to_s > self.now_s:
                self.at(target.suspended_to_s, arrive, order)
                return
            deliver(target)

        order = self.at(at_s, arrive)

    def _break(self, number: int, noticed_s: float = 0.01) -> None:
        if not number or number in self._dead_streams:
            return
        self._dead_streams.add(number)
        for name in self._ends[number]:
            self.later(noticed_s, lambda name=name: self._closed(self.machines[name], number))  # type: ignore[misc]

    def _closed(self, machine: Machine, number: int) -> None:
        if number in machine.outgoing:
            del machine.outgoing[number]
            self._at(machine, lambda node: node.stream_closed(number, self.now_s))
        elif machine.stream == number and machine.process is not None:
            node, leader = machine.process, self._ends[number][1]
            if node.role is Role.FOLLOWER:
                epoch = node.epoch
                self.later(0.1, lambda: self._reconnect(machine, number, leader, epoch))

    def _reconnect(self, machine: Machine, number: int, leader: str, epoch: int) -> None:
        node = machine.process
        if node is None or machine.stream != number or node.role is not Role.FOLLOWER:
            return
        if node.epoch == epoch:
            self._connect(machine, leader, epoch)

    def _opened(self, leader: Machine, number: int, epoch: int, is_suspect: bool) -> None:
        assert leader.process is not None
        follower = self._ends[number][0]
        actions = leader.process.stream_opened(
            follower, number, epoch, is_suspect=is_suspect, now_s=self.now_s
        )
        self._act(leader, actions)
        if decisions.CloseStream(number) in actions:
            return
        leader.outgoing[number] = (follower, -1)
        history, end = leader.history, len(leader.log)
        self._send(number, leader, lambda peer: self._truncate(peer, number, epoch, history, end))

    def _truncate(
        self, follower: Machine, number: int, epoch: int, history: EpochHistory, end: int
    ) -> None:
        node = follower.process
        if node is None or follower.stream != number or node.epoch != epoch:
            return
        node.leader_heard(self.now_s)
        agreed = follower.history.agrees_to(len(follower.log), history, end)
        if agreed < follower.committed:
            raise Broken(f"{follower.name} would cut committed messages from {agreed} on")
        del follower.log[agreed:]
        follower.synced = len(follower.log)  # a truncation is synced
        self._stored(follower, number)

    def _stored(self, follower: Machine, number: int) -> None:
        assert follower.process is not None
        end = len(follower.log)
        follower.process.wrote({TOPIC: end})
        if self._syncs:
            follower.synced = end
        self._send(number, follower, lambda peer: self._acknowledged(peer, number, end))

    def _acknowledged(self, leader: Machine, number: int, end: int) -> None:
        if number not in leader.outgoing or not leader.leads:
            return
        assert leader.process is not None
        follower, next_ = leader.outgoing[number]
        if next_ < 0:
            leader.outgoing[number] = (follower, end)
        leader.process.acknowledged(number, TOPIC, end)
        self._commit(leader)
        self._replicate(leader)

    def _replicate(self, leader: Machine) -> None:
        for number, (follower, next_) in list(leader.outgoing.items()):
            if next_ < 0:
                continue
            part, committed, epoch = leader.log[next_:], leader.committed, leader.epoch
            leader.outgoing[number] = (follower, len(leader.log))
            self._send(number, leader, lambda peer, number=number, next_=next_, part=part,  # type: ignore[misc]
                       committed=committed, epoch=epoch:
                       self._append(peer, number, next_, part, committed, epoch))  # fmt: skip

    def _append(
        self, follower: Machine, number: int, at: int, part: list[Message], committed: int,
        epoch: int,
    ) -> None:  # fmt: skip
        node = follower.process
        if node is None or follower.stream != number or node.epoch != epoch:
            return
        node.leader_heard(self.now_s)
        if at != len(follower.log):
            raise Broken(f"{follower.name} ends at {len(follower.log)} and gets {at}")
        if part:
            follower.log += part
            self._stored(follower, number)
        self._show(follower, min(committed, len(follower.log)))

    def _cleared(self, follower: Machine, number: int) -> None:
        if follower.stream == number and follower.process is not None:
            follower.synced = len(follower.log)
            self._act(follower, follower.process.suspicion_cleared())

    # -- clients --------------------------------------------------------------------------------

    def push(self, name: str) -> None:
        """Somebody pushes to a node that believes it leads."""
        machine = self.machines[name]
        node = machine.process
        if node is None or not machine.leads or machine.suspended_to_s > self.now_s:
            return
        if node.replicas is None or not node.replicas.is_writable:
            return
        self._numbers += 1
        place = (node.epoch, len(machine.log))
        if self.written.setdefault(place, self._numbers) != self._numbers:
            raise Broken(f"epoch and offset {place} are used twice")
        machine.log.append((node.epoch, self._numbers))
        if self._syncs:
            machine.synced = len(machine.log)
        node.wrote({TOPIC: len(machine.log)})
        self._commit(machine)
        self._replicate(machine)

    def _commit(self, machine: Machine) -> None:
        node = machine.process
        if node is None or node.replicas is None or not machine.leads:
            return
        if machine.suspended_to_s > self.now_s:
            return
        before = machine.committed
        self._show(machine, node.replicas.commit(TOPIC, len(machine.log)))
        if machine.committed != before:
            self._replicate(machine)

    def _show(self, machine: Machine, committed: int) -> None:
        """These messages are acknowledged to writers, or shown to readers, from now on."""
        machine.committed = max(machine.committed, committed)
        for offset in range(len(self.acked), machine.committed):
            self.acked.append(machine.log[offset])
        for offset in range(max(0, machine.committed - 3), machine.committed):
            if machine.log[offset] != self.acked[offset]:
                raise Broken(f"{machine.name} shows another message at {offset}")

    # -- faults ---------------------------------------------------------------------------------

    def disturb(self) -> None:
        """One random fault."""
        name = self.random.choice(NAMES)
        leaders = [machine.name for machine in self.machines.values() if machine.leads]
        if leaders and self.random.random() < 0.6:
            name = self.random.choice(leaders)
        kind = self.random.randrange(10)
        if kind < 4:
            if self.machines[name].process is not None:
                self.kill(name)
        elif kind < 5:
            if self.machines[name].process is not None:
                self.lose_power(name)
        elif kind < 7:
            machine, until_s = self.machines[name], self.now_s + self.random.uniform(0.1, 4.0)
            machine.suspended_to_s = max(machine.suspended_to_s, until_s)
        else:
            other = self.random.choice([*(one for one in NAMES if one != name), "register"])
            pairs = (
                {(name, other), (other, name)} if self.random.random() < 0.5 else {(name, other)}
            )
            self.cut |= pairs
            self.later(self.random.uniform(0.2, 4.0), lambda: self.cut.difference_update(pairs))

    def settle(self) -> None:
        """Without faults the cluster gets a leader, commits, and all logs are the same."""
        self.is_quiet = True
        self.cut.clear()
        for _ in range(200):
            self.run(self.now_s + 0.5)
            for name in NAMES:
                self.push(name)
            self.run(self.now_s + 0.1)
            logs = [machine.log for machine in self.machines.values()]
            in_sync = self.register.value.state.in_sync if self.register.value.state else ()
            if len(in_sync) == 3 and logs[0] == logs[1] == logs[2] == self.acked:
                return
        raise Broken("the cluster does not recover without faults")


def simulate(seed: int, failovers: int, *, syncs: bool = False) -> Simulation:
    """Random faults until there were that many elections, then check that all nodes agree."""
    simulation = Simulation(seed, syncs=syncs)
    while simulation.elections < failovers:
        for _ in range(simulation.random.randrange(1, 20)):
            simulation.run(simulation.now_s + simulation.random.uniform(0.0, 0.3))
            simulation.push(simulation.random.choice(NAMES))
        if simulation.now_s > 3 * simulation.elections + 1000:
            raise Broken("hardly any elections")
        simulation.disturb()
    simulation.settle()
    return simulation
