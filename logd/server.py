"""The lifecycle of the daemon: start, reload, stop. Neither commands nor storage."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from logd.config import Config, address
from logd.errors import Internal, LogdError
from logd.net import daemon_log
from logd.net.loop_scheduler import LoopScheduler
from logd.net.syslog import SyslogServer
from logd.net.systemd import Notifier, bound_address, take_sockets
from logd.service import Service
from logd.store import Store
from logd.tcp import Connections
from logd.wire.text import counted

if TYPE_CHECKING:
    from logd.http import HttpServer

log = logging.getLogger("logd")
FREE_SPACE = "free space"
_HOOK_SHARE = 0.7  # of the stop timeout, for a delete hook that is running


class Server:
    def __init__(self, config: Config, settle: Callable[[], Config] | None = None) -> None:
        """`settle` reads all settings again for a reload."""
        inherited = self._inherited = take_sockets(os.environ)
        self._config = config = _at_inherited(config, inherited)
        self._settle: Callable[[], Config] = lambda: (
            _at_inherited(settle(), inherited) if settle is not None else config
        )
        self._notifier = Notifier(os.environ)
        self._is_ready = self._is_reload_due = False
        self._loop = asyncio.get_running_loop()
        scheduler = LoopScheduler(self._loop)
        self.store = Store(config, scheduler)
        self.service = Service(self.store, config, scheduler)
        self.connections = Connections(self.service)
        self._stop = asyncio.Event()
        self._http: HttpServer | None = None
        self._syslog: SyslogServer | None = None
        self._failure = ""  # the reason of a stop that was not requested

    async def run(self) -> None:
        self._loop.set_exception_handler(self._unexpected)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._signalled, number)
        self._loop.add_signal_handler(signal.SIGHUP, self._hung_up)
        self.connections.configure(self._config)
        _raise_open_files(self._config)
        self._open_store()
        host, port = address(self._config.host)
        listener = await self.connections.listen(host, port, self._inherited.get("tcp"))
        http = await self._start_http()
        await self._start_syslog()
        tcp_at, http_at = bound_address(listener.sockets[0]), bound_address(http) if http else "off"
        log.info("ready tcp=%s http=%s data=%s", tcp_at, http_at, self._config.data_dir)
        self._add_periodic_tasks()
        self._ready()
        tasks = [self._start_task("housekeeping", self._run_periodic_tasks())]
        tasks.append(self._start_task("watchdog", self._notifier.stay_alive(self._status)))
        await self._stop.wait()
        self._notifier.stopping(self._config.stop_timeout_s)
        listener.close()
        await self._finish()
        for task in tasks:
            task.cancel()
        log.info("stopped")
        if self._failure:
            raise Internal(self._failure)

    def _start_task(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work, name=name)
        task.add_done_callback(self._ended_early)
        return task

    def _open_store(self) -> None:
        """Blocks the loop; systemd is informed about the progress."""
        with self._notifier.starting(lambda: f"opening topics: {len(self.store.topics)} opened"):
            self.store.open()
        for report in self.store.reports:
            _log_report(report)
        for topic in self.store.topics.values():
            said = {"topic": topic.name}
            for damage in topic.damages:
                log.error("topic %s is faulted: %s", topic.name, damage, extra=said)
            for note in topic.cursors.notes:
                log.warning("topic %s: %s", topic.name, note, extra=said)

    def _ready(self) -> None:
        gc.freeze()  # a collection that includes the modules would block the loop for 50 ms
        self._is_ready = True
        self._notifier.notify(READY=1, STATUS=self._status(), MAINPID=os.getpid())
        if self._is_reload_due:
            self._hung_up()

    def _status(self) -> str:
        """One line for `systemctl status`."""
        faulted = sum(bool(topic.damages) for topic in self.store.topics.values())
        line = counted(len(self.store.topics), "topic")
        line += f", {counted(self.service.connection_limits.open, 'connection')}"
        if faulted:
            line += f", {counted(faulted, 'topic')} faulted, run log-cli check"
        return line

    def _hung_up(self) -> None:
        """SIGHUP: reload, while systemd waits. During the start it is postponed."""
        if not self._is_ready:
            self._is_reload_due = True
            return
        with self._notifier.reloading(self._status):
            self.reload()

    async def _start_http(self) -> socket.socket | None:
        if self._config.http_host == "off":
            return None
        from logd.http import App, HttpServer  # takes half of the start time

        app = App(self.service, self.connections, self._config)
        self._http = HttpServer(app, self._config, self.connections.tls)
        host, port = address(self._config.http_host)
        listening = await self._http.start(host, port, self._inherited.get("http"))
        self._http.call_when_ended(self._ended_early)
        return listening

    async def _start_syslog(self) -> None:
        if self._config.syslog_host != "off":
            self._syslog = SyslogServer(
                self.service, self._config.syslog_topic, self.connections.tls
            )
            host, port = address(self._config.syslog_host)
            listener = await self._syslog.start(host, port, self._inherited.get("syslog"))
            log.info("syslog at %s", bound_address(listener.sockets[0]))

    def _add_periodic_tasks(self) -> None:
        """The tasks that run once per second, in this order."""
        add = self.service.periodic_tasks.add
        add("TCP timeouts", self.connections.sweep)
        if self._http is not None:
            http = self._http
            add("HTTP timeouts", lambda: http.sweep(self.connections.now_s))
        if self._syslog is not None:
            syslog = self._syslog
            add("syslog timeouts", lambda: syslog.sweep(self.connections.now_s))
        add(FREE_SPACE, self.store.check_room)
        add("files of topics", self.store.check_files)
        add("retention", self.store.check_retention)
        add("log of rejections", self.service.rejection_log.report)

    async def _run_periodic_tasks(self) -> None:
        while True:
            await asyncio.sleep(1)
            self.service.periodic_tasks.run()

    def _ended_early(self, task: asyncio.Task[None]) -> None:
        """A task that has to run until the stop has ended: stop the daemon."""
        if not task.cancelled() and not self._stop.is_set():
            self._failure = f"{task.get_name()} ended: {task.exception()!r}"
            log.critical("stopping: %s", self._failure, exc_info=task.exception())
            self._stop.set()

    def _unexpected(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Count an exception in a callback. Socket errors are expected."""
        if not isinstance(context.get("exception"), OSError):
            self.service.periodic_tasks.unexpected_errors += 1
        loop.default_exception_handler(context)

    def reload(self) -> None:
        """Read all settings again, apply those that can change, and log the others."""
        try:
            wanted = self._settle()
            config = wanted.keeping_fixed(self._config)
            self.connections.configure(config)
        except LogdError as error:
            log.error("SIGHUP: %s; no setting was changed", error.text)
            return
        unchanged = self.store.configure(config)
        self.service.periodic_tasks.run_task(FREE_SPACE)
        for topic in unchanged:
            log.warning("SIGHUP: the fsync settings of topic %s change at the next restart", topic)
        if self._http is not None:
            self._http.app.take(config)
        for name in wanted.differences(config):
            log.warning("SIGHUP: %s changes at the next restart", name)
        changed, self._config = config.differences(self._config), config
        daemon_log.set_level(config.log_level)
        log.info("SIGHUP: reloaded; changed settings: %s", ", ".join(changed) or "none")

    async def _finish(self) -> None:
        """Answer pending requests, sync, close. After the timeout exit as a kill would."""
        self.connections.stop()
        if self._syslog is not None:
            self._syslog.stop()
        stopping_http = asyncio.ensure_future(self._http.stop()) if self._http else None
        closed = asyncio.Event()
        self.store.close(closed.set)
        hook_timeout_s = _HOOK_SHARE * self._config.stop_timeout_s
        self._loop.call_later(hook_timeout_s, self.store.running_hooks.kill)
        try:
            async with asyncio.timeout(self._config.stop_timeout_s):
                await closed.wait()
                await self._close_connections()
                if stopping_http is not None:
                    await stopping_http
        except TimeoutError:
            text = "shutdown timed out after %s s; exiting, recovery will run at the next start"
            log.error(text, self._config.stop_timeout_s)
            logging.shutdown()
            os._exit(1)

    async def _close_connections(self) -> None:
        """Wait up to a second for replies that are being sent, then close every connection."""
        for _ in range(20):
            for connection in list(self.connections.open):
                if connection.is_finished():
                    connection.end()
            if not self.connections.open:
                return
            await asyncio.sleep(0.05)
        for connection in list(self.connections.open):
            connection.end()

    def _signalled(self, number: int) -> None:
        log.info("%s: stopping", signal.Signals(number).name)
        self._stop.set()


