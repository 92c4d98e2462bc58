"""Checks of the settings of listeners, at the start and at a reload: access file, addresses, files.

They change nothing but the limit of open files. Invalid settings raise BadRequest.
"""

from __future__ import annotations

import ipaddress
import logging
import resource
import stat

from logd.access import access_file
from logd.config import Config, address
from logd.errors import BadRequest
from logd.net import tls

log = logging.getLogger("logd")


def load_access(config: Config) -> access_file.Access | None:
    """The grants of the access file; None: every client may do everything."""
    if not config.access_file:
        return None
    file = tls.secret_file(config.access_file)
    granted = access_file.load(file)
    if file.stat().st_mode & stat.S_IROTH:
        log.warning("every user of this machine can read %s; run chmod o-r", file)
    return granted


def check_exposed(config: Config) -> None:
    """Refuse to serve other machines without authentication, unless that is set explicitly."""
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
                f"{name} {where} is open to other machines without authentication;"
                f" set {proof}, or allow-anonymous if that is intended"
            )
        if has_tokens and not config.tls_cert:
            log.warning("%s %s: tokens and messages are not encrypted; set tls-cert", name, where)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def raise_open_files(config: Config) -> None:
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
