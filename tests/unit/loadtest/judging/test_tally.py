"""The tally tells exactly what was lost, doubled, invented, reordered or misplaced."""

import pytest

from loadtest.judging.tally import Tally

WRITTEN = [(b"a", b"1"), (b"a", b"2"), (b"b", b"1"), (None, b"x"), (None, b"x")]


def judge(reads):
    tally = Tally()
    for key, value in WRITTEN:
        tally.wrote(key, value)
    for read in reads:
        tally.read(*read)
    return tally.verdict()


GOOD = [
    (0, 0, b"a", b"1"),
    (0, 1, b"a", b"2"),
    (1, 0, None, b"x"),
    (1, 1, b"b", b"1"),
    (0, 2, None, b"x"),
]


def test_everything_once_and_in_order_is_good():
    verdict = judge(GOOD)
    assert verdict.is_good
    assert (verdict.written, verdict.read) == (5, 5)
    assert list(verdict.problems()) == []


@pytest.mark.parametrize(
    ("reads", "found"),
    [
        (GOOD[:4], {"missing": 1}),
        ([*GOOD, (1, 2, b"b", b"1")], {"doubled": 1}),
        ([*GOOD, (1, 2, None, b"x")], {"doubled": 1}),
        ([*GOOD, (1, 2, b"b", b"9")], {"foreign": 1}),
        ([*GOOD, (1, 2, b"c", b"1")], {"foreign": 1}),
        ([(0, 0, b"a", b"2"), (0, 1, b"a", b"1"), *GOOD[2:]], {"keys_out_of_order": 1}),
        ([GOOD[0], (1, 0, b"a", b"2"), (1, 1, None, b"x"), (1, 2, b"b", b"1"), (0, 1, None, b"x")],
         {"keys_in_two_partitions": 1}),
        ([*GOOD[:4], (0, 3, None, b"x")], {"offset_gaps": 1}),
        ([*GOOD[:4], (0, 1, None, b"x")], {"offset_gaps": 1}),
        ([*GOOD[:3], (1, 1, b"b", b"damaged"), GOOD[4]], {"missing": 1, "foreign": 1}),
    ],
)  # fmt: skip
def test_each_fault_is_counted_as_itself(reads, found):
    verdict = judge(reads)
    assert not verdict.is_good
    names = ("missing", "doubled", "foreign", "keys_out_of_order", "keys_in_two_partitions",
             "offset_gaps")  # fmt: skip
    assert {n: getattr(verdict, n) for n in names if getattr(verdict, n)} == found
    assert len(list(verdict.problems())) == len(found)


def test_keyless_records_have_no_order():
    tally = Tally()
    for value in "xyz":
        tally.wrote(None, value)
    for offset, value in enumerate("zyx"):
        tally.read(0, offset, None, value)
    assert tally.verdict().is_good


def test_nothing_read_back_is_all_missing():
    assert judge([]).missing == 5
