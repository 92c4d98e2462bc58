"""Settings for all tests: hypothesis, and which tests share a worker.

Hypothesis draws the same examples in each run, so that a change does not pass or fail by chance.
The long runs draw others each time.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests.support.long_run import LONG

settings.register_profile(
    "logd",
    deadline=None,
    derandomize=not LONG,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("logd")

# Fixtures that take seconds: all tests that use one run in the same worker, so it is made once.
EXPENSIVE = ("chromium", "installed", "session", "spark")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("tests.support.survivals")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name in EXPENSIVE:
            if name in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group(name))
