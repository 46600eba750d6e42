"""Jobs for ``spark-submit`` or plain Python, built on the data source ``milena``."""
