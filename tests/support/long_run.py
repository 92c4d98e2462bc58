"""Is this a long run (`make test-faults`, `make test-fuzz`)? It tries many more cases."""

from __future__ import annotations

import os

LONG = os.environ.get("LOGD_LONG") == "1"
