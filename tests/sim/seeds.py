"""The seeds that tests run: a few arbitrary ones, and those that once found a fault."""

from pathlib import Path

import pytest


def seeds(count: int, *, quick: int) -> list[object]:
    """Return ``count`` seeds; those after the first ``quick`` run only in the second lane."""
    deep = pytest.mark.deep
    return [pytest.param(seed, marks=() if seed < quick else deep) for seed in range(count)]


def found(path: Path) -> list[object]:
    """Return the seeds in a file with one per line: the number, and the fault."""
    lines = path.read_text(encoding="utf-8").splitlines()
    parts = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    return [pytest.param(int(number), why, marks=pytest.mark.deep) for number, _, why in parts]
