"""The register on a real etcd: conflicts, killed and suspended members, no majority, TLS, users."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from logd.cluster.etcd import EtcdRegister
from logd.cluster.register import ClusterState, Versioned
from logd.errors import OutcomeUnknown, RegisterUnavailable
from tests.support.daemon import HANG_S, wait_until
from tests.support.etcd import Etcd, EtcdFiles

STATE = ClusterState(1, "a", ("a", "b", "c"), 2)
SHORT_S = 1.0


def epoch(number: int) -> ClusterState:
    return replace(STATE, epoch=number)


def client(etcd: Etcd, **options: str) -> EtcdRegister:
    return EtcdRegister(etcd.urls, "logd", "test", **options)


def test_conflicts_of_two_clients(tmp_path: Path) -> None:
    with Etcd(tmp_path) as etcd, client(etcd) as one, client(etcd) as two:
        assert one.get(HANG_S) == two.get(HANG_S) == Versioned(None, 0)
        first = one.compare_and_set(epoch(1), 0, HANG_S)
        assert first is not None
        assert two.compare_and_set(epoch(2), 0, HANG_S) is None
        second = two.compare_and_set(epoch(2), first, HANG_S)
        assert second is not None
        assert second > first
        assert one.compare_and_set(epoch(3), first, HANG_S) is None
        assert one.get(HANG_S) == Versioned(epoch(2), second)
        with EtcdRegister(etcd.urls, "logd", "another") as another:
            assert another.get(HANG_S) == Versioned(None, 0)


def test_members_expire(tmp_path: Path) -> None:
    with Etcd(tmp_path) as etcd, client(etcd) as one, client(etcd) as two:
        one.publish_member("b", {"role": "follower"}, 60)
        one.publish_member("a", {"role": "follower"}, 1)
        one.publish_member("a", {"role": "leader", "lag": 0}, 1)
        assert two.members() == {"a": {"role": "leader", "lag": 0}, "b": {"role": "follower"}}
        wait_until(lambda: two.members() == {"b": {"role": "follower"}})
        assert one.get(HANG_S) == Versioned(None, 0)


def test_killed_suspended_and_missing_members(tmp_path: Path) -> None:
    """One cluster, to save the time of its start; each step leaves it as it was."""
    with Etcd(tmp_path, 3) as etcd, client(etcd) as register:
        revision = register.compare_and_set(epoch(1), 0, HANG_S)
        assert revision is not None
        revision = _kill_one(etcd, register, revision)
        revision = _suspend_the_leader(etcd, register, revision)
        _lose_the_majority(etcd, register, revision)


def _kill_one(etcd: Etcd, register: EtcdRegister, revision: int) -> int:
    """The one that the client is connected to: the closed connection is noticed."""
    etcd.members[0].kill()
    others = etcd.members[1:]
    etcd.leader(*others)
    assert register.get(HANG_S) == Versioned(epoch(1), revision)
    changed = register.compare_and_set(epoch(2), revision, HANG_S)
    assert changed is not None
    etcd.start(etcd.members[0])
    return changed


def _suspend_the_leader(etcd: Etcd, register: EtcdRegister, revision: int) -> int:
    leader = etcd.leader()
    others = [one for one in etcd.members if one is not leader]
    with EtcdRegister([leader.url], "logd", "test") as to_leader:
        assert to_leader.get(HANG_S) == Versioned(epoch(2), revision)
        leader.pause()
        with pytest.raises(OutcomeUnknown):
            to_leader.compare_and_set(epoch(9), revision, SHORT_S)
        with pytest.raises(RegisterUnavailable):
            to_leader.get(SHORT_S)
        etcd.leader(*others)
        wait_until(lambda: _reads(register, Versioned(epoch(2), revision)))
        with EtcdRegister([one.url for one in others], "logd", "test") as to_others:
            changed = to_others.compare_and_set(epoch(3), revision, HANG_S)
            assert changed is not None
        leader.resume()
        # It was the leader, and would know only the old state if it answered by itself.
        wait_until(lambda: _reads(to_leader, Versioned(epoch(3), changed)))
        assert to_leader.compare_and_set(epoch(9), revision, HANG_S) is None
    return changed


def _reads(register: EtcdRegister, expected: Versioned) -> bool:
    """An answer is correct; there may be none yet."""
    try:
        assert register.get(3 * SHORT_S) == expected
    except RegisterUnavailable:
        return False
    return True


def _lose_the_majority(etcd: Etcd, register: EtcdRegister, revision: int) -> None:
    for member in etcd.members[:2]:
        member.kill()
    with pytest.raises(RegisterUnavailable):
        register.get(SHORT_S)
    with pytest.raises(OutcomeUnknown):  # the third has taken it, and may find a majority later
        register.compare_and_set(epoch(4), revision, SHORT_S)
    etcd.members[2].kill()
    with pytest.raises(RegisterUnavailable):
        register.compare_and_set(epoch(5), revision, HANG_S)
    etcd.start(*etcd.members)
    assert register.get(HANG_S).state in (epoch(3), epoch(4))


def test_tls_with_client_certificates(tmp_path: Path) -> None:
    ca, others = trustme.CA(), trustme.CA()
    paths = [str(tmp_path / f"{name}.pem") for name in ("ca", "server", "client", "other-ca")]
    files = EtcdFiles(*paths[:3])
    ca.cert_pem.write_to_path(files.ca)
    others.cert_pem.write_to_path(paths[3])
    for path, name in ((files.server, "127.0.0.1"), (files.client, "node.example")):
        ca.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(path)
    with Etcd(tmp_path, files=files) as etcd:
        with client(etcd, ca=files.ca, cert=files.client) as register:
            revision = register.compare_and_set(STATE, 0, HANG_S)
            assert revision is not None
            assert register.get(HANG_S) == Versioned(STATE, revision)
        distrusts = pytest.raises(RegisterUnavailable, match="certificate is not trusted")
        with client(etcd, ca=paths[3], cert=files.client) as register, distrusts:
            register.compare_and_set(STATE, revision, HANG_S)
        with client(etcd, ca=files.ca) as register:
            with pytest.raises(RegisterUnavailable):
                register.get(HANG_S)
            # With TLS 1.3 the server rejects a client after its handshake, when it has sent.
            with pytest.raises((RegisterUnavailable, OutcomeUnknown)):
                register.compare_and_set(STATE, revision, HANG_S)
        url = etcd.urls[0].replace("https", "http")
        with EtcdRegister([url], "logd", "test") as register, pytest.raises(RegisterUnavailable):
            register.get(HANG_S)


def test_users(tmp_path: Path) -> None:
    with Etcd(tmp_path) as etcd:
        etcd.add_user("logd", "secret", "/logd/")
        with client(etcd, user="logd", password="secret") as register:
            revision = register.compare_and_set(epoch(1), 0, HANG_S)
            assert revision is not None
            etcd.forget_tokens()
            assert register.compare_and_set(epoch(2), revision, HANG_S) is not None
            etcd.forget_tokens()
            register.publish_member("a", {}, 60)
            assert register.members() == {"a": {}}
        elsewhere = EtcdRegister(etcd.urls, "other", "test", user="logd", password="secret")
        for wrong, text in (
            (client(etcd), "user name is empty"),
            (client(etcd, user="logd", password="wrong"), "authentication failed"),
            (elsewhere, "permission denied"),
        ):
            with wrong as register:
                with pytest.raises(RegisterUnavailable, match=text):
                    register.get(HANG_S)
                with pytest.raises(RegisterUnavailable, match=text):
                    register.compare_and_set(epoch(9), 0, HANG_S)


# -- a history ----------------------------------------------------------------------------------


class Increments:
    """A thread that increments the epoch, and notes what it was told and what it read."""

    def __init__(self, etcd: Etcd, node: str, done: threading.Event) -> None:
        self.node, self._etcd, self._done = node, etcd, done
        self.written: dict[int, int] = {}  # the epoch of each revision that it was told
        self.unknown: set[int] = set()  # epochs that it may have written
        self.read: list[Versioned] = []
        self.unavailable = 0
        self.failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Increments:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with client(self._etcd) as register:
                while not self._done.is_set():
                    self._increment(register)
        except BaseException as error:  # noqa: BLE001  # reported by the test
            self.failures.append(error)

    def _increment(self, register: EtcdRegister) -> None:
        try:
            current = register.get(3 * SHORT_S)
        except RegisterUnavailable:
            self.unavailable += 1
            return
        self.read.append(current)
        attempt = (current.state.epoch if current.state else 0) + 1
        state = ClusterState(attempt, self.node, (self.node,), 1)
        try:
            revision = register.compare_and_set(state, current.revision, SHORT_S)
        except OutcomeUnknown:
            self.unknown.add(attempt)
        except RegisterUnavailable:
            self.unavailable += 1
        else:
            if revision is not None:
                assert revision > current.revision
                self.written[revision] = attempt


def test_a_history_with_killed_members_is_linearizable(tmp_path: Path) -> None:
    done = threading.Event()
    with Etcd(tmp_path, 3) as etcd:
        with (
            Increments(etcd, "a", done) as one,
            Increments(etcd, "b", done) as two,
            Increments(etcd, "c", done) as three,
        ):
            threads = (one, two, three)

            def count() -> int:
                return sum(len(thread.written) for thread in threads)

            for victim in (etcd.leader(), etcd.members[0], etcd.leader()):
                before = count()
                wait_until(lambda before=before: count() >= before + 10)  # type: ignore[misc]
                victim.kill()
                etcd.start(victim)
            done.set()
        with client(etcd) as register:
            last = register.get(HANG_S)
    assert [thread.failures for thread in threads] == [[], [], []]
    print(f"{count()} written, {sum(len(one.unknown) for one in threads)} unknown,")
    print(f"{sum(one.unavailable for one in threads)} unavailable")
    _check(threads, last)


def _check(threads: tuple[Increments, ...], last: Versioned) -> None:
    told = [item for thread in threads for item in thread.written.items()]
    assert len({revision for revision, _ in told}) == len(told)  # each success has its own revision
    epochs = dict(told)  # by revision
    for thread in threads:
        revisions = [versioned.revision for versioned in thread.read]
        assert revisions == sorted(revisions)  # no thread reads backwards
        for state, revision in thread.read:
            if state is not None:  # all readers of a revision, and its writer, agree
                assert epochs.setdefault(revision, state.epoch) == state.epoch
    assert last.state is not None
    assert epochs.setdefault(last.revision, last.state.epoch) == last.state.epoch
    in_order = [number for _, number in sorted(epochs.items())]
    assert in_order == sorted({*in_order})  # a later revision has a later epoch
    # Each epoch up to the last was written exactly once: by a success, or by an unknown outcome.
    known = [number for _, number in told]
    assert len({*known}) == len(known)
    unknown = set[int]().union(*(thread.unknown for thread in threads))
    assert {*range(1, last.state.epoch + 1)} - {*known} <= unknown
    assert max(known) <= last.state.epoch
