"""Measurements of one part each, on real processes; every module is a program."""
