"""A real etcd with any number of members on loopback, each in a process of its own.

    with Etcd(tmp_path, 3) as etcd, EtcdRegister(etcd.urls, "logd", "test") as register:
        etcd.leader().kill()

`make etcd` unpacks it below `build/`; an installed one is used as well. Without one the test is
skipped and says why. The times are short, so that a new leader is elected within about a second,
and nothing is synced: a killed member keeps its data, as long as the machine runs.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from logd.wire.addresses import parse_address
from tests.support.daemon import HANG_S, ROOT, lasting_address, wait_until

UNPACKED = ROOT / "build" / "etcd" / "usr" / "bin" / "etcd"
ELECTION_TIMEOUT_MS = 500
ASK_S = 2.0
ROOT_PASSWORD = "root-password"


class EtcdFiles(NamedTuple):
    """PEM files: of the authority, and of a server and a client that it has signed."""

    ca: str
    server: str
    client: str


def program() -> str:
    if UNPACKED.exists():
        return str(UNPACKED)
    found = shutil.which("etcd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if found is None:
        reason = "etcd is neither installed nor unpacked"
        print(reason)
        pytest.skip(f"{reason}; `make etcd` does it")
    return found


class EtcdMember:
    """`start`, then `stop`, `kill` or `pause`, then perhaps `start` or `resume`: the data stays."""

    def __init__(self, directory: Path, name: str, files: EtcdFiles | None) -> None:
        self.name, self._directory, self._files = name, directory, files
        self.address, self.peer = lasting_address(), lasting_address()
        self.url = f"{'https' if files else 'http'}://{self.address}"
        self.peer_url = f"http://{self.peer}"
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self, initial_cluster: str) -> None:
        """Run it without waiting."""
        flags = {
            "name": self.name,
            "data-dir": str(self._directory / self.name),
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": self.peer_url,
            "initial-advertise-peer-urls": self.peer_url,
            "initial-cluster": initial_cluster,
            "heartbeat-interval": str(ELECTION_TIMEOUT_MS // 10),
            "election-timeout": str(ELECTION_TIMEOUT_MS),
            "bcrypt-cost": "4",
        }
        if self._files is not None:
            flags |= {"cert-file": self._files.server, "key-file": self._files.server}
            flags |= {"trusted-ca-file": self._files.ca, "client-cert-auth": "true"}
        command = [program(), "--unsafe-no-fsync", *(f"--{k}={v}" for k, v in flags.items())]
        self._directory.mkdir(parents=True, exist_ok=True)
        with open(self._directory / f"{self.name}.out", "ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(HANG_S)

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def pause(self) -> None:
        """Stop it as a virtual machine that is suspended: connections stay open."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def ask(self, path: str, request: object = None, token: str = "") -> tuple[int, dict[str, Any]]:
        """The status and the reply; OSError if there is none."""
        host, port = parse_address(self.address)
        connection: http.client.HTTPConnection
        if self._files is None:
            connection = http.client.HTTPConnection(host, port, timeout=ASK_S)
        else:
            context = ssl.create_default_context(cafile=self._files.ca)
            context.load_cert_chain(self._files.client)
            connection = http.client.HTTPSConnection(host, port, timeout=ASK_S, context=context)
        try:
            headers = {"Authorization": token} if token else {}
            connection.request("POST", path, json.dumps(request or {}), headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from None
        finally:
            connection.close()

    def answers(self) -> bool:
        """Does it take part in a majority? A refusal for lack of a user is an answer, too."""
        try:
            status, _ = self.ask("/v3/kv/range", {"key": encoded("any")})
        except (OSError, ValueError):
            return False
        return status in (200, 400)

    def leads(self) -> bool:
        try:
            _, reply = self.ask("/v3/maintenance/status")
        except (OSError, ValueError):
            return False
        return bool(reply.get("leader")) and reply["leader"] == reply["header"]["member_id"]


class Etcd:
    """All members are started on entry, and ended on exit, each by its own id."""

    def __init__(self, directory: Path, members: int = 1, files: EtcdFiles | None = None) -> None:
        self.members = [EtcdMember(directory / "etcd", f"m{n}", files) for n in range(members)]

    @property
    def urls(self) -> list[str]:
        return [member.url for member in self.members]

    def __enter__(self) -> Self:
        try:
            self.start(*self.members)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            if member.is_running:
                member.kill()

    def start(self, *members: EtcdMember, wait: bool = True) -> None:
        """Run these members, and return once each of them answers."""
        initial_cluster = ",".join(f"{one.name}={one.peer_url}" for one in self.members)
        for member in members:
            member.launch(initial_cluster)
        if wait:
            for member in members:
                wait_until(member.answers)

    def leader(self, *among: EtcdMember) -> EtcdMember:
        """Wait for a leader, perhaps one of these members, and until it answers."""
        found = list[EtcdMember]()

        def is_found() -> bool:
            found[:] = [one for one in among or self.members if one.leads() and one.answers()]
            return bool(found)

        wait_until(is_found)
        return found[0]

    def ask(self, path: str, request: object = None, token: str = "") -> dict[str, Any]:
        status, reply = self.members[0].ask(path, request, token)
        assert status == 200, reply
        return reply

    def add_user(self, user: str, password: str, prefix: str) -> None:
        """Enable authentication, with a user who may use keys that begin with `prefix`."""
        key, end = encoded(prefix), encoded(prefix[:-1] + chr(ord(prefix[-1]) + 1))
        right = {"permType": "READWRITE", "key": key, "range_end": end}
        for name, secret in (("root", ROOT_PASSWORD), (user, password)):
            self.ask("/v3/auth/user/add", {"name": name, "password": secret})
            self.ask("/v3/auth/role/add", {"name": name})
            self.ask("/v3/auth/user/grant", {"user": name, "role": name})
        self.ask("/v3/auth/role/grant", {"name": user, "perm": right})
        self.ask("/v3/auth/enable")

    def forget_tokens(self) -> None:
        """Let all tokens expire: disabling authentication forgets them."""
        credentials = {"name": "root", "password": ROOT_PASSWORD}
        token = self.ask("/v3/auth/authenticate", credentials)["token"]
        self.ask("/v3/auth/disable", token=token)
        self.ask("/v3/auth/enable")


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
