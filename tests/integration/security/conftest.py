"""Real certificates, an access file, and daemons that ask who is there."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from logd import Endpoint
from tests.support.daemon import Daemon, running

ALL, WRITER, READER, AUDITOR = (
    "all-1234567890-abcdefg",
    "writer-1234567890-abcd",
    "reader-1234567890-abcd",
    "auditor-1234567890-abc",
)
WRONG = "wrong-1234567890-abcde"
ACCESS = f"""
[tokens.all]
token = "{ALL}"
read = ["*"]
write = ["*"]
admin = ["*"]

[tokens.writer]
token = "{WRITER}"
write = ["app-*"]

[tokens.reader]
token = "{READER}"
read = ["app-*"]

[tokens.auditor]
token = "{AUDITOR}"
admin = ["*"]

[tokens.machine]
certificate = "machine.example"
read = ["*"]
write = ["*"]
"""
TOKENS = (ALL, WRITER, READER, AUDITOR, WRONG)


class Files(NamedTuple):
    """PEM files. `others` are signed by somebody whom nobody here trusts."""

    ca: str
    server: str
    renewed: str
    expired: str
    elsewhere: str  # for another name
    client: str
    machine: str
    expired_client: str
    others_ca: str
    others_server: str
    others_client: str


@pytest.fixture(scope="session")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Files:
    directory = tmp_path_factory.mktemp("certificates")
    ours, others = trustme.CA(), trustme.CA()
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=2)

    def issue(ca: trustme.CA, file: str, name: str, expires: datetime.datetime | None) -> str:
        names = (name, "127.0.0.1") if name == "localhost" else (name,)
        issued = ca.issue_cert(*names, common_name=name, not_after=expires)
        path = directory / f"{file}.pem"
        issued.private_key_and_cert_chain_pem.write_to_path(path)
        return str(path)

    for ca, file in ((ours, "ca.pem"), (others, "others-ca.pem")):
        ca.cert_pem.write_to_path(directory / file)
    return Files(
        ca=str(directory / "ca.pem"),
        server=issue(ours, "server", "localhost", None),
        renewed=issue(ours, "renewed", "localhost", None),
        expired=issue(ours, "expired", "localhost", past),
        elsewhere=issue(ours, "elsewhere", "elsewhere.example", None),
        client=issue(ours, "client", "client.example", None),
        machine=issue(ours, "machine", "machine.example", None),
        expired_client=issue(ours, "expired-client", "client.example", past),
        others_ca=str(directory / "others-ca.pem"),
        others_server=issue(others, "others-server", "localhost", None),
        others_client=issue(others, "others-client", "client.example", None),
    )


@pytest.fixture
def access_file(tmp_path: Path) -> Path:
    file = tmp_path / "access.toml"
    file.touch(0o600)
    file.write_text(ACCESS)
    return file


@pytest.fixture
def guarded(tmp_path: Path, access_file: Path) -> Iterator[Daemon]:
    """A daemon with both listeners that asks for tokens; they are in no line that it wrote."""
    flags = ("--http-host", "127.0.0.1:0", "--access-file", str(access_file))
    with running(tmp_path, *flags) as started:
        yield started
        started.stop()
        tells_no_token(started.log)


def tells_no_token(text: str) -> None:
    for token in TOKENS:
        assert token not in text
    assert "Traceback" not in text


def at(daemon: Daemon, token: str | None = None) -> Endpoint:
    return Endpoint(daemon.address, token=token)
