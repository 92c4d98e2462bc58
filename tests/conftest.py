"""For all tests: how long an example of hypothesis takes tells of the machine, not of the code.

The examples are the same in each run, so that whether a change passes is not a matter of luck. The
long runs, which are there to find what nobody has thought of, have others each time.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "logd",
    deadline=None,
    derandomize=os.environ.get("LOGD_LONG") != "1",
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("logd")
