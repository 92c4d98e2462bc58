"""A daemon that asks for a token and speaks TLS, read and written from Spark's own processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from logd import Client, Endpoint
from tests.support.daemon import Daemon, running

TOKEN = "spark-1234567890-abcdef"


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Daemon]:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = ca.issue_cert("localhost", "127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    access = tmp_path / "access.toml"
    access.touch(0o600)
    access.write_text(f'[tokens.spark]\ntoken = "{TOKEN}"\nread = ["*"]\nwrite = ["app"]\n')
    flags = ("--access-file", str(access), "--tls-cert", str(tmp_path / "server.pem"))
    with running(tmp_path, *flags) as started:
        yield started


def options(daemon: Daemon, tmp_path: Path, **more: str) -> dict[str, str]:
    address = f"tls://{daemon.address}"
    return {"host": address, "ca": str(tmp_path / "ca.pem"), "token": TOKEN, **more}


def test_written_and_read_back(spark: Any, secured: Daemon, tmp_path: Path) -> None:
    frame = spark.createDataFrame([("one",), ("two",)], "value string").coalesce(1)
    given = options(secured, tmp_path, topic="app")
    frame.write.format("logd").mode("append").options(**given).save()
    given = options(secured, tmp_path, subscribe="app")
    rows = spark.read.format("logd").options(**given).load().collect()
    assert [bytes(row.value) for row in rows] == [b"one", b"two"]
    endpoint = Endpoint(given["host"], token=TOKEN, ca=given["ca"])
    with Client(endpoint) as client:
        assert client.stats("app")["next"] == "2"


def test_a_stream_shows_it_too(spark: Any, secured: Daemon, tmp_path: Path) -> None:
    given = options(secured, tmp_path, subscribe="app", startingOffsets="earliest")
    with Client(Endpoint(given["host"], token=TOKEN, ca=given["ca"])) as client:
        client.push("app", [b"%d" % n for n in range(10)])
    query = (
        spark.readStream.format("logd")
        .options(**given)
        .load()
        .writeStream.trigger(availableNow=True)
        .format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    assert query.awaitTermination(120)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 10


@pytest.mark.parametrize(
    ("change", "said"),
    [({"token": "wrong-1234567890-abcdef"}, "token"), ({"ca": ""}, "certificate")],
)
def test_without_it_one_line_says_so(
    spark: Any, secured: Daemon, tmp_path: Path, change: dict[str, str], said: str
) -> None:
    given = {**options(secured, tmp_path, subscribe="app"), **change}
    given = {name: value for name, value in given.items() if value}
    with pytest.raises(Exception, match=said) as error:
        spark.read.format("logd").options(**given).load()
    assert TOKEN not in str(error.value)
