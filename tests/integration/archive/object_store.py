"""An S3 of our own: moto's server in a thread, with a new bucket for each test."""

from __future__ import annotations

import logging
from itertools import count
from typing import Any, Self

import pytest

_numbers = count(1)


class ObjectServer:
    def __init__(self) -> None:
        server = pytest.importorskip("moto.server", reason="no moto; `make archive` installs it")
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server: Any = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    @property
    def endpoint(self) -> str:
        host, port = self._server.get_host_and_port()
        return f"http://{host}:{port}"

    @property
    def options(self) -> dict[str, str]:
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": "tests",
            "secret_access_key": "tests",
        }

    def new_bucket(self) -> str:
        """The URL of a place in a bucket that has nothing in it."""
        import boto3

        name = f"bucket-{next(_numbers)}"
        client = boto3.client(
            "s3", endpoint_url=self.endpoint, region_name="us-east-1",
            aws_access_key_id="tests", aws_secret_access_key="tests",
        )  # fmt: skip
        client.create_bucket(Bucket=name)
        return f"s3://{name}/some/logs"
