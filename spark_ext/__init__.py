"""A Spark data source for Milena topics: ``spark.read.format("milena")``.

Spark calls ``source``. The packages behind it import only packages below them in this list:

    jobs                programs on the data source
    streaming           reads a topic as a stream: one batch query after the other
    reading   writing   plan and run a batch query; write rows to topics, plainly or in a transaction
    rows                columns, and stored batches as Arrow
    cluster             the driver's requests to the cluster, and the tasks' credentials
    options             the options of a query
    errors              errors of one line each, as Spark shows them
"""

from spark_ext.source import MilenaDataSource, check_write_stream, register
from spark_ext.streaming.lag import source_metrics

__all__ = ["MilenaDataSource", "check_write_stream", "register", "source_metrics"]
