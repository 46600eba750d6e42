"""Plans for whole clusters: even, spread over racks, with as few moved replicas as that takes; a drain leaves none."""

from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milena.model.errors import BrokerNotFoundError, InvalidReplicationError
from raft_meta.machine import commands as c
from raft_meta.machine.image import Image, PartitionKey
from raft_meta.machine.topics.rebalancing import PlannedMove, plan_drain, plan_rebalance
from tests.support.machine.images import TOPIC_ID, Cluster

Layout = dict[PartitionKey, tuple[int, ...]]


def layout_after(image: Image, plan: tuple[PlannedMove, ...]) -> Layout:
    layout = {key: state.replicas for key, state in image.partitions.items()}
    for move in plan:
        assert layout[move.topic_id, move.partition] == move.before != move.after
        assert len(set(move.after)) == len(move.after) == len(move.before)
        layout[move.topic_id, move.partition] = move.after
    return layout


def held(layout: Layout, brokers: range) -> list[int]:
    counts = Counter(replica for row in layout.values() for replica in row)
    return [counts[broker] for broker in brokers]


def led(layout: Layout, brokers: range) -> list[int]:
    counts = Counter(row[0] for row in layout.values())
    return [counts[broker] for broker in brokers]


def spread(counts: list[int]) -> int:
    return max(counts) - min(counts)


def crowding(racks: list[str | None], row: tuple[int, ...]) -> int:
    """Pairs of replicas in one rack."""
    counts = Counter(racks[broker - 1] for broker in row)
    return sum(count * (count - 1) // 2 for count in counts.values())


def random_cluster(seed: int, racks: list[str | None], *, used: int | None = None) -> Cluster:
    """Topics placed anyhow on the first ``used`` brokers."""
    rng = Random(seed)
    cluster = Cluster(racks)
    known = range(1, (used or len(racks)) + 1)
    for number in range(rng.randint(1, 4)):
        factor = rng.randint(1, min(3, len(known)))
        placement = tuple(tuple(rng.sample(known, factor)) for _ in range(rng.randint(1, 12)))
        cluster.create(placement, name=f"t{number}", topic_id=f"{number:032x}")
    return cluster


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 7))
def test_a_rebalance_is_even_and_moves_no_more_than_it_must(seed: int, count: int) -> None:
    image = random_cluster(seed, [None] * count).image
    plan = plan_rebalance(image)
    brokers = range(1, count + 1)
    before = {key: state.replicas for key, state in image.partitions.items()}
    after = layout_after(image, plan)
    assert spread(held(after, brokers)) <= 1
    # A broker may hold so many lonely replicas that it leads more than its share.
    assert spread(led(after, brokers)) <= (1 if all(len(row) > 1 for row in after.values()) else 3)
    # Whoever has more than its share gives that away, and nothing else moves.
    share, rest = divmod(sum(held(before, brokers)), count)
    ranked = sorted(held(before, brokers), reverse=True)
    least = sum(max(0, n - share - (at < rest)) for at, n in enumerate(ranked))
    assert sum(len(move.added) for move in plan) == least


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 1 << 32), st.lists(st.sampled_from("abc"), min_size=2, max_size=7))
def test_a_rebalance_spreads_partitions_over_racks(seed: int, racks: list[str]) -> None:
    image = random_cluster(seed, [*racks]).image
    for row in layout_after(image, plan_rebalance(image)).values():
        sizes = Counter(racks)
        ideal: list[int] = []
        while len(ideal) < len(row):
            rack = min(
                (rack for rack in sizes if sizes[rack] > ideal.count(ord(rack))),
                key=lambda rack: ideal.count(ord(rack)),
            )
            ideal.append(ord(rack))
        wanted = sum(n * (n - 1) // 2 for n in Counter(ideal).values())
        assert crowding([*racks], row) == wanted


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32), st.lists(st.sampled_from("ab"), min_size=4, max_size=7))
def test_what_is_even_stays(seed: int, racks: list[str]) -> None:
    cluster = random_cluster(seed, [*racks])
    for move in plan_rebalance(cluster.image):
        assert move.before != move.after
    image = moved(cluster, plan_rebalance(cluster.image))
    assert plan_rebalance(image) == ()


