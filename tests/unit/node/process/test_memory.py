"""Freed memory goes back to the system, where somebody can tell how much there is of it."""

from pathlib import Path

import pytest

from node.process import memory
from tests.support.time.fake_clock import FakeClock


def resident_pages():
    return int(Path("/proc/self/statm").read_text().split()[1])


def test_freed_pages_are_given_back():
    # With every second block gone the heap cannot shrink at its end.
    blocks = [bytes([number % 256]) * 60_000 for number in range(2000)]
    del blocks[::2]
    before = resident_pages()
    memory.give_back()
    assert resident_pages() <= before
    assert len(blocks) == 1000


def test_where_nobody_can_tell_nothing_is_done(monkeypatch):
    monkeypatch.setattr(memory, "_glibc", lambda: None)
    assert memory.kept_bytes() == 0
    memory.give_back()


@pytest.fixture
def kept(monkeypatch):
    """What the heap keeps, in bytes; set ``kept[0]``."""
    kept = [memory.KEPT_BYTES_MAX + 1]
    monkeypatch.setattr(memory, "kept_bytes", lambda: kept[0])
    return kept


async def test_it_is_given_back_when_there_is_much_and_then_not_for_a_while(kept):
    clock = FakeClock()
    returns = memory.Returns(clock)
    assert returns.are_due()
    assert not returns.are_due()
    await clock.advance(memory.REST_MS - 1)
    assert not returns.are_due()
    await clock.advance(1)
    assert returns.are_due()


def test_little_is_kept(kept):
    kept[0] = memory.KEPT_BYTES_MAX
    assert not memory.Returns(FakeClock()).are_due()
