"""Senders of lines over TCP: each record is stored once, in order, as it was."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator

import pytest

from tests.integration.web import client_programs, shippers
from tests.integration.web.client_programs import COUNT, Target

LOGGER = "logger --server 127.0.0.1 --port 1514 --tcp --size 64KiB"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with client_programs.target(tmp_path_factory.mktemp("clients")) as started:
        yield started


def test_syslog_handler(target: Target) -> None:
    """A record ends with NUL, so it may have several lines; a line end at its end is not kept."""
    texts = client_programs.records_without_nul()
    start = client_programs.end_of(target, "syslog")
    client_programs.run(target, "syslog_handler.py", texts)
    found = client_programs.received(target, "syslog", COUNT, start)
    wanted = [f"<14>root: {text}".removesuffix("\n") for text in texts]
    assert [message.decode() for message in found] == wanted


def test_python_logstash(target: Target) -> None:
    client_programs.needs_python_client("logstash")
    texts = client_programs.records()
    start = client_programs.end_of(target, "syslog")
    client_programs.run(target, "logstash_tcp.py", texts)
    found = client_programs.received(target, "syslog", COUNT, start)
    documents = [json.loads(message) for message in found]
    assert [document["message"] for document in documents] == texts
    assert {document["order"] for document in documents} == {17}


@pytest.mark.parametrize("framing", [[], ["--octet-count"]])
def test_logger(target: Target, framing: list[str]) -> None:
    if shutil.which("logger") is None:
        shippers.missing("there is no logger")
    texts = client_programs.one_line_records()
    start = client_programs.end_of(target, "syslog")
    command = client_programs.with_ports(target, LOGGER)
    lines = "".join(f"{text}\n" for text in texts).encode()
    client_programs.finished(
        [*command.split(), *framing], target.directory, dict(os.environ), lines
    )
    found = client_programs.received(target, "syslog", COUNT, start)
    wanted = re.compile(rb"<13>1 \S+ \S+ \S+ - - \[.*?\] (.*)", re.DOTALL)
    matches = [wanted.fullmatch(message) for message in found]
    assert [match and match[1].decode() for match in matches] == texts
