"""Credentials: `Authorization: Bearer <token>`, `Basic` with the token as password, or a client
certificate.

Browsers ask their user for `Basic` credentials and send them with every request, including streams
and downloads. Some log shippers support nothing else. The user name is ignored.
"""

from __future__ import annotations

import base64
import binascii

from starlette.types import Scope

from logd.access.access_file import Access, Grant
from logd.errors import BadRequest, Unauthorized

OPEN_PATHS = frozenset(("/healthz", "/readyz"))
CHALLENGES = ((b"www-authenticate", b"Bearer"), (b"www-authenticate", b'Basic realm="logd"'))


def grant_of(access: Access, scope: Scope) -> Grant:
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(given) > 1:
        raise BadRequest("a header that may occur once occurs twice", closes=True)
    if given:
        return access.of_token(_token(given[0]))
    grant = access.of_certificate(scope["client_names"])
    if grant is None:
        raise Unauthorized("a token is required: Authorization: Bearer <token>")
    return grant


def _token(value: bytes) -> bytes:
    scheme, _, rest = value.partition(b" ")
    match scheme.lower():
        case b"bearer":
            return rest.strip()
        case b"basic":
            try:
                return base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
            except binascii.Error:
                pass
    raise Unauthorized("Authorization must be Bearer <token>, or Basic with the token as password")
