"""What happens to handlers when the process forks, and when a worker process ends.

A child has copies of the parent's socket and locks, and none of its threads. It must not send what
the parent has buffered, and must not hold the parent's connection or spool open.

The first connection of a process imports a codec. A fork during that import leaves it incomplete in
the child, where every connection then fails (seen in tests), so it is imported here.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  see above
import os
import sys
import weakref
from collections.abc import Callable
from typing import Protocol


class Forked(Protocol):
    def after_fork(self) -> None:
        """Called in a new child before anything else."""

    def flush(self) -> None: ...


_watched: weakref.WeakSet[Forked] = weakref.WeakSet()
_flushed: weakref.WeakSet[Forked] = weakref.WeakSet()  # in this process, when it ends


def watch(holder: Forked) -> None:
    _watched.add(holder)


def _in_child() -> None:
    _flushed.clear()
    for holder in list(_watched):
        holder.after_fork()


os.register_at_fork(after_in_child=_in_child)


def flush_with_worker(holder: Forked) -> None:
    """A process started by `multiprocessing` ends without `atexit`, but runs its finalizers.

    It drops the finalizers of its parent, so they are registered again when it starts.
    """
    util = sys.modules.get("multiprocessing.util")
    if util is not None and holder not in _flushed:
        _add_finalizer(holder)
        util.register_after_fork(holder, _add_finalizer)


def _add_finalizer(holder: Forked) -> None:
    _flushed.add(holder)
    util = sys.modules["multiprocessing.util"]
    util.Finalize(None, _flush, args=(weakref.ref(holder),), exitpriority=0)


def _flush(weak: Callable[[], Forked | None]) -> None:
    holder = weak()
    if holder is not None:
        holder.flush()
