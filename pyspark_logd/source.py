"""What Spark finds: the source by its name, and a reader or a writer for each kind of query.

Spark makes one in a Python process of the driver for each query. What is wrong with the options, a
host that does not answer and a topic that is not there are said at once, by `load` and `save`.
"""

from __future__ import annotations

from contextlib import ExitStack, closing

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from pyspark_logd.arrow_columns import SCHEMA
from pyspark_logd.batch_reader import BatchReader
from pyspark_logd.connections import dial
from pyspark_logd.errors import BadOption, one_line
from pyspark_logd.filters import FilteringReader
from pyspark_logd.options import SourceWriteOptions, any_read_options, read_options, write_options
from pyspark_logd.stream_reader import StreamReader
from pyspark_logd.topic_sources import homes, open_place
from pyspark_logd.writer import BatchWriter, StreamWriter


class DefaultSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "logd"

    @one_line
    def schema(self) -> StructType:
        options = any_read_options(self.options)
        with ExitStack() as stack:
            places = [stack.enter_context(closing(open_place(site))) for site in options.sites]
            homes(options, places)
        return SCHEMA

    @one_line
    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options, is_stream=False)
        kind = FilteringReader if options.pushes_filters else BatchReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(self.options, schema)

    @one_line
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        options = self._write_options(overwrite)
        dial(options.site).close()
        return BatchWriter(options, schema)

    @one_line
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Nobody is asked here: Spark makes one for every commit too, when a daemon may be away."""
        return StreamWriter(self._write_options(overwrite), schema)

    def _write_options(self, overwrite: bool) -> SourceWriteOptions:
        if overwrite:
            raise BadOption("a topic only grows: write with mode('append') or outputMode('append')")
        return write_options(self.options)
