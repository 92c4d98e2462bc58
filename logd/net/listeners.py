"""Who is let in, as the settings have it: the access file, certificates, limits on connections.

The same at the start and at a reload. Everything is read and checked before anything changes, so
that settings which are of no use leave the doors as they are.
"""

from __future__ import annotations

import ipaddress
import logging
import resource
import stat

from logd.access import access_file
from logd.config import Config, address
from logd.errors import BadRequest
from logd.net import authorized_connection, tls
from logd.tcp import Connections

log = logging.getLogger("logd")


class Listeners:
    def __init__(self, connections: Connections) -> None:
        authorized_connection.add_kinds(connections)
        self._connections, self._is_open = connections, False

    def take(self, config: Config) -> None:
        """From now on these settings hold; BadRequest, and they do not."""
        check_exposed(config)
        granted = _access(config)
        context = tls.server_context(config.tls_cert, config.tls_key, config.tls_client_ca)
        connections, service = self._connections, self._connections.service
        if self._is_open and (context is None) != (connections.tls is None):
            raise BadRequest("TLS can be switched on and off by a restart only: see tls-cert")
        self._is_open = True
        service.config = service.admission.config = config
        service.access = granted
        if context is not None:
            if connections.tls is None:
                connections.tls = tls.ListenerContext.before(service.admission, context)
            connections.tls.current = context
        connections.budget.limit_bytes = config.max_unfinished_bytes
        authorized_connection.judge_again(connections)


def _access(config: Config) -> access_file.Access | None:
    if not config.access_file:
        return None
    file = tls.secret_file(config.access_file)
    granted = access_file.load(file)
    if file.stat().st_mode & stat.S_IROTH:
        log.warning("%s can be read by every user of this machine; chmod o-r it", file)
    return granted


def check_exposed(config: Config) -> None:
    """Refuse to be open to other machines without asking anybody who they are."""
    has_certificates, has_tokens = bool(config.tls_client_ca), bool(config.access_file)
    for name, where, has_proof in (
        ("host", config.host, has_certificates or has_tokens),
        ("http-host", config.http_host, has_certificates or has_tokens),
        ("syslog-host", config.syslog_host, has_certificates),
    ):
        if where == "off" or is_loopback(address(where)[0]):
            continue
        if not has_proof and not config.allow_anonymous:
            proof = "tls-client-ca" if name == "syslog-host" else "access-file or tls-client-ca"
            raise BadRequest(
                f"{name} {where} is open to other machines, and anybody there could read and write;"
                f" set {proof}, or allow-anonymous if that is what you want"
            )
        if has_tokens and not config.tls_cert:
            log.warning("%s %s: tokens and messages travel unencrypted; set tls-cert", name, where)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def raise_open_files(config: Config) -> None:
    """Take as many descriptors as there may be; the default of most systems is far too small."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = config.max_open_files or hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(wanted, hard)))
        soft = wanted
    except (OSError, ValueError):
        log.warning("max-open-files %d is more than the %d that the system allows", wanted, hard)
    if soft != resource.RLIM_INFINITY and soft <= config.max_connections:
        log.warning(
            "%d open files are not enough for max-connections %d and the files of topics;"
            " raise the limit (LimitNOFILE= in systemd, ulimit -n), or lower max-connections",
            soft, config.max_connections,
        )  # fmt: skip
