"""The seeds that tests run: a few of any, and those that found something once."""

from pathlib import Path

import pytest


def seeds(count: int, *, quick: int) -> list[object]:
    """So many of them; those after the first few are for the second lane."""
    deep = pytest.mark.deep
    return [pytest.param(seed, marks=() if seed < quick else deep) for seed in range(count)]


def found(path: Path) -> list[object]:
    """Those of a file, a line each: the number, then what it found."""
    lines = path.read_text(encoding="utf-8").splitlines()
    parts = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    return [pytest.param(int(number), why, marks=pytest.mark.deep) for number, _, why in parts]
