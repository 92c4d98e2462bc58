"""The source of messages and counters: a daemon, or the files in a data directory.

Commands get a reader or a list and do not depend on which of the two it comes from.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cli.arguments import connection
from cli.exit_codes import OutputClosed, UsageError
from cli.output.output_watch import wait_while_open
from cli.output.stdout import notice, stdout

if TYPE_CHECKING:
    from logd.client.reader import Reader
    from logd.client.topics_reader import TopicsReader
    from logd.offline.reader import DirectoryReader
    from logd.wire.commands import TopicInfo
    from logd.wire.read_state import Gap, Rewind

POLL_INTERVAL_MS = 1000  # between two checks whether a topic exists
RETRY_S = 10.0  # how long a read that does not follow waits for a daemon that went away


class MessageSource:
    def __init__(
        self, ctx: typer.Context, host: str | None, data_dir: Path | None, quiet: bool
    ) -> None:
        if host is not None and data_dir is not None:
            raise UsageError("--host and --data-dir cannot be used together")
        self._ctx, self._host, self.data_dir, self.quiet = ctx, host, data_dir, quiet

    def silent(self) -> MessageSource:
        """The same source without notices."""
        return MessageSource(self._ctx, self._host, self.data_dir, quiet=True)

    # -- readers --------------------------------------------------------------------------------

    def reader(self, topic: str, *, follow: bool, **bounds: Any) -> Reader | DirectoryReader:
        if self.data_dir is None:
            from logd.client.reader import Reader

            return Reader(self._address(), topic, **self._reading(follow), **bounds)
        from logd.offline.reader import DirectoryReader

        files = DirectoryReader(self.data_dir, topic, on_gap=self._print_gap, **bounds)
        if not self._notify_in_use(self.data_dir) and files.torn:
            notice(f"{files.torn}; the daemon moves them to quarantine at its next start",
                   self.quiet)  # fmt: skip
        return files

    def topics_reader(
        self, names: list[str], merge: str, *, follow: bool, **bounds: Any
    ) -> TopicsReader:
        from fnmatch import fnmatchcase

        from logd.client.topics_reader import TopicsReader

        if merge not in ("time", "arrival"):
            raise UsageError(f"invalid value {merge!r} for --merge: use time or arrival")
        order: Any = merge
        reader = TopicsReader(
            self._address(), names, merge=order, **self._reading(follow), **bounds
        )
        for name in names:
            if not any(fnmatchcase(topic, name) for topic in reader.topics):
                waiting = "; waiting for one" if follow else ""
                notice(f"no topic matches {name}{waiting}", self.quiet)
        return reader

    def _reading(self, follow: bool) -> dict[str, Any]:
        """A reader that follows waits for a daemon that went away without a time limit."""

        def on_trouble(error: Exception) -> None:
            notice(f"{error}; retrying", self.quiet)

        return {
            "follow": follow, "on_gap": self._print_gap, "on_trouble": on_trouble,
            "patience_s": None if follow else RETRY_S,
        }  # fmt: skip

    def _print_gap(self, gap: Gap | Rewind) -> None:
        notice(str(gap), self.quiet)

    # -- topics and counters --------------------------------------------------------------------

    def topics(self, glob: str) -> list[TopicInfo]:
        if self.data_dir is None:
            with connection.client(self._ctx, self._host) as client:
                return client.topics(glob)
        from logd.offline import reader

        self._notify_in_use(self.data_dir)
        return reader.topics(self.data_dir, glob)

    def stats(self, topic: str | None) -> dict[str, str]:
        if self.data_dir is None:
            with connection.client(self._ctx, self._host) as client:
                return client.stats(topic)
        from logd.offline import reader

        self._notify_in_use(self.data_dir)
        return reader.stats(self.data_dir, topic)

    def wait_for_topic(self, topic: str, until_ms: int | None) -> bool:
        """Wait until the topic exists. False if it exists already.

        The command ends at the time `until_ms`, or when the output is closed.
        """
        from logd.wire.addresses import ConnectionLost

        if self.data_dir is not None:
            raise UsageError("--forever needs a daemon and cannot be used with --data-dir")
        if self._exists(topic):
            return False
        notice(f"topic {topic} does not exist; waiting for its first message", self.quiet)
        with stdout() as out:
            while True:
                now_ms = time.time_ns() // 1_000_000
                if until_ms is not None and now_ms >= until_ms:
                    raise typer.Exit(0)
                check_ms = now_ms + POLL_INTERVAL_MS
                if not wait_while_open(out.fileno(), min(check_ms, until_ms or check_ms)):
                    raise OutputClosed
                try:
                    if self._exists(topic):
                        return True
                except ConnectionLost as error:
                    notice(f"{error}; retrying", self.quiet)

    def _exists(self, topic: str) -> bool:
        from logd.errors import NotFound

        try:
            self.stats(topic)
        except NotFound:
            return False
        return True

    def _address(self) -> Any:
        return connection.address(self._ctx, self._host)

    def _notify_in_use(self, data_dir: Path) -> bool:
        from logd.offline.reader import in_use

        used = in_use(data_dir)
        if used:
            notice(f"a daemon is using {data_dir}; showing the current content of its files",
                   self.quiet)  # fmt: skip
        return used


def is_glob(name: str) -> bool:
    return not set(name).isdisjoint("*?[")
