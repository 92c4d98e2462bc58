"""A program with two streaming queries, for tests that kill it: a topic into Parquet, and back into
another topic.

    python query.py ADDRESS DIRECTORY [SETTING=VALUE...]

It says `running` when both have started, and never ends by itself.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark_logd.session import spark_session


def writers(spark: Any, address: str, directory: str, **trigger: Any) -> list[Any]:
    """Two queries of the topic `source`, not yet started: to Parquet and to the topic `copy`."""
    frame = (
        spark.readStream.format("logd")
        .options(host=address, subscribe="source", startingOffsets="earliest")
        .options(maxOffsetsPerTrigger=2000, minPartitions=2)
        .load()
    )
    parquet = frame.writeStream.format("parquet").options(
        path=f"{directory}/parquet", checkpointLocation=f"{directory}/checkpoint-parquet"
    )
    topic = (
        frame.select("value")
        .writeStream.format("logd")
        .options(host=address, topic="copy", checkpointLocation=f"{directory}/checkpoint-topic")
    )
    return [writer.trigger(**trigger) for writer in (parquet, topic)]


def main(address: str, directory: str, *settings: str) -> None:
    spark = spark_session("killed", "local[2]", **dict(s.split("=", 1) for s in settings))
    spark.sparkContext.setLogLevel("ERROR")
    for writer in writers(spark, address, directory, processingTime="0 seconds"):
        writer.start()
    print("running", flush=True)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