def moved(cluster: Cluster, plan: tuple[PlannedMove, ...]) -> Image:
    """The same cluster with the plan carried out."""
    other = Cluster([broker.rack for _, broker in sorted(cluster.image.brokers.items())])
    layout = layout_after(cluster.image, plan)
    for topic_id, topic in sorted(cluster.image.topics.items()):
        placement = tuple(layout[topic_id, number] for number in range(topic.partition_count))
        other.create(placement, name=topic.name, topic_id=topic_id)
    return other.image


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(4, 7), st.booleans())
def test_a_drain_leaves_nothing_and_touches_nothing_else(
    seed: int, count: int, is_dead: bool
) -> None:
    cluster = random_cluster(seed, [None] * count)
    if is_dead:
        epoch = cluster.image.brokers[2].broker_epoch
        cluster.do(c.FenceBroker(controller_epoch=1, broker_id=2, broker_epoch=epoch, changes=()))
    before = {key: state.replicas for key, state in cluster.image.partitions.items()}
    after = layout_after(cluster.image, plan_drain(cluster.image, 2))
    for key, row in after.items():
        assert 2 not in row
        if 2 not in before[key]:
            assert row == before[key]
        else:
            assert len({*row} - {*before[key]}) == 1


def test_a_drain_keeps_replicas_in_different_racks() -> None:
    racks: list[str | None] = ["a", "a", "b", "b", "c", "c"]
    cluster = Cluster(racks)
    cluster.create(((1, 3, 5),) * 6)
    after = layout_after(cluster.image, plan_drain(cluster.image, 3))
    assert all(4 in row for row in after.values())
    assert all(crowding(racks, row) == 0 for row in after.values())


def test_a_drain_spreads_what_the_broker_led() -> None:
    cluster = Cluster([None] * 4)
    cluster.create(((1, 2),) * 6)
    after = layout_after(cluster.image, plan_drain(cluster.image, 1))
    assert spread(held(after, range(2, 5))) <= 4
    assert spread(led(after, range(2, 5))) <= 1


def test_a_drain_that_no_broker_could_take_says_what_to_do() -> None:
    cluster = Cluster([None] * 3)
    cluster.create(((1, 2, 3),))
    with pytest.raises(InvalidReplicationError, match=r"partition 0 of topic 't'.*Add a node"):
        plan_drain(cluster.image, 3)
    with pytest.raises(BrokerNotFoundError):
        plan_drain(cluster.image, 9)


def test_new_brokers_get_their_share() -> None:
    cluster = Cluster([None] * 5)
    cluster.create(tuple((1 + n % 3, 1 + (n + 1) % 3, 1 + (n + 2) % 3) for n in range(10)))
    plan = plan_rebalance(cluster.image)
    after = layout_after(cluster.image, plan)
    assert held(after, range(1, 6)) == [6] * 5
    assert led(after, range(1, 6)) == [2] * 5
    assert sum(len(move.added) for move in plan) == 12


def test_brokers_that_are_dead_or_about_to_stop_neither_give_nor_take() -> None:
    cluster = Cluster([None] * 4)
    cluster.create(((1, 2),) * 8)
    epochs = {broker: cluster.image.brokers[broker].broker_epoch for broker in (1, 4)}
    cluster.do(c.FenceBroker(controller_epoch=1, broker_id=1, broker_epoch=epochs[1], changes=()))
    cluster.do(c.DrainBroker(controller_epoch=1, broker_id=4, broker_epoch=epochs[4], changes=()))
    after = layout_after(cluster.image, plan_rebalance(cluster.image))
    assert held(after, range(1, 5)) == [8, 4, 4, 0]


def test_a_partition_on_the_move_counts_as_arrived() -> None:
    cluster = Cluster([None] * 4, level=2)
    cluster.create(((1, 2), (1, 2)))
    target = c.TargetReplicas(
        topic_id=TOPIC_ID, partition=0, replicas=(3, 4), max_concurrent=0, throttle_bytes_per_s=0
    )
    cluster.do(c.ReassignPartitions(targets=(target,)))
    assert plan_rebalance(cluster.image) == ()
    [move] = plan_drain(cluster.image, 4)
    assert (move.before, move.after[0]) == ((3, 4), 3)


def test_equal_images_give_equal_plans() -> None:
    plans = [plan_rebalance(random_cluster(5, ["a", "b", "b", None]).image) for _ in range(2)]
    assert all(one == other for one, other in pairwise(plans))
    assert plans[0]
