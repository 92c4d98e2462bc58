"""The table of tested clients in docs/http.md: its settings and versions are those of the tests."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.web import shippers
from tests.support.daemon import ROOT

HERE = Path(__file__).parent
HEAD = "| client | version | settings | works | does not work |"
# Which files of this directory use the settings of each row.
TESTED_IN = {
    "curl": ["test_http_commands.py"],
    "httpie": ["test_http_commands.py"],
    "elasticsearch-py": ["programs/elasticsearch_bulk.py"],
    "opensearch-py": ["programs/opensearch_bulk.py"],
    "@elastic/elasticsearch": ["programs/elasticsearch_js.cjs"],
    "pino-elasticsearch": ["programs/pino_elasticsearch.cjs"],
    "pino-loki": ["programs/pino_loki.cjs"],
    "winston-loki": ["programs/winston_loki.cjs"],
    "Python `SysLogHandler`": ["programs/syslog_handler.py"],
    "Python `HTTPHandler`": ["programs/http_handler.py"],
    "logger (util-linux)": ["test_syslog_clients.py"],
    "python-logstash": ["programs/logstash_tcp.py"],
    "rsyslog, `omfwd`": ["test_shippers.py"],
    "rsyslog, `omelasticsearch`": ["test_shippers.py", "shippers.py"],
    "syslog-ng, `http()`": ["test_shippers.py"],
    "systemd-journal-upload": ["test_journal.py"],
    "loguru": ["programs/loguru_sink.py"],
    "structlog": ["programs/structlog_fields.py"],
}
PROMETHEUS = "Prometheus (promtool)"  # it only reads; test_metrics.py checks what


class Row(NamedTuple):
    client: str
    version: str
    settings: list[str]


def rows() -> list[Row]:
    lines = (ROOT / "docs/http.md").read_text().split("\n")
    found = []
    for line in lines[lines.index(HEAD) + 2 :]:
        if not line.startswith("|"):
            break
        client, version, settings, _, _ = (cell.strip() for cell in line[1:].split("|")[:5])
        found.append(Row(client, version, re.findall("`([^`]+)`", settings)))
    return found


def plain(text: str) -> str:
    """Without differences in layout: spaces, line ends, and commas before a closing bracket."""
    return re.sub(r",(?=[)\]}])", "", re.sub(r"\s+", "", text))


@pytest.mark.parametrize("client", TESTED_IN)
def test_settings_are_those_of_the_tests(client: str) -> None:
    [row] = [row for row in rows() if row.client == client]
    tested = [plain((HERE / name).read_text()) for name in TESTED_IN[client]]
    assert row.settings
    for setting in row.settings:
        assert any(plain(setting) in source for source in tested), setting


def test_every_program_is_in_the_table() -> None:
    assert {row.client for row in rows()} == TESTED_IN.keys() | {PROMETHEUS}
    named = {name for names in TESTED_IN.values() for name in names}
    more = {"programs/httpie_objects.py", "programs/structlog_json.py"}  # second ways of a row
    written = {f"programs/{path.name}" for path in (HERE / "programs").glob("*.*")}
    assert written == {name for name in named if name.startswith("programs/")} | more


def test_versions_are_those_that_are_installed() -> None:
    installed: dict[str, list[str]] = {}
    for path in sorted(HERE.glob("requirements*.txt"), reverse=True):
        for name, version in re.findall(r"^([\w-]+)==(.+)$", path.read_text(), re.MULTILINE):
            installed.setdefault(name, []).append(version)
    for name, version in json.loads((HERE / "package.json").read_text())["dependencies"].items():
        installed[name] = [version]
    installed["elasticsearch-py"] = installed.pop("elasticsearch")
    for row in rows():
        if row.client in installed:
            assert row.version == ", ".join(installed[row.client]), row.client


def test_prometheus_accepts_its_settings(tmp_path: Path) -> None:
    promtool = shippers.program("promtool")
    [row] = [row for row in rows() if row.client == PROMETHEUS]
    (tmp_path / "prometheus.yml").write_text("\n".join(row.settings))
    command = [promtool, "check", "config", "prometheus.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
