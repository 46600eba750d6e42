"""How much free memory a turn may find touched: never so much that somebody is killed for it."""

import pytest

from loadtest.bench.measuring import resident
from loadtest.bench.measuring.resident import available_bytes, make_resident


@pytest.mark.parametrize(
    ("limit", "used", "available"),
    [
        (None, None, 3 << 30),
        ("max", "4096", 3 << 30),
        (str(2 << 30), str(1 << 30), 1 << 30),
        (str(8 << 30), str(1 << 30), 3 << 30),
        (str(1 << 30), str(2 << 30), 0),
    ],
)
def test_available_is_what_the_machine_has_and_the_container_may_take(
    tmp_path, limit, used, available
):
    memory = tmp_path / "meminfo"
    memory.write_text("MemTotal: 25000000 kB\nMemFree: 100 kB\nMemAvailable:    3145728 kB\n")
    for name, text in (("memory.max", limit), ("memory.current", used)):
        if text is not None:
            (tmp_path / name).write_text(f"{text}\n")
    found = available_bytes(
        memory=memory, limit=tmp_path / "memory.max", used=tmp_path / "memory.current"
    )
    assert found == available


def test_where_nobody_can_tell_nothing_is_taken(tmp_path):
    assert available_bytes(memory=tmp_path / "none") == 0


def test_a_quarter_of_what_is_available_is_touched_at_most(monkeypatch):
    monkeypatch.setattr(resident, "available_bytes", lambda: 4 << 20)
    assert make_resident(64 << 20) == 1 << 20
    assert make_resident(8 << 10) == 8 << 10
    assert make_resident(0) == 0
