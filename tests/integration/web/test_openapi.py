"""The description for programs is complete, and a program that believes it meets no surprise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from logd import Client
from logd.http import ROUTES
from logd.web.openapi import PATHS
from tests.integration.web.conftest import Curl
from tests.support.daemon import HANG_S, Daemon

OTHERS = {"/", "/page/{name}"}  # for people


def test_every_route_is_described_and_no_other() -> None:
    routed = {(path, method.lower()) for path, methods, _ in ROUTES for method in methods}
    routed.add(("/log", "post"))
    described = {(path, method) for path, methods in PATHS.items() for method in methods}
    assert described == {one for one in routed if one[0] not in OTHERS}


def test_it_is_served(curl: Curl) -> None:
    document = curl("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    assert set(document["paths"]) == set(PATHS)


def test_anything_that_fits_the_description(daemon: Daemon, tmp_path: Path) -> None:
    """Made up by schemathesis, right and wrong: no server error, no status without a word."""
    with Client(daemon.address) as client:
        client.push("app", [b"one", b"two"])
    document = f"http://{daemon.http}/openapi.json"
    command = [str(Path(sys.executable).parent / "schemathesis"), "run", document]
    command += ["--url", f"http://{daemon.http}", "--max-examples", "30", "--seed", "1"]
    command += ["--checks", "not_a_server_error,status_code_conformance,content_type_conformance"]
    command += ["--exclude-path", "/topics/{topic}/follow", "--phases", "examples,coverage,fuzzing"]
    command += ["--request-timeout", str(HANG_S), "--workers", "1", "--no-color"]
    command += ["--generation-database", "none"]
    command += ["--suppress-health-check", "too_slow"]  # which tells of the machine
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    with Client(daemon.address) as client:
        assert int(client.stats()["stored_messages"]) > 50, "little that it made up was taken"
    assert "Traceback" not in daemon.log, daemon.log[-3000:]
