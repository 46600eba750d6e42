"""Bounds of REST consumers. What they do is in the golden scripts (``tests/scripts/machine/consumers*.txt``)."""

from dataclasses import replace

import pytest

from milena.model.errors import InvalidConsumerError, InvalidRequestError, LimitReachedError
from raft_meta.machine import commands as c
from raft_meta.machine.groups import group_rules
from raft_meta.machine.groups.consumers import counts_by_principal
from tests.support.machine.images import TOPIC_ID, GroupCluster, consumer_of


@pytest.fixture
def cluster() -> GroupCluster:
    return GroupCluster()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"instance": ""}, "consumer instance name must not be empty"),
        ({"instance": "a\tb"}, "control characters"),
        ({"format": ""}, "format must not be empty"),
        ({"auto_offset_reset": "x" * 256}, "auto.offset.reset has at most 255"),
        ({"topics": ("x" * 250,)}, "topic name has 1..249"),
        ({"pattern": ""}, "pattern has 1..1024"),
        ({"fetch_min_bytes": -2}, "its numbers are negative"),
        ({"request_timeout_ms": -2}, "its numbers are negative"),
        ({"assigned": ((TOPIC_ID, (1, 0)),)}, "not in canonical order"),
    ],
)
def test_a_consumer_within_bounds(
    cluster: GroupCluster, changes: dict[str, object], says: str
) -> None:
    error = cluster.put(replace(consumer_of("g", "i"), **changes)).error
    assert isinstance(error, InvalidConsumerError)
    assert says in error.message


def test_as_many_as_there_may_be(cluster: GroupCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_rules, "CONSUMERS_MAX", 2)
    for instance in ("i", "j"):
        assert cluster.put(consumer_of("g", instance)).error is None
    assert isinstance(cluster.put(consumer_of("g", "k")).error, LimitReachedError)
    present = cluster.image.consumers["g", "j"]
    assert cluster.put(replace(present, topics=("t",)), is_new=False).error is None


def test_one_named_twice(cluster: GroupCluster) -> None:
    cluster.put(consumer_of("g", "i"))
    name = c.ConsumerName(
        group_id="g",
        instance="i",
        created_index=cluster.image.consumers["g", "i"].created_index,
    )
    command = c.DeleteConsumers(consumers=(name, name), **cluster.proposer("g"))
    assert isinstance(cluster.do(command).error, InvalidRequestError)
    assert ("g", "i") in cluster.image.consumers


def test_they_are_counted_by_principal(cluster: GroupCluster) -> None:
    def counts() -> dict[str, int]:
        image = cluster.image
        assert image.consumer_counts == counts_by_principal(image.consumers.values())
        return dict(image.consumer_counts)

    for instance, principal in (("i", ""), ("j", "User:ann"), ("k", "User:ann")):
        assert cluster.put(replace(consumer_of("g", instance), principal=principal)).error is None
    assert counts() == {"": 1, "User:ann": 2}
    changed = replace(cluster.image.consumers["g", "j"], topics=("t",))
    assert cluster.put(changed, is_new=False).error is None
    assert counts() == {"": 1, "User:ann": 2}
    names = tuple(
        c.ConsumerName(group_id=group, instance=instance, created_index=consumer.created_index)
        for (group, instance), consumer in cluster.image.consumers.items()
        if instance != "k"
    )
    assert cluster.do(c.DeleteConsumers(consumers=names, **cluster.proposer("g"))).error is None
    assert counts() == {"User:ann": 1}
