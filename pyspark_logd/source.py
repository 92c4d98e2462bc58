"""The data source that Spark loads: it creates a reader or a writer for each kind of query.

Spark creates a DefaultSource per query, in a Python process of the driver. `load` and `save` fail
immediately if an option is invalid, a daemon does not answer or a topic does not exist.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from pyspark_logd.arrow_batches import SCHEMA
from pyspark_logd.batch_reader import BatchReader
from pyspark_logd.errors import BadOption, one_line_errors
from pyspark_logd.filters import FilteringReader
from pyspark_logd.options import SourceWriteOptions, any_read_options, read_options, write_options
from pyspark_logd.stream_reader import StreamReader
from pyspark_logd.topic_sources import connect, located_topics
from pyspark_logd.writer import BatchWriter, StreamWriter


class DefaultSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "logd"

    @one_line_errors()
    def schema(self) -> StructType:
        with located_topics(any_read_options(self.options)):
            return SCHEMA

    @one_line_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options, is_stream=False)
        kind = FilteringReader if options.pushes_filters else BatchReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(self.options, schema)

    @one_line_errors()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        options = self._write_options(overwrite)
        connect(options.location).close()
        return BatchWriter(options, schema)

    @one_line_errors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Does not connect: Spark also creates a writer for every commit, without using it."""
        return StreamWriter(self._write_options(overwrite), schema)

    def _write_options(self, overwrite: bool) -> SourceWriteOptions:
        if overwrite:
            raise BadOption("topics are append-only: use mode('append') or outputMode('append')")
        return write_options(self.options)
