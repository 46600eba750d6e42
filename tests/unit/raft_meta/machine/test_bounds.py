"""How much one node is given to carry: refused by the command's proposer, and by every node from level 2 on."""

from dataclasses import replace

import pytest

from milena.model.errors import (
    BrokerInUseError,
    BrokerNotFoundError,
    ConflictError,
    InvalidReplicationError,
    MilenaError,
    TooManyReplicasError,
)
from raft_meta.machine import bounds
from raft_meta.machine import commands as c
from tests.support.machine.images import TOPIC_ID, Cluster


def at_level(level: int, brokers: int = 3) -> Cluster:
    cluster = Cluster([None] * brokers)
    cluster.image = replace(cluster.image, feature_level=level)
    return cluster


def remove(cluster: Cluster, broker_id: int) -> MilenaError | None:
    return cluster.do(c.UnregisterBroker(broker_id=broker_id)).error


def test_one_request_creates_so_many_partitions() -> None:
    image = at_level(2).image
    bounds.check_new_replicas(image, ((1,),) * bounds.PARTITIONS_PER_REQUEST_MAX)
    with pytest.raises(InvalidReplicationError, match="at most 1000 partitions, not 1001"):
        bounds.check_new_replicas(image, ((1,),) * (bounds.PARTITIONS_PER_REQUEST_MAX + 1))


def test_a_broker_holds_so_many_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "REPLICAS_PER_BROKER_MAX", 3)
    cluster = at_level(2)
    assert cluster.create(((1, 2), (2, 3))).error is None
    assert cluster.create(((1, 3), (2, 1)), name="u", topic_id="2" * 32).error is None
    error = cluster.create(((2,),), name="v", topic_id="3" * 32).error
    assert isinstance(error, TooManyReplicasError)
    assert "Node 2 would hold 4 replicas" in error.message
    grow = c.AddPartitions(topic_id=TOPIC_ID, partition_count=2, placement=((3, 1),))
    assert isinstance(cluster.do(grow).error, TooManyReplicasError)
    assert cluster.create(((3,),), name="v", topic_id="3" * 32).error is None


def test_nodes_of_the_first_level_take_what_its_release_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a node that is upgraded first would have another image than the others."""
    monkeypatch.setattr(bounds, "REPLICAS_PER_BROKER_MAX", 1)
    monkeypatch.setattr(bounds, "PARTITIONS_PER_REQUEST_MAX", 1)
    cluster = at_level(1)
    assert cluster.create(((1,), (1,))).error is None
    grow = c.AddPartitions(topic_id=TOPIC_ID, partition_count=2, placement=((1,), (1,)))
    assert cluster.do(grow).error is None


class TestRemoval:
    def test_who_is_alive_or_holds_replicas_or_votes_stays(self) -> None:
        cluster = at_level(2, brokers=4)
        cluster.create(((4, 1),))
        assert isinstance(remove(cluster, 9), BrokerNotFoundError)
        error = remove(cluster, 4)
        assert isinstance(error, BrokerInUseError)
        assert "is alive" in error.message
        self.fence(cluster, 4)
        error = remove(cluster, 4)
        assert isinstance(error, BrokerInUseError)
        assert "still holds 1 replicas" in error.message
        self.fence(cluster, 3)
        error = remove(cluster, 3)
        assert isinstance(error, BrokerInUseError)
        assert "voter" in error.message
        cluster.do(c.DeleteTopic(topic_id=TOPIC_ID))
        assert remove(cluster, 4) is None
        assert set(cluster.image.brokers) == {1, 2, 3}

    def test_the_first_level_answers_in_its_own_words(self) -> None:
        cluster = at_level(1, brokers=4)
        error = remove(cluster, 4)
        assert type(error) is ConflictError
        assert error.message == "Broker 4 is alive: stop it first."

    @staticmethod
    def fence(cluster: Cluster, broker_id: int) -> None:
        epoch = cluster.image.brokers[broker_id].broker_epoch
        fence = c.FenceBroker(
            controller_epoch=1, broker_id=broker_id, broker_epoch=epoch, changes=()
        )
        assert cluster.do(fence).error is None
