"""Let Spark find the data source: Spark imports packages named ``pyspark_...`` and registers their ``DefaultSource``.

So ``format("milena")`` works in every environment where the project is installed; see ``spark_ext``.
"""

from spark_ext.source import MilenaDataSource as DefaultSource

__all__ = ["DefaultSource"]
