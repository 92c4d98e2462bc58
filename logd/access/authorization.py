"""What of a connection's requests may pass: requests in, requests and refusals out, in order.

For connections that have something to check; a daemon without an access file and without a limit on
topics per connection makes none. A right is decided once for each topic that a connection pushes
to, and looked up from then on. Sans I/O.
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
        self.pushed: set[str] = set()  # topics that this connection may push to, as far as known
        self._counted: set[str] = set()  # those that it has pushed to, whoever it was then

    @property
    def is_known(self) -> bool:
        """Has whoever is there proved who they are, where that is asked for?"""
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

    def _admitted(self, request: Request) -> Request:
        if isinstance(request, Auth) and self._access is not None:
            previous, self._grant = self._grant, self._access.of_token(request.token)
            self.pushed.clear()
            return Auth(b"", previous)
        if not self.is_known:
            if is_for_anybody(request):
                return request
            raise Unauthorized("show a token first: AUTH <token>")
        if self._grant is not None:
            request = self._grant.admit(request)
        if isinstance(request, (Pushes, Push)):
            self._count(request.topic)
        return request

    def _count(self, topic: str) -> None:
        if self._max_topics and len({*self._counted, topic}) > self._max_topics:
            raise TopicLimit(
                f"a connection pushes to at most {self._max_topics} topics; use another one, or"
                " raise max-topics-per-connection"
            )
        self.pushed.add(topic)
        self._counted.add(topic)

    def judge_again(self, access: Access | None, max_topics: int) -> bool:
        """After a reload: does whoever is there still have a grant, where one is needed?"""
        was_known = self.is_known
        self._access, self._max_topics = access, max_topics
        self._grant = self._renewed(self._grant)
        self.pushed.clear()
        return self.is_known or not was_known

    def admit_again(self, requests: Iterable[Request]) -> list[Request]:
        """After a reload: those that were admitted before it and are not carried out yet, as far as
        they are still allowed to whoever sent them."""
        parts, grant = list[list[Request]](), self._grant
        for request in reversed(list(requests)):
            if isinstance(request, Auth):
                parts.append([request])
                grant = self._renewed(request.previous)  # what came before it was another's
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
                raise Unauthorized("the token that this was sent with is not valid any more")
            return grant.admit(request)
        except LogdError as error:
            return RefusedRequest(error)

    def _renewed(self, grant: Grant | None) -> Grant | None:
        """What the same token or certificate proves now."""
        if self._access is None or grant is None:
            return None
        return self._access.current(grant)


def _apart(requests: list[Request], pushed: set[str]) -> Iterator[Request]:
    """Each push by itself, unless it is known that all of them are allowed."""
    for request in requests:
        if isinstance(request, Mixed) and not pushed.issuperset(request.runs):
            yield from request.one_by_one()
        else:
            yield request
