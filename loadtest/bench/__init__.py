"""Measurements on real processes: contenders take turns; what stands here are programs and their tables."""
