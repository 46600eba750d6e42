"""Placement: spread over racks, balanced over brokers, decided by the seed."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milena.model.errors import InvalidReplicationError, NotReadyError
from raft_meta.machine import commands as c
from raft_meta.machine.topics.placement import place, place_more
from tests.support.machine.images import TOPIC_ID, Cluster


def test_the_same_seed_gives_the_same_placement() -> None:
    image = Cluster([None] * 5).image
    assert place(image, 20, 3, Random(1)) == place(image, 20, 3, Random(1))
    assert place(image, 20, 3, Random(1)) != place(image, 20, 3, Random(2))


def test_too_few_brokers_are_refused_with_both_numbers() -> None:
    with pytest.raises(InvalidReplicationError, match=r"factor 3 .* nodes, 2"):
        place(Cluster([None, None]).image, 1, 3, Random(1))


@pytest.mark.parametrize(("partitions", "replicas"), [(0, 1), (1, 0)])
def test_counts_below_one_are_refused(partitions: int, replicas: int) -> None:
    with pytest.raises(InvalidReplicationError, match="at least 1"):
        place(Cluster([None]).image, partitions, replicas, Random(1))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 7), st.integers(1, 5), st.integers(1, 40), st.integers(0, 1000))
def test_leaders_and_replicas_are_balanced(
    brokers: int, replicas: int, partitions: int, seed: int
) -> None:
    image = Cluster([None] * brokers).image
    placement = place(image, partitions, min(replicas, brokers), Random(seed))
    leaders = Counter(row[0] for row in placement)
    held = Counter(broker for row in placement for broker in row)
    for counts, spread in ((leaders, 1), (held, 2)):
        values = [counts[broker] for broker in range(1, brokers + 1)]
        assert max(values) - min(values) <= spread
    assert all(len(set(row)) == len(row) for row in placement)


@pytest.mark.parametrize("replicas", [2, 3])
def test_replicas_are_spread_over_racks(replicas: int) -> None:
    racks = ["a", "a", "a", "b", "b", "c"]
    image = Cluster(racks).image
    for row in place(image, 60, replicas, Random(3)):
        assert len({racks[broker - 1] for broker in row}) == replicas


def test_more_replicas_than_racks_still_use_every_rack() -> None:
    racks = ["a", "a", "a", "b"]
    for row in place(Cluster(racks).image, 20, 3, Random(3)):
        assert {racks[broker - 1] for broker in row} == {"a", "b"}


def test_many_small_topics_are_balanced_too() -> None:
    cluster = Cluster([None] * 3)
    rng = Random(5)
    for number in range(30):
        placement = place(cluster.image, 1, 2, rng)
        cluster.create(placement, name=f"t{number}", topic_id=f"{number:032x}")
    leaders = Counter(partition.leader for partition in cluster.image.partitions.values())
    assert set(leaders.values()) == {10}


@pytest.mark.parametrize("racks", [[None] * 4, ["a", "a", "b", "c"]])
def test_a_draining_broker_is_taken_late_and_a_fenced_one_last(racks: list[str | None]) -> None:
    cluster = Cluster(racks)
    epochs = {b.broker_id: b.broker_epoch for b in cluster.image.brokers.values()}
    cluster.do(c.DrainBroker(controller_epoch=1, broker_id=4, broker_epoch=epochs[4], changes=()))
    assert {row[0] for row in place(cluster.image, 10, 1, Random(1))} == {1, 2, 3}
    assert all(4 not in row for row in place(cluster.image, 10, 3, Random(1)))
    assert all(row[3] == 4 for row in place(cluster.image, 10, 4, Random(1)))
    cluster.do(c.FenceBroker(controller_epoch=1, broker_id=3, broker_epoch=epochs[3], changes=()))
    for factor in (1, 2):
        assert all(set(row) <= {1, 2} for row in place(cluster.image, 10, factor, Random(1)))
    assert all(row[2] == 4 for row in place(cluster.image, 10, 3, Random(1)))
    assert all(row[2:] == (4, 3) for row in place(cluster.image, 10, 4, Random(1)))


def test_nobody_is_given_anything_while_nobody_is_alive() -> None:
    cluster = Cluster([None])
    epoch = cluster.image.brokers[1].broker_epoch
    cluster.do(c.FenceBroker(controller_epoch=1, broker_id=1, broker_epoch=epoch, changes=()))
    with pytest.raises(NotReadyError, match="No node is alive"):
        place(cluster.image, 1, 1, Random(1))


def test_what_brokers_hold_already_counts() -> None:
    cluster = Cluster([None] * 2)
    cluster.create(((1, 2), (1, 2), (1, 2)), topic_id=TOPIC_ID)
    assert place(cluster.image, 1, 1, Random(1)) == ((2,),)


def test_partitions_that_are_added_balance_those_that_are_there() -> None:
    cluster = Cluster(["a", "a", "b", "b", "c", "c"])
    cluster.create(((1, 3, 5), (3, 1, 5), (1, 5, 3)))
    topic = cluster.image.topics[TOPIC_ID]
    added = place_more(cluster.image, topic, 12, Random(4))
    assert len(added) == 9
    racks = {broker_id: (broker_id - 1) // 2 for broker_id in range(1, 7)}
    assert all(len({racks[broker] for broker in row}) == 3 for row in added)
    rows = [*((1, 3, 5), (3, 1, 5), (1, 5, 3)), *added]
    leaders = Counter(row[0] for row in rows)
    held = Counter(broker for row in rows for broker in row)
    assert set(leaders.values()) == {2}
    assert set(held.values()) == {6}


def test_what_is_added_while_a_broker_is_down_has_its_replica_last() -> None:
    cluster = Cluster([None] * 3)
    cluster.create(((1, 2, 3),))
    epoch = cluster.image.brokers[3].broker_epoch
    cluster.do(c.FenceBroker(controller_epoch=1, broker_id=3, broker_epoch=epoch, changes=()))
    [row] = place_more(cluster.image, cluster.image.topics[TOPIC_ID], 2, Random(1))
    assert (sorted(row), row[2]) == ([1, 2, 3], 3)
