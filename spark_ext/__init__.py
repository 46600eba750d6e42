"""Spark reads and writes Milena topics: ``spark.read.format("milena")``.

``source`` is what Spark calls; behind it are rooms, of which those above know those below:

    jobs                programs on the data source
    streaming           a topic as a stream: a batch query after the other
    reading   writing   a batch query, planned and read; rows to topics, plainly or in a transaction
    rows                columns, and stored batches as Arrow
    cluster             questions of the driver, and what tasks ask as
    options             what a query says
    errors              each in one line, which is what Spark shows
"""

from spark_ext.source import MilenaDataSource, check_write_stream, register
from spark_ext.streaming.lag import source_metrics

__all__ = ["MilenaDataSource", "check_write_stream", "register", "source_metrics"]
