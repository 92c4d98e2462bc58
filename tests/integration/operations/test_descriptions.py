"""The files for other programs: compose, Kubernetes, Prometheus, Grafana.

There is no engine here, so what they say is compared: with the daemon, the Dockerfile, each other.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from logd import Client, config
from logd.errors import BY_CODE
from tests.support.daemon import HANG_S, ROOT, Daemon

CONTRIB = ROOT / "contrib"
DASHBOARD = CONTRIB / "grafana" / "dashboards" / "logd.json"
RULES = CONTRIB / "prometheus" / "rules.yml"
NAME = re.compile(r"\blogd_[a-z_]+\b")


def promtool() -> str:
    for place in ("build/prometheus", "build/shippers"):
        if (ROOT / place / "usr/bin/promtool").exists():
            return str(ROOT / place / "usr/bin/promtool")
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("there is no promtool here; `make operations-packages` unpacks it")
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The names at /metrics, with the labels of each."""
    data = tmp_path_factory.mktemp("metrics") / "data"
    with Daemon(data, ("--http-host", "127.0.0.1:0")) as daemon:
        with Client(daemon.address) as client:
            client.push("app", [b"x"])
        with urllib.request.urlopen(f"http://{daemon.http}/metrics", timeout=HANG_S) as reply:
            page = reply.read().decode()
    found: dict[str, set[str]] = {}
    for line in page.splitlines():
        if not line.startswith("#"):
            labels = re.findall(r'([a-z_]+)="', line)
            found[re.split(r"[{ ]", line)[0]] = set(labels)
    return found


def load(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


# -- Prometheus and Grafana -----------------------------------------------------------------------


def dashboard_expressions() -> Iterator[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def alert_expressions() -> Iterator[str]:
    [rules] = load(RULES)
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


def test_each_metric_that_is_shown_or_watched_is_there(served: dict[str, set[str]]) -> None:
    for expression in (*dashboard_expressions(), *alert_expressions()):
        names = set(NAME.findall(expression))
        assert names or "up{" in expression, expression
        assert names <= set(served), expression
        if "by (topic)" in expression or "topic=~" in expression:
            assert all("topic" in served[name] for name in names), expression


def test_each_metric_that_is_there_is_shown(served: dict[str, set[str]]) -> None:
    shown = set(NAME.findall(" ".join(dashboard_expressions())))
    assert set(served) - shown == set()


def test_counters_are_rates_and_gauges_are_not() -> None:
    for expression in (*dashboard_expressions(), *alert_expressions()):
        for name in NAME.findall(expression):
            is_rate = re.search(rf"(rate|increase)\({name}\b", expression) is not None
            assert is_rate == name.endswith("_total"), expression


def test_the_dashboard_hangs_together() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    places = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places)), "no panel covers another"
    known = {variable["name"] for variable in dashboard["templating"]["list"]} | {"__rate_interval"}
    for expression in dashboard_expressions():
        assert set(re.findall(r"\$\{?([A-Za-z_]+)", expression)) <= known, expression


