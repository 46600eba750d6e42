"""Spark reads and writes Milena topics: ``spark.read.format("milena")``."""

from spark_ext.source import MilenaDataSource, check_write_stream, register

__all__ = ["MilenaDataSource", "check_write_stream", "register"]
