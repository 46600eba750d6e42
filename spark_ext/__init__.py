"""Spark reads and writes Milena topics: ``spark.read.format("milena")``."""

from spark_ext.source import MilenaDataSource, register

__all__ = ["MilenaDataSource", "register"]
