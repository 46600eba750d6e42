"""Which partition a record goes to."""

import pytest

from milena.cluster.view import PartitionView, TopicView
from milena.errors import BadRecordError
from milena.model.partitioner import murmur2
from milena.producing.batching import Lane
from milena.producing.partitioner import (
    Topology,
    available_partitions,
    choose,
    key_partition,
    next_in_turn,
)
from milena.producing.placement import TopicPlacement

KAFKA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""From the tests of Kafka's org.apache.kafka.common.utils.Utils.murmur2."""


@pytest.mark.parametrize(("key", "hashed"), KAFKA_VECTORS.items())
def test_keys_go_where_kafka_puts_them(key, hashed):
    assert murmur2(key) == hashed & 0xFFFFFFFF
    for count in (1, 3, 6, 100):
        assert key_partition(key, count) == (hashed & 0x7FFFFFFF) % count


def topic(*leaders):
    partitions = tuple(
        PartitionView(partition=p, leader=leader, leader_epoch=0, replicas=(1,), isr=(1,))
        for p, leader in enumerate(leaders)
    )
    return TopicView(name="t", partitions=partitions)


def placement(view, previous=None, partitioner=None):
    return TopicPlacement(
        Topology(topic=view, nodes=()),
        lambda p: Lane("t", p),
        partitioner=partitioner,
        previous=previous,
    )


def test_turns_go_round_and_leave_out_partitions_without_a_leader():
    assert available_partitions(topic(1, None, 2)) == (0, 2)
    turns = placement(topic(1, None, 2))
    assert [turns.sticky.partition, *(turns.advance().partition for _ in range(3))] == [0, 2, 0, 2]


def test_when_none_has_a_leader_any_may_get_one():
    assert available_partitions(topic(None, None)) == (0, 1)


def test_the_turn_goes_on_when_the_topic_changes():
    before = placement(topic(1, 1, 1))
    before.advance()
    after = placement(topic(1, 1, 1, 1), previous=before)
    assert (before.sticky.partition, after.sticky.partition) == (1, 2)


@pytest.mark.parametrize(("last", "following"), [(-1, 0), (0, 2), (1, 2), (2, 5), (5, 0), (9, 0)])
def test_the_next_in_turn_comes_after_the_last(last, following):
    assert next_in_turn((0, 2, 5), last) == following


def test_a_rule_of_ones_own_is_checked():
    topology = Topology(topic=topic(1, 1), nodes=())
    assert choose(lambda key, value, t: t.partition_count - 1, b"k", b"v", topology) == 1
    for rule in (lambda *_: 2, lambda *_: -1, lambda *_: "0", lambda *_: None):
        with pytest.raises(BadRecordError, match="partitions 0 to 1"):
            choose(rule, None, None, topology)
    with pytest.raises(BadRecordError, match="failed"):
        choose(lambda: 0, None, None, topology)


def test_a_key_decides_unless_there_is_a_rule():
    keyed = placement(topic(1, 1, 1))
    assert keyed.partition_for(b"foobar", b"v") == key_partition(b"foobar", 3)
    assert keyed.partition_for(None, b"v") is None
    ruled = placement(topic(1, 1, 1), partitioner=lambda *_: 2)
    assert ruled.partition_for(b"foobar", b"v") == ruled.partition_for(None, None) == 2
    with pytest.raises(BadRecordError, match="partitions 0 to 2, not 3"):
        keyed.lane(3)
