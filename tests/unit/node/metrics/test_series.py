"""Numbers of the last hour: where they lie, what is forgotten, and that they stay within their bytes."""

import math

from hypothesis import given
from hypothesis import strategies as st

from node.metrics.series import POINTS, Ring, SeriesStore

TOPIC = "topic"


@given(
    st.dictionaries(st.integers(1, 3 * POINTS), st.integers(0, 1 << 20), min_size=1),
    st.integers(0, 2 * POINTS),
)
def test_a_ring_tells_the_hour_that_was_put_down_and_nothing_older(values, later):
    slots = sorted(values)
    ring = Ring(2, slots[0])
    for slot in slots:
        ring.put(slot, (values[slot], -values[slot]))
    end = slots[-1] + later
    hour = range(end - POINTS + 1, end + 1)
    kept = [values.get(slot, 0) for slot in hour]
    assert list(ring.column(0, end)) == kept
    assert list(ring.column(1, end)) == [-value for value in kept]


def test_what_was_not_put_down_is_what_the_reader_says():
    ring = Ring(1, 5, absent=math.nan)
    ring.put(5, (1,), absent=math.nan)
    ring.put(8, (2,), absent=math.nan)
    column = ring.column(0, 9, absent=math.nan)
    assert [str(value) for value in column[-5:]] == ["1.0", "nan", "nan", "2.0", "nan"]


def test_who_was_quiet_for_an_hour_is_forgotten():
    store = SeriesStore(1 << 20)
    store.put(1, (TOPIC, "a"), (1,))
    store.put(2, (TOPIC, "b"), (1,))
    store.begin(POINTS + 1)
    assert store.find((TOPIC, "a")) is None
    assert store.find((TOPIC, "b")) is not None
    store.begin(POINTS + 2)
    assert (len(store), store.size_bytes) == (0, 0)


def test_the_longest_quiet_make_room_and_the_busy_do_not():
    store = SeriesStore(4_000)
    store.put(1, (TOPIC, "quiet"), (1,))
    store.put(5, (TOPIC, "busy"), (1,))
    store.begin(6)
    store.put(6, (TOPIC, "new"), (1,))
    assert store.find((TOPIC, "quiet")) is None
    assert store.find((TOPIC, "busy")) is not None
    assert store.left_out == 0
    # Both that are there had traffic in this slot or the one before.
    store.put(6, (TOPIC, "one too many"), (1,))
    assert store.find((TOPIC, "one too many")) is None
    assert store.left_out == 1
    store.begin(7)
    assert store.left_out == 0
