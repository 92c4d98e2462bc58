"""Run the tests behind docs/guarantees.md without any compiled module: make test-uncompiled.

They run in a copy of the tree that has only source. Arguments replace the list of tests.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.source_copy import ROOT, copy_tree, environment

_CHECK = """
import logd.batch, logd.topic
assert "_native" not in dir(logd.batch) and logd.topic.__file__.endswith(".py"), "compiled"
"""


def main() -> int:
    guarantees = (ROOT / "docs" / "guarantees.md").read_text()
    tests = sys.argv[1:] or sorted({*re.findall(r"`(tests/\S+?)`", guarantees)})
    with tempfile.TemporaryDirectory() as name:
        tree = copy_tree(Path(name) / "logd", native=False)
        subprocess.run([sys.executable, "-c", _CHECK], cwd=tree, env=environment(tree), check=True)
        for options in (["-n", "5", "-m", "not alone"], ["-m", "alone"]):
            command = [sys.executable, "-m", "pytest", "-rfEs", *options, *tests]
            code = subprocess.run(command, cwd=tree, env=environment(tree), check=False).returncode
            if code not in (0, 5):  # 5: there are none
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