def _at_inherited(config: Config, inherited: dict[str, socket.socket]) -> Config:
    """The settings with the addresses of the inherited sockets."""
    settings = {"tcp": "host", "http": "http_host", "syslog": "syslog_host"}
    changes = {settings[name]: bound_address(passed) for name, passed in inherited.items()}
    return replace(config, **changes)  # type: ignore[arg-type]


def _log_report(report: Any) -> None:
    said = {"topic": report.topic}
    if report.cut_bytes:
        log.warning(
            "topic %s: kept %d bytes, cut a torn tail of %d (%s); a copy is in quarantine/%s",
            report.topic, report.kept_bytes, report.cut_bytes, report.cut_reason,
            report.quarantine[0], extra=said,
        )  # fmt: skip
    else:
        text = "topic %s: the last shutdown was not clean; all data is intact"
        log.info(text, report.topic, extra=said)


def _raise_open_files(config: Config) -> None:
    """Raise the limit of open files to the maximum; the default of most systems is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = config.max_open_files or hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(wanted, hard)))
        soft = wanted
    except (OSError, ValueError):
        log.warning("max-open-files %d exceeds the system limit of %d", wanted, hard)
    if soft != resource.RLIM_INFINITY and soft <= config.max_connections:
        log.warning(
            "the limit of %d open files is too low for max-connections %d and the files of topics;"
            " raise the limit (LimitNOFILE= in systemd, ulimit -n), or lower max-connections",
            soft, config.max_connections,
        )  # fmt: skip
