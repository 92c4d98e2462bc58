"""Rows about the cost of TLS and tokens: Python clients of logd with and without both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from bench import peers
from bench.client_rows import run_client
from bench.measure import LOGD, Measures, Row, Sample, Setting, Skip
from bench.workloads import MESSAGE_BYTES, scratch

PLAIN = "plain"
TOPIC = "secured"
TOKEN = "a-token-of-the-benchmark"
_ACCESS = f'[tokens.bench]\ntoken = "{TOKEN}"\nread = ["*"]\nwrite = ["*"]\n'


@contextmanager
def secured(setting: Setting, mode: str) -> Iterator[Measures]:
    """Each uses its own daemon, otherwise with the same settings."""
    if find_spec("trustme") is None:
        yield {LOGD: Skip("the Python package trustme, which makes certificates, is not installed")}
        return
    turns = count()
    with scratch(setting) as place:
        (place / "secure").mkdir()
        flags = _secrets(place / "secure")
        with (
            peers.logd(place, "interval") as plain,
            peers.logd_on(place / "tls", place / "tls.log", *flags) as tls,
        ):
            addresses = {LOGD: f"tls://{tls.address}@{place / 'secure'}", PLAIN: plain.address}

            def measure(address: str, mode: str = mode, topic: str = TOPIC) -> Sample:
                messages = setting.sizes.client_messages
                sample = run_client(setting, "python_client", mode, address, topic, messages)
                return Sample(sample.value * MESSAGE_BYTES / 1e6, sample.facts)

            def turn(address: str) -> Sample:
                topic = f"{TOPIC}-{next(turns)}" if mode == "write" else TOPIC
                return measure(address, topic=topic)

            if mode != "write":
                for address in addresses.values():
                    measure(address, "write")
            yield {name: partial(turn, address) for name, address in addresses.items()}


def _secrets(directory: Path) -> tuple[str, ...]:
    """Create certificates and a token; returns the options of the daemon."""
    import trustme

    ca = trustme.CA()
    ca.cert_pem.write_to_path(directory / "ca.pem")
    issued = ca.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(directory / "server.pem")
    (directory / "token").write_text(TOKEN)
    access = directory / "access.toml"
    access.write_text(_ACCESS)
    return "--tls-cert", str(directory / "server.pem"), "--access-file", str(access)


ROWS = (
    Row("tls-push", "Writer over TLS, with a token", "MB/s", partial(secured, mode="write")),
    Row("tls-read", "Reader over TLS, batch by batch", "MB/s", partial(secured, mode="batches")),
)
