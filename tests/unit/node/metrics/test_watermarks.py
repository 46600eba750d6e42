"""When a high watermark passed an offset: as exact as the notes are, never outside of them, and within its memory."""

from hypothesis import given
from hypothesis import strategies as st

from milena.model.types import MonotonicMs
from node.metrics.series import STEP_MS
from node.metrics.watermarks import NOTES_LEAST, SPAN_MS, Watermarks

KEY = ("t" * 32, 0)


def noted(
    offsets: list[int],
    *,
    epoch: int = 1,
    key: tuple[str, int] = KEY,
    into: Watermarks | None = None,
) -> Watermarks:
    """Watermarks with one note a step, the first at the time of one step."""
    watermarks = into or Watermarks()
    for number, offset in enumerate(offsets, 1):
        watermarks.note(key, epoch, offset, MonotonicMs(number * STEP_MS))
    return watermarks


@given(st.lists(st.integers(0, 50), min_size=1, max_size=400), st.integers(0, 2_000))
def test_an_offset_was_passed_between_the_two_notes_around_it(steps: list[int], offset: int):
    offsets, total = [], 0
    for grown in steps:
        total += grown
        offsets.append(total)
    passed_ms = noted(offsets).passed_ms(KEY, offset)
    end_ms = len(offsets) * STEP_MS
    at_or_below = [n * STEP_MS for n, seen in enumerate(offsets, 1) if seen <= offset]
    above = [n * STEP_MS for n, seen in enumerate(offsets, 1) if seen > offset]
    if not at_or_below:
        assert passed_ms is None
    elif not above:
        assert passed_ms == end_ms
    elif above[0] > end_ms - SPAN_MS:
        assert passed_ms is not None
        assert at_or_below[-1] <= passed_ms < above[0]
    else:
        # That was more than an hour ago: the notes may be gone.
        assert passed_ms is None or at_or_below[-1] <= passed_ms < above[0]


def test_between_two_notes_the_log_grew_evenly():
    watermarks = noted([0, 100])
    assert [watermarks.passed_ms(KEY, offset) for offset in (0, 25, 99)] == [10_000, 12_500, 19_900]


def test_a_log_that_rests_counts_until_its_last_look():
    watermarks = noted([0, 5, 5, 5, 10])
    assert watermarks.passed_ms(KEY, 5) == 40_000
    assert watermarks.note_count == 4


def test_another_epoch_knows_nothing_of_the_one_before():
    watermarks = noted([0, 100])
    watermarks.note(KEY, 2, 80, MonotonicMs(30_000))
    assert watermarks.passed_ms(KEY, 50) is None
    assert watermarks.passed_ms(KEY, 80) == 30_000


def test_partitions_that_are_led_no_more_are_forgotten():
    watermarks = noted([0, 100])
    noted([0, 7], key=("u" * 32, 3), into=watermarks)
    watermarks.keep({("u" * 32, 3)})
    assert watermarks.passed_ms(KEY, 50) is None
    assert watermarks.passed_ms(("u" * 32, 3), 5) is not None


def test_notes_of_a_whole_day_take_the_memory_of_an_hour():
    watermarks = noted([7 * number for number in range(24 * 360)])
    assert watermarks.note_count <= SPAN_MS // STEP_MS + 2
    assert watermarks.passed_ms(KEY, 7 * (24 * 360 - 359)) is not None


def test_many_partitions_keep_fewer_notes_over_the_same_hour(monkeypatch):
    monkeypatch.setattr("node.metrics.watermarks.NOTES_MAX", 1 << 14)
    watermarks, hour = Watermarks(), SPAN_MS // STEP_MS
    keys = [("t" * 32, number) for number in range(3 * (1 << 14) // hour)]
    for number in range(1, hour + 1):
        for key in keys:
            watermarks.note(key, 1, 10 * number, MonotonicMs(number * STEP_MS))
    assert watermarks.note_count <= 1 << 14
    found = watermarks.passed_ms(keys[0], 15)
    assert found is not None
    assert abs(found - 1.5 * STEP_MS) < 2 * STEP_MS
    assert len(keys) < (1 << 14) // NOTES_LEAST
