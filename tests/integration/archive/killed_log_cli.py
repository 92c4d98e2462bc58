"""log-cli that kills itself with SIGKILL at a place of its own choosing.

    python killed_log_cli.py before _commits 2 archive ...

Before, or behind, the second time that its driver creates an object below `_commits`.
"""

from __future__ import annotations

import os
import signal
import sys

from cli.__main__ import main
from logd.archive.object_stores import DirectoryStore

when, below, nth = sys.argv[1], sys.argv[2], int(sys.argv[3])
create, times = DirectoryStore.create, 0


def killed(store: DirectoryStore, path: str, content: bytes) -> bool:
    global times
    times += path.startswith(below)
    is_time = path.startswith(below) and times == nth
    if is_time and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    created = create(store, path, content)
    if is_time:
        os.kill(os.getpid(), signal.SIGKILL)
    return created


DirectoryStore.create = killed  # type: ignore[method-assign,assignment]
del sys.argv[1:4]
main()
