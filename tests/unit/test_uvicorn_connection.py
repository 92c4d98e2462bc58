"""The installed uvicorn has the internals that logd overrides or reads."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from logd.web.uvicorn_connection import HttpProtocol

CONFIG = uvicorn.Config(Mock(), http="httptools", log_config=None)
SERVER = uvicorn.Server(CONFIG)
INTERNALS = {
    HttpToolsProtocol: """
        connection_made connection_lost data_received on_message_begin on_header on_headers_complete
        on_message_complete on_response_complete resume_writing send_400_response shutdown
        _start_asgi_task _unset_keepalive_if_required cycle flow headers loop pipeline scope
        transport""",
    RequestResponseCycle: """
        chunked_encoding disconnected expected_content_length keep_alive message_event more_body
        response_complete response_started send transport waiting_for_100_continue""",
    FlowControl: "pause_reading resume_reading",
    uvicorn.Server: "capture_signals serve server_state should_exit started",
}
INSTANCES: dict[type, Callable[[], object]] = {
    HttpToolsProtocol: lambda: HttpToolsProtocol(
        CONFIG, SERVER.server_state, {}, _loop=Mock(asyncio.AbstractEventLoop)
    ),
    RequestResponseCycle: lambda: RequestResponseCycle(
        **{name: Mock() for name in inspect.signature(RequestResponseCycle).parameters}
    ),
    FlowControl: lambda: FlowControl(Mock()),
    uvicorn.Server: lambda: SERVER,
}


@pytest.mark.parametrize("kind", INTERNALS)
def test_the_internals_exist(kind: type) -> None:
    instance = INSTANCES[kind]()
    missing = [name for name in INTERNALS[kind].split() if not hasattr(instance, name)]
    assert not missing, (
        f"{kind.__name__} of uvicorn {uvicorn.__version__} lacks {missing}: adapt"
        " logd/web/uvicorn_connection.py, or exclude this version in pyproject.toml"
    )


def test_no_new_internal_has_the_name_of_one_of_ours() -> None:
    """An attribute that a later version adds must not be overridden by accident."""
    ours = {name for name in vars(HttpProtocol) if not name.startswith("__")}
    assert ours & {*dir(HttpToolsProtocol)} <= {*INTERNALS[HttpToolsProtocol].split()}
