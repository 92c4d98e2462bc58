"""Which of the requests that wait are allowed after a reload, whoever sent them."""

from __future__ import annotations

from logd.access.access_file import Access, Grant, token_sum
from logd.access.authorization import Authorizer
from logd.errors import LogdError
from logd.wire.requests import Auth, Mixed, Ping, Pushes, Read, RefusedRequest, Request, Topics


def access(**rights: tuple[str, ...]) -> Access:
    """Tokens that are called as their names, and what each may read and write."""
    sums = {name: token_sum(name.encode()) for name in rights}
    grants = [Grant(name, globs, globs, proof=sums[name]) for name, globs in rights.items()]
    return Access({sums[grant.name]: grant for grant in grants}, {})


def shown(requests: list[Request]) -> list[str]:
    def code(request: Request) -> str:
        if isinstance(request, RefusedRequest):
            error: LogdError = request.error
            return error.code
        return type(request).__name__

    return [code(request) for request in requests]


READ_A, READ_B = Read("a", 0, 1), Read("b", 0, 1)


def test_each_is_judged_by_the_token_it_was_sent_with() -> None:
    authorizer = Authorizer(access(first=("a",), second=("b",)), 0)
    sent: list[Request] = [Auth(b"first"), READ_A, READ_B, Auth(b"second"), READ_A, READ_B, Ping()]
    waiting = authorizer.admit(sent)
    assert shown(waiting) == ["Auth", "Read", "forbidden", "Auth", "forbidden", "Read", "Ping"]
    assert authorizer.reload(access(first=("b",), second=("a", "b")), 0)
    again = authorizer.admit_again(waiting)
    assert shown(again) == ["Auth", "forbidden", "forbidden", "Auth", "forbidden", "Read", "Ping"]
    assert authorizer.reload(access(second=("b",)), 0)
    again = authorizer.admit_again(waiting)
    assert shown(again) == [
        "Auth", "unauthorized", "forbidden", "Auth", "forbidden", "Read", "Ping",
    ]  # fmt: skip


def test_pushes_to_several_topics_and_lists_of_topics() -> None:
    authorizer = Authorizer(access(me=("*",)), 0)
    mixed = Mixed({"a": [b"1\n", b"3\n"], "b": [b"2\n"]}, b"\0\1\0")
    authorizer.admit([Auth(b"me"), Pushes("a", [b"x\n"], None), Pushes("b", [b"x\n"], None)])
    waiting = authorizer.admit([mixed, Topics("*")])
    assert shown(waiting) == ["Mixed", "Topics"]
    assert authorizer.reload(access(me=("b",)), 0)
    *pushes, topics = authorizer.admit_again(waiting)
    assert shown(pushes) == ["forbidden", "Pushes", "forbidden"]
    assert isinstance(topics, Topics)
    assert topics.sees is not None
    assert (topics.sees("a"), topics.sees("b")) == (False, True)
    assert authorizer.reload(None, 0)
    *pushes, topics = authorizer.admit_again(waiting)
    assert shown(pushes) == ["Pushes"] * 3
    assert isinstance(topics, Topics)
    assert topics.sees is None
