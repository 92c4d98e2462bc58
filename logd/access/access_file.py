"""The access file: tokens and client certificates, and their rights by topic.

A right is a list of globs over topics: `read`, `write` and `admin`; none of them implies another.
Only the SHA-256 of a token is kept, and it is compared in constant time. No text contains a token.
Reads one file; knows no sockets.
"""

from __future__ import annotations

import fnmatch
import hashlib
import hmac
import re
import secrets
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logd.errors import BadRequest, Forbidden, Unauthorized
from logd.wire import requests, units
from logd.wire.requests import Request

_TOKEN = re.compile(rb"[!-~]{16,512}")
_SUM = re.compile(r"[0-9a-f]{64}")
_RIGHTS = ("read", "write", "admin")
_PROOFS = ("token", "sha256", "certificate")
FOR_ANYBODY = (requests.Auth, requests.Help, requests.Ping, requests.Close)


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of one token or certificate."""

    name: str
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()
    proof: bytes | str = field(default=b"", repr=False)  # the sum of a token, or a certificate

    def may(self, right: str, topic: str) -> bool:
        return any(fnmatch.fnmatchcase(topic, glob) for glob in getattr(self, right))

    def sees(self, topic: str) -> bool:
        return self.may("read", topic) or self.may("write", topic)

    def admit(self, request: Request) -> Request:
        """The request, limited to what this grant may see; Forbidden if it is not allowed."""
        match request:
            case requests.Pushes(topic=topic) | requests.Push(topic=topic):
                self._check("write", topic)
            case requests.Commit(topic=topic, offset=None):
                self._check("admin", topic)
            case requests.Read() | requests.Tail() | requests.Follow() | requests.Partitions():
                self._check("read", request.topic)
            case requests.Cursor() | requests.Commit():
                self._check("read", request.topic)
            case requests.Stats(topic=str(topic)) if not self.sees(topic):
                raise Forbidden(f"{self.name} may neither read nor write {topic}")
            case requests.Topics():
                return request._replace(sees=self.sees)
            case requests.ConfigRequest():
                self.check_rules()
        return request

    def check_rules(self) -> None:
        """For the settings of the daemon and the metrics of all topics."""
        if "*" not in self.admin:
            raise Forbidden(f'{self.name} has no admin right over "*"')

    def _check(self, right: str, topic: str) -> None:
        if not self.may(right, topic):
            raise Forbidden(f"{self.name} has no {right} right over {topic}")


class Access:
    """All grants, by token and by certificate."""

    def __init__(self, by_sum: dict[bytes, Grant], by_certificate: dict[str, Grant]) -> None:
        self._by_sum, self._by_certificate = by_sum, by_certificate

    def of_token(self, token: bytes) -> Grant:
        presented, found = token_sum(token), None
        for known, grant in self._by_sum.items():
            if hmac.compare_digest(known, presented):
                found = grant
        if found is None:
            raise Unauthorized("the access file does not contain this token")
        return found

    def of_certificate(self, names: Iterable[str]) -> Grant | None:
        """The grant of a client whose certificate, with these names, has been verified."""
        return next((self._by_certificate[n] for n in names if n in self._by_certificate), None)

    def current(self, grant: Grant) -> Grant | None:
        """The grant that the token or certificate of an earlier `grant` has now."""
        if isinstance(grant.proof, bytes):
            return self._by_sum.get(grant.proof)
        return self._by_certificate.get(grant.proof)

    def renewed(self, grant: Grant | None) -> Grant:
        """The same; Unauthorized if it was revoked."""
        current = self.current(grant) if grant is not None else None
        if current is None:
            raise Unauthorized("the token was revoked; use another one")
        return current


def new_token() -> str:
    return secrets.token_urlsafe(32)


def token_sum(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def certificate_names(certificate: dict[str, Any] | None) -> list[str]:
    """The names in a client certificate, as returned by the ssl module."""
    if not certificate:
        return []
    subject = [pair for group in certificate.get("subject", ()) for pair in group]
    names = [value for key, value in subject if key == "commonName"]
    return names + [value for key, value in certificate.get("subjectAltName", ()) if key == "DNS"]


# -- the file -----------------------------------------------------------------------------------


def load(file: Path) -> Access:
    """BadRequest if the file is invalid; the error never contains a token."""
    try:
        toml = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"cannot read {file}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        where = re.search(r"\(at .*\)$", str(error))  # its text may quote the file
        raise BadRequest(f"{file} is not valid TOML {where[0] if where else ''}") from None
    tables = toml.pop("tokens", None)
    if toml or not isinstance(tables, dict) or not tables:
        raise BadRequest(f"{file} must have sections such as [tokens.shipper], and nothing else")
    by_sum: dict[bytes, Grant] = {}
    by_certificate: dict[str, Grant] = {}
    for name, table in tables.items():
        where_ = f"[tokens.{name}] of {file}"
        kind, proof = _proof(table, where_)
        known: dict[Any, Grant] = by_certificate if kind == "certificate" else by_sum
        if proof in known:
            raise BadRequest(f"{where_} has the same {kind} as {known[proof].name}")
        known[proof] = Grant(name, **_rights(table, where_), proof=proof)
    return Access(by_sum, by_certificate)


def _proof(table: Any, where: str) -> tuple[str, bytes | str]:
    given = [kind for kind in _PROOFS if isinstance(table, dict) and kind in table]
    if len(given) != 1:
        raise BadRequest(f"{where} must have one of {', '.join(_PROOFS)}")
    kind, value = given[0], table[given[0]]
    if kind == "certificate" and isinstance(value, str) and value:
        return kind, value
    if kind == "sha256" and isinstance(value, str) and _SUM.fullmatch(value):
        return kind, bytes.fromhex(value)
    if kind == "token" and isinstance(value, str) and _TOKEN.fullmatch(value.encode()):
        return kind, token_sum(value.encode())
    raise BadRequest(
        f"{kind} in {where}: a token is 16 to 512 printable ASCII characters without a space,"
        " a sha256 64 small hex digits, a certificate a name; `logd token` makes a token"
    )


def _rights(table: dict[str, Any], where: str) -> dict[str, tuple[str, ...]]:
    unknown = [key for key in table if key not in (*_RIGHTS, *_PROOFS)]
    if unknown:
        raise BadRequest(f"{where} has unknown keys: {', '.join(unknown)}")
    try:
        return {right: units.globs(table[right]) for right in _RIGHTS if right in table}
    except ValueError as error:
        raise BadRequest(f"read, write or admin in {where} {error}") from None


def is_for_anybody(request: Request) -> bool:
    """Is it allowed without authentication?"""
    return isinstance(request, FOR_ANYBODY) or (
        isinstance(request, requests.RefusedRequest) and request.error.closes
    )
