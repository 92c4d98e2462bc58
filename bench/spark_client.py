"""Counts messages in a Spark session and reports the time.

    python -m bench.spark_client ADDRESS TOPIC FILE

Each line of its standard input is a source, `logd` or `text`; it replies with one line of JSON.
Both use the same session, so that Java has compiled both equally.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from pyspark.sql import functions as F

from pyspark_logd.session import spark_session

SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def count(frame: Any) -> dict[str, float]:
    start = time.perf_counter()
    messages, length = frame.agg(F.count("*"), F.sum(F.length("value"))).collect()[0]
    return {"seconds": time.perf_counter() - start, "messages": messages, "bytes": length}


def main(address: str, topic: str, file: str) -> None:
    spark = spark_session("bench", "local[*]", **SETTINGS)
    ways = {
        "logd": spark.read.format("logd").options(host=address, subscribe=topic).load,
        "text": lambda: spark.read.text(file),
    }
    for line in sys.stdin:
        print(json.dumps(count(ways[line.strip()]())), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
