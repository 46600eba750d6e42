"""What Spark finds by itself: it imports packages named ``pyspark_...`` and registers their ``DefaultSource``.

So ``format("milena")`` works wherever the project is installed; see ``spark_ext``.
"""

from spark_ext.source import MilenaDataSource as DefaultSource

__all__ = ["DefaultSource"]
