"""TLS with real certificates over both listeners: the right one, and every kind that is not."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from logd import Client, ConnectionLost, Endpoint, LogdError, Reader, Writer
from logd.wire import commands
from logd.wire.commands import Batches, Command
from logd.wire.requests import Read
from tests.integration.security.conftest import ALL, READER, Files, tells_no_token
from tests.support.daemon import HANG_S, ROOT, Daemon, running, wait_until

HTTP = ("--http-host", "127.0.0.1:0")


def secured(address: str, pem: Files, **shown: str) -> Endpoint:
    return Endpoint(f"tls://{address}", ca=pem.ca, **shown)


def status(daemon: Daemon, ca: str, cert: str | None = None, token: str | None = None) -> int:
    """What HTTPS says to a look at the topics; raises what TLS raises."""
    context = ssl.create_default_context(cafile=ca)
    if cert is not None:
        context.load_cert_chain(cert)
    host, _, port = daemon.http.rpartition(":")
    connection = http.client.HTTPSConnection(host, int(port), timeout=HANG_S, context=context)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        connection.request("GET", "/topics", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def refusal(target: Endpoint) -> str:
    """Why there is no connection."""
    with pytest.raises((ConnectionLost, LogdError)) as caught, Client(target) as client:
        client.ping()
    return str(caught.value)


# -- the daemon's certificate -------------------------------------------------------------------


def test_the_right_certificate(tmp_path: Path, pem: Files) -> None:
    with running(tmp_path, *HTTP, tls_cert=pem.server) as daemon:
        for name in (daemon.address, daemon.address.replace("127.0.0.1", "localhost")):
            with Client(secured(name, pem)) as client:
                client.push("app", [b"x"])
        assert status(daemon, pem.ca) == 200


@pytest.mark.parametrize(
    ("certificate", "why"),
    [
        ("expired", "expired"),
        ("elsewhere", "not valid for '127.0.0.1'"),
        ("others_server", "unable to get local issuer"),
    ],
)
def test_a_wrong_certificate_is_not_trusted(
    tmp_path: Path, pem: Files, certificate: str, why: str
) -> None:
    """No client sends it a token, or a message."""
    with running(tmp_path, *HTTP, tls_cert=getattr(pem, certificate)) as daemon:
        said = refusal(secured(daemon.address, pem, token=ALL))
        assert "not trusted" in said
        assert why in said
        with pytest.raises(ssl.SSLCertVerificationError):
            status(daemon, pem.ca)
        assert "not trusted" in refusal(Endpoint(f"tls://{daemon.address}"))  # the system's


def test_one_side_without_tls(tmp_path: Path, pem: Files) -> None:
    with running(tmp_path / "secure", *HTTP, tls_cert=pem.server) as daemon:
        with (
            pytest.raises(ConnectionLost, match="if it uses TLS, write tls://"),
            Client(daemon.address, timeout_s=HANG_S) as client,
        ):
            client.ping()
        host, _, port = daemon.http.rpartition(":")
        plain = http.client.HTTPConnection(host, int(port), timeout=HANG_S)
        plain.request("GET", "/healthz")
        with pytest.raises((http.client.HTTPException, OSError)):
            plain.getresponse()
        plain.close()
        with Client(secured(daemon.address, pem)) as client:
            client.ping()
    with running(tmp_path / "plain") as daemon:
        assert "does not speak TLS" in refusal(secured(daemon.address, pem))


def test_old_versions_are_refused(tmp_path: Path, pem: Files) -> None:
    context = ssl.create_default_context(cafile=pem.ca)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with running(tmp_path, *HTTP, tls_cert=pem.server) as daemon:
        for address in (daemon.address, daemon.http):
            host, _, port = address.rpartition(":")
            with (
                socket.create_connection((host, int(port)), HANG_S) as plain,
                pytest.raises(ssl.SSLError),
            ):
                context.wrap_socket(plain, server_hostname="localhost")


# -- the clients' certificates ------------------------------------------------------------------


def test_clients_must_have_a_certificate(tmp_path: Path, pem: Files) -> None:
    flags = (*HTTP, "--tls-client-ca", pem.ca)
    with running(tmp_path, *flags, tls_cert=pem.server) as daemon:
        with Client(secured(daemon.address, pem, cert=pem.client)) as client:
            client.push("app", [b"x"])
        assert status(daemon, pem.ca, pem.client) == 200
        for wrong in (None, pem.others_client, pem.expired_client):
            shown = {"cert": wrong} if wrong else {}
            refusal(secured(daemon.address, pem, **shown))
            with pytest.raises((ssl.SSLError, OSError, http.client.HTTPException)):
                status(daemon, pem.ca, wrong)
        with Client(secured(daemon.address, pem, cert=pem.client)) as client:
            assert client.stats("app")["next"] == "1"


def test_certificates_and_tokens(tmp_path: Path, pem: Files, access_file: Path) -> None:
    """Both are asked for; a certificate that the access file names is a token, too."""
    flags = (*HTTP, "--tls-client-ca", pem.ca, "--access-file", str(access_file))
    with running(tmp_path, *flags, tls_cert=pem.server) as daemon:
        assert "unauthorized" in tls_refusal(daemon, pem, cert=pem.client)
        assert status(daemon, pem.ca, pem.client) == 401
        assert status(daemon, pem.ca, pem.client, ALL) == 200
        reader = Client(secured(daemon.address, pem, cert=pem.client, token=READER))
        with reader, pytest.raises(LogdError, match="forbidden"):
            reader.push("app-1", [b"x"])
        refusal(secured(daemon.address, pem, token=ALL))
        with Client(secured(daemon.address, pem, cert=pem.machine)) as client:
            client.push("app-1", [b"x"])
            with pytest.raises(LogdError, match="forbidden"):
                client.config()
        assert status(daemon, pem.ca, pem.machine) == 200
        daemon.stop()
        tells_no_token(daemon.log)


def tls_refusal(daemon: Daemon, pem: Files, **shown: str) -> str:
    client = Client(secured(daemon.address, pem, **shown))
    with client, pytest.raises(LogdError) as caught:
        client.topics()
    return str(caught.value)


# -- large things, and stuck ones ---------------------------------------------------------------


def test_large_pushes_and_replies(tmp_path: Path, pem: Files) -> None:
    with running(tmp_path, tls_cert=pem.server) as daemon:
        target = secured(daemon.address, pem)
        with Client(target) as client:
            for n in range(12):
                client.push("big", [b"%d" % n * 2_000_000, b"small"])
            sent = client.read("big", 0, 24)
            assert bytes(sent.data) == daemon.stored("big")
            assert len(sent.data) > 24_000_000
            assert client.read("big", 23, 1).messages == 1
            client.push("big", [b"behind"])
        with Writer(target, "lines") as writer:
            for n in range(200_000):
                writer.write(b"message %d" % n)
        with Reader(target, "lines") as reader:
            for n, message in enumerate(reader):
                assert message.value == b"message %d" % n
        assert n == 199_999


def test_replies_that_nobody_takes(tmp_path: Path, pem: Files) -> None:
    """Each costs some buffers, and not its reply; others keep their pace."""
    with running(tmp_path, tls_cert=pem.server) as daemon:
        target = secured(daemon.address, pem)
        with Client(target) as client:
            for _ in range(30):
                client.push("big", [b"x" * 1_000_000])
            before = daemon.rss_bytes()
            stuck = [Client(target) for _ in range(100)]
            for one in stuck:
                one.send(read_all())
            for _ in range(200):
                client.push("app", [b"x"])
            grown = daemon.rss_bytes() - before
            print(f"a hundred over TLS that do not read: {grown / 1e6:.1f} MB")
            assert grown < 100 << 20
            for one in stuck:
                one.close()
            wait_until(lambda: client.stats()["connections"] == "1")


def read_all() -> Command[Batches]:
    return commands.read(Read("big", 0, 1000))


def test_a_handshake_that_does_not_come(tmp_path: Path, pem: Files) -> None:
    """Those who connect and say nothing, or nonsense, hold up nobody; past a limit all wait."""
    with running(tmp_path, tls_cert=pem.server, max_connections=50) as daemon:
        host, _, port = daemon.address.rpartition(":")
        silent = [socket.create_connection((host, int(port)), HANG_S) for _ in range(40)]
        for one in silent[:20]:
            one.sendall(b"\x16\x03\x01")
        with Client(secured(daemon.address, pem)) as client:
            client.push("app", [b"x"])
        for one in silent:
            one.close()
        with Client(secured(daemon.address, pem)) as client:
            client.push("app", [b"x"])
        assert "Traceback" not in daemon.log


def test_connections_past_the_limit(tmp_path: Path, pem: Files) -> None:
    with running(tmp_path, tls_cert=pem.server, max_connections=5) as daemon:
        target = secured(daemon.address, pem)
        held = [Client(target) for _ in range(5)]
        for one in held:
            one.ping()
        refusal(target)
        held.pop().close()
        give_up = threading.Event()
        timer = threading.Timer(HANG_S, give_up.set)
        timer.start()
        while not give_up.is_set():
            try:
                with Client(target) as client:
                    client.ping()
                break
            except ConnectionLost:
                continue
        timer.cancel()
        assert not give_up.is_set()
        for one in held:
            one.close()


# -- a new certificate --------------------------------------------------------------------------


def test_a_reload_takes_the_new_certificate(tmp_path: Path, pem: Files) -> None:
    used = tmp_path / "server.pem"
    shutil.copy(pem.expired, used)
    with running(tmp_path, *HTTP, tls_cert=used) as daemon:
        assert "expired" in refusal(secured(daemon.address, pem))
        shutil.copy(pem.server, used)
        os.kill(daemon.pid, signal.SIGHUP)
        daemon.wait_said("SIGHUP: reloaded")
        with Client(secured(daemon.address, pem)) as old:
            old.ping()
            assert status(daemon, pem.ca) == 200
            before = served(daemon)
            shutil.copy(pem.renewed, used)
            os.kill(daemon.pid, signal.SIGHUP)
            while served(daemon) == before:
                old.ping()  # what is open goes on
            used.write_text("nonsense")
            os.kill(daemon.pid, signal.SIGHUP)
            daemon.wait_said("no setting was changed")
            with Client(secured(daemon.address, pem)) as client:
                client.ping()


def served(daemon: Daemon) -> str:
    host, _, port = daemon.http.rpartition(":")
    return ssl.get_server_certificate((host, int(port)), timeout=HANG_S)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--tls-cert", "/nowhere.pem"], "tls-cert /nowhere.pem"),
        (["--tls-key", "{server}"], "tls-key requires tls-cert"),
        (["--tls-client-ca", "{ca}"], "tls-client-ca requires tls-cert"),
        (["--tls-cert", "{ca}"], "tls-cert"),
        (["--tls-cert", "{server}", "--tls-key", "{client}"], "tls-key"),
        (["--tls-cert", "{server}", "--tls-client-ca", "/nowhere.pem"], "tls-client-ca /nowhere"),
        (["--tls-cert", "credential:x"], "CREDENTIALS_DIRECTORY"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, pem: Files, flags: list[str], named: str) -> None:
    words = [flag.format(**pem._asdict()) for flag in flags]
    command = [sys.executable, "-m", "logd", "--data-dir", str(tmp_path), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 1
    assert named in done.stderr


def test_syslog_over_tls(tmp_path: Path, pem: Files) -> None:
    flags = ("--syslog-host", "127.0.0.1:0", "--tls-client-ca", pem.ca)
    with running(tmp_path, *flags, tls_cert=pem.server) as daemon:
        said = re.search(r"syslog at 127\.0\.0\.1:([0-9]+)", daemon.log)
        assert said is not None
        context = ssl.create_default_context(cafile=pem.ca)
        context.load_cert_chain(pem.client)
        plain = socket.create_connection(("127.0.0.1", int(said[1])), HANG_S)
        with context.wrap_socket(plain, server_hostname="localhost") as sender:
            sender.sendall(b"<13>hello\n<13>world\n")
            with Client(secured(daemon.address, pem, cert=pem.client)) as client:
                wait_until(lambda: client.topics("syslog"))
                assert client.read("syslog", 0, 1, wait_ms=30_000).messages >= 1