def test_promtool_accepts_rules_and_configuration() -> None:
    for words in (("check", "rules", RULES), ("check", "config", RULES.parent / "prometheus.yml")):
        done = subprocess.run([promtool(), *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_comes_when_it_should(tmp_path: Path) -> None:
    tests = Path(__file__).with_name("rules.test.yml")
    for path in (RULES, tests):
        shutil.copy(path, tmp_path)
    words = [promtool(), "test", "rules", str(tmp_path / tests.name)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [written] = load(tests)
    tested = {
        case["alertname"]
        for test in written["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    [rules] = load(RULES)
    assert tested == {rule["alert"] for group in rules["groups"] for rule in group["rules"]}


# -- containers -----------------------------------------------------------------------------------


def dockerfile() -> dict[str, list[str]]:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").rpartition("\nFROM ")[2]
    said: dict[str, list[str]] = {}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word.isupper():
            said.setdefault(word, []).append(rest)
    return said


def test_every_setting_that_is_named_exists() -> None:
    known = {config.flag(field.name) for field in config.fields()}
    variables = {"LOGD_" + name.upper().replace("-", "_") for name in (*known, "allow-anonymous")}
    [compose] = load(ROOT / "compose.yaml")
    logd = compose["services"]["logd"]
    assert set(logd["environment"]) <= variables
    [entry] = dockerfile()["ENTRYPOINT"]
    flags = [word[2:] for word in [*json.loads(entry), *logd["command"]] if word.startswith("--")]
    assert set(flags) <= known
    assert "config" not in known  # names the file, and is no setting itself
    [toml] = [each for each in load(CONTRIB / "kubernetes" / "logd.yaml") if "data" in each]
    path = toml["data"]["logd.toml"]
    assert set(re.findall(r"^([a-z-]+) =", path, re.MULTILINE)) <= known


def test_compose_names_what_there_is() -> None:
    [compose] = load(ROOT / "compose.yaml")
    services, volumes = compose["services"], set(compose["volumes"])
    exposed = dockerfile()["EXPOSE"][0].split()
    for name, service in services.items():
        assert ("build" in service) != ("image" in service), name
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), "nothing is for other machines"
        for volume in service["volumes"]:
            source, target = volume.split(":")[:2]
            assert target.startswith("/")
            assert (ROOT / source).exists() if source.startswith("./") else source in volumes
        for other in service.get("depends_on", []):
            assert other in services
    published = [port.rpartition(":")[2] for port in services["logd"]["ports"]]
    assert published == exposed
    data = [volume.split(":")[1] for volume in services["logd"]["volumes"]]
    assert data == dockerfile()["VOLUME"]
    [prometheus] = load(CONTRIB / "prometheus" / "prometheus.yml")
    [target] = prometheus["scrape_configs"][0]["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert host in services
    assert port in exposed
    assert services["logd"]["environment"]["LOGD_HTTP_NAMES"] == host


def test_grafana_is_given_what_it_looks_for() -> None:
    [compose] = load(ROOT / "compose.yaml")
    mounted = dict(volume.split(":")[1::-1] for volume in compose["services"]["grafana"]["volumes"])
    [provider] = load(CONTRIB / "grafana/provisioning/dashboards/logd.yaml")
    [dashboards] = [each["options"]["path"] for each in provider["providers"]]
    assert (ROOT / mounted[dashboards]) == DASHBOARD.parent
    [sources] = load(CONTRIB / "grafana/provisioning/datasources/prometheus.yaml")
    [source] = sources["datasources"]
    assert source["url"].split("/")[2].split(":")[0] in compose["services"]


def test_kubernetes_agrees_with_the_image_and_with_itself() -> None:
    kinds = {each["kind"]: each for each in load(CONTRIB / "kubernetes" / "logd.yaml")}
    assert set(kinds) == {"ConfigMap", "Service", "StatefulSet"}
    for each in kinds.values():
        assert {"apiVersion", "kind", "metadata"} <= set(each)
    spec = kinds["StatefulSet"]["spec"]
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["replicas"] == 1
    assert spec["selector"]["matchLabels"] == labels == kinds["Service"]["spec"]["selector"]
    assert spec["serviceName"] == kinds["Service"]["metadata"]["name"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert list(map(str, ports.values())) == dockerfile()["EXPOSE"][0].split()
    assert {port["targetPort"] for port in kinds["Service"]["spec"]["ports"]} == set(ports)
    user = int(dockerfile()["USER"][0])
    assert {pod["securityContext"][name] for name in ("runAsUser", "fsGroup")} == {user}
    given = {volume["name"] for volume in pod["volumes"]}
    given |= {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == given
    assert [mounts["data"]] == dockerfile()["VOLUME"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] in ("/healthz", "/readyz")
        assert container[probe]["httpGet"]["port"] in ports
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert pod["terminationGracePeriodSeconds"] > 10, "longer than the setting stop-timeout"


# -- docs/operations.md ---------------------------------------------------------------------------


def table(section: str) -> list[list[str]]:
    """The rows of the first table of a section, without its head."""
    text = (ROOT / "docs" / "operations.md").read_text().partition(f"\n## {section}\n")[2]
    lines = text.partition("\n## ")[0].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    return rows[2:]


def test_each_error_is_explained() -> None:
    named = [code for row in table("Error codes") for code in re.findall(r"`(.+?)`", row[0])]
    assert sorted(named) == sorted(BY_CODE)


def test_each_alert_is_explained() -> None:
    [rules] = load(RULES)
    alerts = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    assert [row[0].strip("`") for row in table("Monitoring")] == alerts


@pytest.mark.parametrize("section", ["Log messages", "Backup"])
def test_each_line_that_is_explained_is_one_that_can_come(section: str) -> None:
    sources = [path.read_text() for path in (ROOT / "logd").rglob("*.py")]
    code = re.sub(r'"\s+f?"', "", "\n".join(sources))  # sentences that go over several lines
    for row in table(section):
        for part in re.split(r"<[^>]*>|…", row[0].strip("`")):
            assert part.strip(" :;,()`") in code, part


def test_settings_that_are_named_exist() -> None:
    known = {config.flag(field.name) for field in config.fields()}
    text = (ROOT / "docs" / "operations.md").read_text()
    named = set(re.findall(r"`((?:max|partition|fsync|stop|hook|idle|request|log)-[a-z-]+)`", text))
    assert named
    assert named <= known
