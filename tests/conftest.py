"""Settings for all tests: hypothesis, and which tests run in the same worker.

Hypothesis draws the same examples in each run, so that a change does not pass or fail by chance.
The long runs draw others each time.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

import logd
from tests.support.long_run import LONG

settings.register_profile(
    "logd",
    deadline=None,
    derandomize=not LONG,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("logd")

# Files whose tests share a browser, a Spark session, an object store or an installation, by area.
_SHARING = re.compile(
    r"tests/integration/(browser/|operations/test_clean_machine"
    r"|archive/test_(archive|commands|kills|manifest|round_trip)"
    r"|spark/test_(batch_read|errors|secured|spark_page|stream_kills|stream_read|write))"
)
# Files whose tests share something expensive with each other only.
_FILES = re.compile(r"tests/integration/(cli/test_cli_screen|spark/test_cluster)")


def _stale_modules() -> list[str]:
    """Compiled modules that are not those of the current source."""
    package = Path(logd.__file__).parent
    compiled = [
        (path, path.with_name(path.name.partition(".")[0])) for path in package.rglob("*.so")
    ]
    return [
        path.name
        for path, module in compiled
        for source in (module.with_suffix(".py"), module.with_suffix(".c"))
        if source.exists() and source.stat().st_mtime > path.stat().st_mtime
    ]


class AreaScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Tests of an area or a file that share something expensive run in one worker, others in any.

    The groups of xdist have no effect with pytest 9.2: see issue 1386 of pytest-xdist.
    """

    def _split_scope(self, nodeid: str) -> str:
        if _FILES.match(nodeid):
            return nodeid.partition("::")[0]
        return nodeid.split("/")[2] if _SHARING.match(nodeid) else nodeid


def pytest_configure(config: pytest.Config) -> None:
    if stale := _stale_modules():
        raise pytest.UsageError(f"older than their sources, run make check: {', '.join(stale)}")
    config.pluginmanager.import_plugin("tests.support.survivals")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> AreaScheduling:
    return AreaScheduling(config, log)
