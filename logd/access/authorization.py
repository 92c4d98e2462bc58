"""Authorization of one connection's requests: requests in, requests and refusals out, in order.

Connections have an authorizer only if there is an access file or a limit of topics per connection.
The right to push is checked once per topic and remembered. Sans I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from logd.access.access_file import Access, Grant, is_for_anybody
from logd.errors import LogdError, TopicLimit, Unauthorized
from logd.wire.requests import Auth, Mixed, Push, Pushes, RefusedRequest, Request, Topics


class Authorizer:
    def __init__(self, access: Access | None, max_topics: int, grant: Grant | None = None) -> None:
        self._access, self._max_topics = access, max_topics
        self._grant = grant
        self.pushed: set[str] = set()  # topics that were checked, and may be pushed to
        self._counted: set[str] = set()  # topics pushed to, with any token

    @property
    def is_known(self) -> bool:
        """Has the client authenticated, or is that not required?"""
        return self._access is None or self._grant is not None

    def admit(self, requests: list[Request]) -> list[Request]:
        out: list[Request] = []
        for request in _apart(requests, self.pushed):
            if isinstance(request, Pushes) and request.topic in self.pushed:
                out.append(request)
                continue
            try:
                out.append(self._admitted(request))
            except LogdError as error:
                out.append(RefusedRequest(error))
                if error.closes:
                    break
        return out

    def may_read(self, topic: str) -> bool:
        """With the newest token."""
        return self._access is None or (self._grant is not None and self._grant.may("read", topic))

    def _admitted(self, request: Request) -> Request:
        if isinstance(request, Auth) and self._access is not None:
            previous, self._grant = self._grant, self._access.of_token(request.token)
            self.pushed.clear()
            return Auth(b"", previous)
        if not self.is_known:
            if is_for_anybody(request):
                return request
            raise Unauthorized("authenticate first: AUTH <token>")
        if self._grant is not None:
            request = self._grant.admit(request)
        if isinstance(request, (Pushes, Push)):
            self._count(request.topic)
        return request

    def _count(self, topic: str) -> None:
        if self._max_topics and len({*self._counted, topic}) > self._max_topics:
            raise TopicLimit(
                f"a connection can push to at most {self._max_topics} topics; open another one, or"
                " raise max-topics-per-connection"
            )
        self.pushed.add(topic)
        self._counted.add(topic)

    def reload(self, access: Access | None, max_topics: int) -> bool:
        """Apply a reloaded access file. False: the client has lost its grant."""
        was_known = self.is_known
        self._access, self._max_topics = access, max_topics
        self._grant = self._renewed(self._grant)
        self.pushed.clear()
        return self.is_known or not was_known

    def admit_again(self, requests: Iterable[Request]) -> list[Request]:
        """After a reload: check requests again that were admitted before it and have not started,
        each with the token it was sent with."""
        parts, grant = list[list[Request]](), self._grant
        for request in reversed(list(requests)):
            if isinstance(request, Auth):
                parts.append([request])
                grant = self._renewed(request.previous)  # earlier requests used another token
            elif isinstance(request, Mixed):
                parts.append([self._allowed(one, grant) for one in request.one_by_one()])
            else:
                parts.append([self._allowed(request, grant)])
        return [request for part in reversed(parts) for request in part]

    def _allowed(self, request: Request, grant: Grant | None) -> Request:
        if self._access is None:
            return request._replace(sees=None) if isinstance(request, Topics) else request
        if is_for_anybody(request) or isinstance(request, RefusedRequest):
            return request
        try:
            if grant is None:
                raise Unauthorized("the token of this request was revoked")
            return grant.admit(request)
        except LogdError as error:
            return RefusedRequest(error)

    def _renewed(self, grant: Grant | None) -> Grant | None:
        """The grant that the same token or certificate has now."""
        if self._access is None or grant is None:
            return None
        return self._access.current(grant)


def _apart(requests: list[Request], pushed: set[str]) -> Iterator[Request]:
    """Split interleaved pushes, unless all their topics are known to be allowed."""
    for request in requests:
        if isinstance(request, Mixed) and not pushed.issuperset(request.runs):
            yield from request.one_by_one()
        else:
            yield request
