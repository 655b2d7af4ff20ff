"""`format("waterclock")`: where Spark comes in. Each way of reading and writing has its own module.

They are imported when they are asked for: a task that reads does not load what writes.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from waterclock.spark.options import ReadOptions
from waterclock.spark.schemas import arrow_schema, ddl_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class WaterclockSource(DataSource):
    """Topics of a Waterclock node, as tables and streams."""

    options: dict[str, str]

    @classmethod
    def name(cls) -> str:
        """Return what stands in `format(...)` and `USING`."""
        return "waterclock"

    def schema(self) -> str:
        """Return the columns of the view that is read."""
        return ddl_of(ReadOptions.parse(self.options).view)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads in batch; `schema` says which columns."""
        options = ReadOptions.parse(self.options)
        columns = arrow_schema(options.view, schema.fields)
        if options.is_listing:
            from waterclock.spark.read.listing import ListingReader

            return ListingReader(options, columns)
        from waterclock.spark.read.batch import BatchReader

        return BatchReader(options, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return what reads on and on; `schema` says which columns."""
        from waterclock.spark.read.stream import StreamReader

        options = ReadOptions.parse(self.options)
        options.check_stream()
        return StreamReader(options, arrow_schema(options.view, schema.fields))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what writes a DataFrame into a topic."""
        from waterclock.spark.write.batch import BatchWriter
        from waterclock.spark.write.options import WriteOptions

        return BatchWriter(WriteOptions.parse(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return what writes a streaming query into a topic, whatever its output mode."""
        from waterclock.spark.write.options import WriteOptions
        from waterclock.spark.write.stream import StreamWriter

        return StreamWriter(WriteOptions.parse(self.options), schema)


def register(spark: "SparkSession") -> None:
    """Have a session know `format("waterclock")`; again is harmless. Connect sessions too.

    Spark itself finds an installed `pyspark_waterclock`, but one broken `pyspark_*` package, of
    whoever, keeps it from finding any.
    """
    spark.dataSource.register(WaterclockSource)
