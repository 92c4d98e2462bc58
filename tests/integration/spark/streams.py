"""Streaming queries for tests: into memory, and run until everything there is has been read."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from tests.integration.spark.rows import logd
from tests.support.daemon import wait_until

HANG_S = 300
# Spark gives a source's Python process ten seconds to start, which a busy machine may not keep.
STARTED_LATE = "Python worker failed to connect back"


def start_query(writer: Any) -> Any:
    """Start a query, again if its Python process was late."""
    query = writer.start()
    wait_until(
        lambda: not query.isActive or "Initializing" not in query.status["message"],
        timeout_s=HANG_S,
    )
    return start_query(writer) if STARTED_LATE in str(query.exception()) else query


class Stream:
    """A query from a topic into Parquet, with its checkpoint. `run` it as often as you like."""

    def __init__(self, spark: Any, directory: Path, address: str, topic: str, **options: object):
        self.spark, self._address, self._topic = spark, address, topic
        self.options = {"startingOffsets": "earliest", **options}
        self.checkpoint, self.output = directory / "checkpoint", directory / "output"

    def start(self, **trigger: Any) -> Any:
        frame = logd(self.spark.readStream, self._address, self._topic, **self.options).load()
        writer = frame.writeStream.format("parquet").option("path", str(self.output))
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return start_query(writer.queryName(f"q{secrets.token_hex(4)}").trigger(**trigger))

    def run(self) -> list[bytes]:
        """Read what there is, and stop; all values so far, in the order of offsets."""
        query = self.start(availableNow=True)
        assert query.awaitTermination(HANG_S)
        return self.values()

    def values(self) -> list[bytes]:
        return [value for _, value in self.rows()]

    def rows(self) -> list[tuple[int, bytes]]:
        found = self.spark.read.parquet(str(self.output)).select("offset", "value").collect()
        return sorted((row.offset, bytes(row.value)) for row in found)

    def batch_sizes(self) -> list[int]:
        """How many messages each micro-batch had that Spark planned, by its offset log."""
        import json

        sizes = []
        for file in sorted((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda f: int(f.name)):
            offset = json.loads(file.read_text().split("\n")[-1])
            sizes.append(sum(t["cuts"][-1] - t["cuts"][0] for t in offset["topics"].values()))
        return sizes
