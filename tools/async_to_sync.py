"""Generate the blocking half of a client module from its asyncio source.

python tools/async_to_sync.py           write the generated files (make generate)
python tools/async_to_sync.py --check   exit with 1 if one of them is out of date

The rules are the table below, applied to the text, so comments and line breaks survive. A source
may use `async`, `await`, the asynchronous special methods, and `to_thread` for blocking calls. What
differs in more than that belongs in a subclass, not here.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent / "logd" / "client"
NAMES = ("client_commands", "server_cursor", "read_loop")
RULES = [
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait asyncio\.to_thread\((\w[\w.]*)(?:, )?", r"\1("),
    (r"\bAsyncClient\(([^)]*)\)\.open\(\)", r"Client(\1)"),  # whose constructor connects
    (r"client\.abort\(\)", "client.close()"),
    (r"\bawait ", ""),
    (r"\b__a(enter|exit|iter|next)__", r"__\1__"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\bAsync([A-Z]\w*)", r"\1"),
    (r"\blogd\.client\.aio\.", "logd.client."),
    (r"\bimport asyncio\n", ""),
]


def generated(name: str) -> str:
    """The text of the blocking module, formatted."""
    text = (ROOT / "aio" / f"{name}.py").read_text()
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    mark = f"# Generated from aio/{name}.py by tools/async_to_sync.py. Do not edit.\n"
    path = str(ROOT / f"{name}.py")
    for step in (["check", "--select", "I", "--fix", "--quiet"], ["format", "--quiet"]):
        command = [sys.executable, "-m", "ruff", *step, "--stdin-filename", path, "-"]
        text = subprocess.run(
            command, input=text, text=True, capture_output=True, check=True
        ).stdout
    return mark + text


def main() -> int:
    stale = []
    for name in NAMES:
        path, text = ROOT / f"{name}.py", generated(name)
        if not path.exists() or path.read_text() != text:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(text)
    print(f"{'out of date' if '--check' in sys.argv else 'written'}: {', '.join(stale) or 'none'}")
    return int("--check" in sys.argv and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
