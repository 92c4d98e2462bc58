"""A program for a cluster: reads a topic, and writes it to another in tasks that fail once each.

    python cluster_job.py MASTER ADDRESS DIRECTORY [SETTING=VALUE...]

It prints one line of JSON: how many messages it read, how many bytes they have, and in which
directories the tasks ran; each executor has its own.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import functions as F

from pyspark_logd.session import spark_session


def main(master: str, address: str, directory: str, *settings: str) -> None:
    spark = spark_session("cluster test", master, **dict(s.split("=", 1) for s in settings))
    frame = spark.read.format("logd").options(host=address, subscribe="app", minPartitions=4).load()
    where = F.udf(os.getcwd)

    def fails_once(value: bytes) -> bytes:
        context = TaskContext.get()
        assert context is not None
        tried = Path(directory) / f"tried-{context.partitionId()}"
        if value.startswith(b"late") and not tried.exists():
            tried.touch()
            raise OSError("failed on purpose")
        return value

    found = frame.agg(F.count("*"), F.sum(F.length("value")), F.collect_set(where())).collect()[0]
    copy = frame.select(F.udf(fails_once, "binary")("value").alias("value"))
    copy.write.format("logd").mode("append").options(host=address, topic="copy").save()
    print(json.dumps([found[0], found[1], sorted(found[2])]), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
