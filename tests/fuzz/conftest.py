"""The daemon of the integration tests, and how the unit tests feed a parser."""

from __future__ import annotations

import sys
from pathlib import Path

for beside in ("integration", "unit"):
    sys.path.insert(0, str(Path(__file__).parents[1] / beside))
