"""Error texts of `log-cli`: what happened, then what to do, in words of the command line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from logd.errors import NotFound
from tests.support.daemon import Daemon, running
from tests.support.log_cli import answering, log_cli

COMMANDS = [["ping"], ["topics"], ["read", "app"], ["write", "app", "x"], ["read", "-f", "app"]]


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("web"), "--http-host", "127.0.0.1:0") as daemon:
        yield daemon


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_http_port_is_recognized(web: Daemon, words: list[str]) -> None:
    code, out, errors = log_cli(web.http, *words)
    assert (code, out) == (1, b"")
    assert errors == (
        f"log-cli: {web.http} is an HTTP port; give the TCP port of the daemon instead, which is"
        " 1774 by default\n"
    )


def test_tls_for_a_port_without_it(web: Daemon) -> None:
    code, _, errors = log_cli(f"tls://{web.address}", "ping")
    assert code == 1
    assert errors == (
        f"log-cli: {web.address} does not speak TLS; write the address without tls://\n"
    )


def test_a_port_with_tls_for_an_address_without_it() -> None:
    with answering(b"\x15\x03\x03\x00\x02\x02\x0a") as address:  # the alert of a TLS server
        code, _, errors = log_cli(address, "ping")
    assert code == 1
    assert errors == f"log-cli: {address} speaks TLS; write tls://{address}\n"


def test_a_port_of_something_else() -> None:
    with answering(b"SSH-2.0-OpenSSH_9.2\r\n") as address:
        code, _, errors = log_cli(address, "ping")
    assert code == 1
    assert errors == (
        f"log-cli: what listens at {address} is not logd (it answered 'SSH-2.0-OpenSSH_9.2');"
        " check the address\n"
    )


@pytest.mark.parametrize("words", [["read", "nope"], ["tail", "nope"], ["stats", "nope"]])
def test_a_missing_topic_is_explained_in_words_of_the_command_line(
    web: Daemon, words: list[str]
) -> None:
    code, _, errors = log_cli(web, *words)
    assert code == 2
    assert errors == (
        "log-cli: not-found: no topic nope; the first message written to it creates it;"
        " run `log-cli topics` to list the topics\n"
    )
    assert "PUSH" not in NotFound("x").text


def test_the_fields_of_a_template_are_all_named(web: Daemon) -> None:
    for words in (["read", "app", "--format", "{nope}"], ["tail", "app", "--format", "{0}"]):
        code, _, errors = log_cli(web, *words)
        assert code == 1
        assert "{message}" in errors
        assert "{value}" in errors
    for command in ("read", "tail", "history"):
        assert b"{value}" in log_cli(web, command, "--help")[1]
