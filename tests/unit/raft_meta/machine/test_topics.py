"""Topics: names as in Kafka, and bounds that scripts would only blow up."""

import pytest

from milena.model.errors import InvalidReplicationError, InvalidTopicNameError
from raft_meta.machine import codec
from raft_meta.machine import commands as c
from raft_meta.machine.topics import topics
from tests.support.machine.images import TOPIC_ID, Cluster


@pytest.mark.parametrize("name", ["a", "A-Z_0.9", "x" * 249, "...", "__internal"])
def test_names_that_kafka_takes(name: str) -> None:
    topics.check_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "é", "a\n", "٣", "a:b"])
def test_names_that_kafka_refuses(name: str) -> None:
    with pytest.raises(InvalidTopicNameError):
        topics.check_name(name)


def test_a_name_that_collides_is_named() -> None:
    cluster = Cluster([None])
    cluster.create(((1,),), name="a.b_c")
    with pytest.raises(InvalidTopicNameError, match=r"'a_b\.c' collides with existing topic"):
        topics.check_new_name(cluster.image, "a_b.c")
    topics.check_new_name(cluster.image, "a_bc")


@pytest.mark.parametrize("placement", [(), ((),), ((1,),) * (topics.PARTITIONS_MAX + 1)])
def test_a_topic_has_some_partitions_and_not_too_many(placement: tuple[tuple[int, ...]]) -> None:
    with pytest.raises(InvalidReplicationError):
        topics.check_placement(Cluster([None]).image, placement)


def test_a_topic_does_not_grow_past_its_bound() -> None:
    cluster = Cluster([None])
    cluster.create(((1,),) * topics.PARTITIONS_MAX)
    grow = c.AddPartitions(
        topic_id=TOPIC_ID, partition_count=topics.PARTITIONS_MAX, placement=((1,),)
    )
    assert isinstance(cluster.do(grow).error, InvalidReplicationError)


def test_the_largest_creation_fits_a_command() -> None:
    """A command is at most 1 MiB."""
    cluster = Cluster([None] * 5)
    command = c.CreateTopic(
        topic_id=TOPIC_ID,
        name="t" * 249,
        configs=(),
        placement=((100_000, 100_001, 100_002, 100_003, 100_004),) * topics.PARTITIONS_MAX,
    )
    assert len(codec.encode_envelope(cluster.envelope(command))) < 1 << 20
