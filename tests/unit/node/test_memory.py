"""Freed memory goes back to the system, where somebody can tell how much there is of it."""

from pathlib import Path

from node import memory


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
