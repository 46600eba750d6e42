"""Fixtures of unit tests."""

import tracemalloc
from contextlib import contextmanager

import pytest


@pytest.fixture
def peak_bytes():
    """How much more memory Python held at the worst moment of a block than before it."""

    @contextmanager
    def measured():
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            yield lambda: peak - before
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()

    return measured
