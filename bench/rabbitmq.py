"""RabbitMQ with its stream plugin, unpacked from Debian's packages and not installed.

Its scripts expect Erlang in /usr and start a port mapper, which they leave running. Here `erl` is
in build/, the mapper is stopped like any other process, and all ports are on loopback. RabbitMQ
never syncs streams and relies on replicas, so an acknowledgement guarantees less than `interval`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers import Peer, free_port
from bench.processes import ROOT, is_comparing, running, wait_for

UNPACKED = ROOT / "build" / "rabbitmq"
ERLANG = UNPACKED / "usr" / "lib" / "erlang"
READY = r"Server startup complete"
READY_TIMEOUT_S = 60.0

_CONFIG = """\
listeners.tcp = none
stream.listeners.tcp.1 = 127.0.0.1:{port}
stream.advertised_host = 127.0.0.1
stream.advertised_port = {port}
log.console = true
log.console.level = info
log.file = false
"""
_ERL = """\
#!/bin/sh
export ROOTDIR={erlang} BINDIR={binaries} EMU=beam PROGNAME=erl
exec "$BINDIR/erlexec" "$@"
"""


def missing() -> str | None:
    if _server() and _binaries() and not is_comparing():
        return None
    return "RabbitMQ is not in build/rabbitmq; `make bench-packages` unpacks it"


def version() -> str:
    server = _server()
    return server.parent.parent.name.partition("-")[2] if server else "none"


@contextmanager
def rabbitmq(directory: Path) -> Iterator[Peer]:
    data, log = directory / "rabbitmq", directory / "rabbitmq.log"
    data.mkdir(parents=True)
    ports = {name: free_port() for name in ("stream", "mapper", "distribution")}
    variables = _variables(data, ports)
    _write_settings(data, ports["stream"])
    mapper = [str(ERLANG / "bin" / "epmd"), "-port", str(ports["mapper"]), "-address", "127.0.0.1"]
    server = _server()
    assert server is not None  # callers check `missing` first
    with running(mapper, directory / "epmd.log"):
        start = time.perf_counter()
        with running([server], log, variables) as process:
            wait_for(process, log, READY, READY_TIMEOUT_S)
            yield Peer(process.pid, ports["stream"], time.perf_counter() - start, data)


def _write_settings(data: Path, port: int) -> None:
    (data / "rabbitmq.conf").write_text(_CONFIG.format(port=port))
    (data / "plugins").write_text("[rabbitmq_stream].\n")
    (data / "bin").mkdir()
    erl = data / "bin" / "erl"
    erl.write_text(_ERL.format(erlang=ERLANG, binaries=_binaries()))
    erl.chmod(0o755)


def _variables(data: Path, ports: dict[str, int]) -> dict[str, str]:
    """The environment of its scripts; by default they use /etc and /var."""
    return {
        "PATH": f"{data}/bin:{ERLANG}/bin:/usr/bin:/bin",
        "HOME": str(data),  # for its secret cookie
        "LANG": "C.UTF-8",
        "ERL_EPMD_PORT": str(ports["mapper"]),
        "RUNNING_UNDER_SYSTEMD": "1",  # makes the script exec the server, so that signals reach it
        "RABBITMQ_NODENAME": f"bench{ports['stream']}@localhost",
        "RABBITMQ_DIST_PORT": str(ports["distribution"]),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_CONFIG_FILE": f"{data}/rabbitmq.conf",
        "RABBITMQ_ENABLED_PLUGINS_FILE": f"{data}/plugins",
        "RABBITMQ_MNESIA_BASE": f"{data}/mnesia",
        "RABBITMQ_LOG_BASE": f"{data}/log",
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_PID_FILE": f"{data}/pid",
    }


def _server() -> Path | None:
    places = UNPACKED.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server")
    return next(places, None)


def _binaries() -> Path | None:
    return next(ERLANG.glob("erts-*/bin"), None)
