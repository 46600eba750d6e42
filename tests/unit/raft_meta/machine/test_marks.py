"""Marks: what is compared with what, and what never is."""

from dataclasses import replace

import pytest

from milena.model.errors import CorruptLogError
from raft_meta.machine import codec
from raft_meta.machine import commands as c
from raft_meta.machine.image import Image
from raft_meta.machine.marks import ImageMarks
from tests.support.machine.images import Cluster

FIRST = c.CheckImage(index=0, image_hash=b"")


def check_of(image: Image) -> c.CheckImage:
    return c.CheckImage(index=image.index, image_hash=codec.image_hash(image))


def marked() -> tuple[Cluster, ImageMarks]:
    """A cluster, and the marks of a node of it after a first check."""
    cluster, marks = Cluster(), ImageMarks()
    assert marks.take(FIRST, cluster.do(FIRST).image) is None
    return cluster, marks


def test_a_check_is_of_the_image_right_after_the_one_before() -> None:
    cluster, marks = marked()
    at_mark = cluster.image
    assert marks.last is at_mark
    for _ in range(3):
        cluster.do(c.AllocateProducer(name=None))
    check = check_of(at_mark)
    comparison = marks.take(check, cluster.do(check).image)
    assert comparison is not None
    assert comparison.image is at_mark
    comparison.judge(codec.image_hash(at_mark))
    assert marks.last is cluster.image


def test_another_image_at_the_mark_stops_the_node_and_says_what_differs() -> None:
    cluster, marks = marked()
    mark = cluster.image
    marks.last = replace(mark, next_producer_id=mark.next_producer_id + 1)
    comparison = marks.take(check_of(mark), cluster.do(check_of(mark)).image)
    assert comparison is not None
    own, theirs = codec.image_hash(comparison.image), codec.image_hash(mark)
    with pytest.raises(CorruptLogError) as raised:
        comparison.judge(own)
    for word in (f"index {mark.index} ", own.hex(), theirs.hex()):
        assert word in str(raised.value)


@pytest.mark.parametrize("distance", [-1, 1])
def test_a_check_of_another_index_is_a_mark_and_proves_nothing(distance: int) -> None:
    cluster, marks = marked()
    other = c.CheckImage(index=cluster.image.index + distance, image_hash=b"anything")
    assert marks.take(other, cluster.do(other).image) is None
    assert marks.last is cluster.image


def test_a_node_that_came_by_a_snapshot_compares_nothing_until_the_next_mark() -> None:
    cluster, marks = marked()
    mark = cluster.image
    marks.forget()
    wrong = c.CheckImage(index=mark.index, image_hash=b"another")
    assert marks.take(wrong, cluster.do(wrong).image) is None
    check = check_of(cluster.image)
    assert marks.take(check, cluster.do(check).image) is not None


def test_the_release_before_understands_what_it_judges() -> None:
    """It compares where no command came in between, with the image before the check: there it is that of the mark."""
    cluster, marks = marked()
    assert marks.last is not None
    check = check_of(marks.last)
    assert check.index == cluster.image.index
    assert check.image_hash == codec.image_hash(cluster.image)
    assert FIRST.index < Cluster().image.index
