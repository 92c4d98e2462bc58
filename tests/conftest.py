"""For all tests: how long an example of hypothesis takes tells of the machine, not of the code."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("logd", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("logd")
