"""Arithmetic of partition sets, against Python's own sets."""

from hypothesis import given
from hypothesis import strategies as st

from raft_meta.machine.topics import partition_sets as sets

KEYS = st.frozensets(st.tuples(st.sampled_from("abc"), st.integers(0, 4)))


@given(KEYS, KEYS)
def test_it_is_what_sets_do(left, right):
    one, other = sets.of(left), sets.of(sorted(right, reverse=True))
    assert sets.is_canonical(one)
    assert set(sets.keys_of(one)) == left
    assert sets.union(one, other) == sets.of(left | right)
    assert sets.intersection(one, other) == sets.of(left & right)
    assert sets.difference(one, other) == sets.of(left - right)
    assert sets.is_subset(one, other) == (left <= right)
    assert sets.without_topic(one, "a") == sets.of(key for key in left if key[0] != "a")


def test_keys_come_in_ascending_order():
    assert list(sets.keys_of(sets.of([("b", 1), ("a", 2), ("a", 0)]))) == [
        ("a", 0),
        ("a", 2),
        ("b", 1),
    ]


def test_union_of_many_and_of_none():
    assert sets.union() == sets.EMPTY
    assert sets.union((("a", (1,)),), (), (("a", (0,)),)) == (("a", (0, 1)),)


def test_what_is_not_canonical():
    for wrong in (
        (("b", (0,)), ("a", (0,))),
        (("a", (0,)), ("a", (1,))),
        (("a", ()),),
        (("a", (1, 0)),),
        (("a", (0, 0)),),
        (("a", (-1,)),),
    ):
        assert not sets.is_canonical(wrong)


def test_a_set_without_the_topic_stays_the_same_object():
    one = (("a", (0,)),)
    assert sets.without_topic(one, "b") is one
