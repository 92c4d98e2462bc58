"""What Spark finds: the source by its name, and a reader or a writer for each kind of query."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from pyspark_logd.batch_reader import BatchReader
from pyspark_logd.columns import SCHEMA
from pyspark_logd.errors import one_line
from pyspark_logd.options import read_options


class DefaultSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "logd"

    def schema(self) -> StructType:
        return SCHEMA

    @one_line
    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(read_options(self.options, is_stream=False), schema)
