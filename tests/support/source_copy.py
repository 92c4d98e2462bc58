"""A copy of the source tree whose tests and programs run the copy's own code.

Modules that can be compiled are copied as source only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def copy_tree(target: Path, *, native: bool) -> Path:
    """The files git knows of; with `native` also the module in C."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    compiled = [str(path.relative_to(ROOT)) for path in ROOT.glob("logd/_native*.so") if native]
    for name in [*listed.stdout.splitlines(), *compiled]:
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    if not native:  # or it would be found where logd is installed
        (target / "logd" / "_native.py").write_text("raise ImportError('this copy has none')\n")
    return target


def environment(tree: Path) -> dict[str, str]:
    """What a test of the copy starts runs the copy's code too."""
    return {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
