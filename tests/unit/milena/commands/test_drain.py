"""Rules of ``milena drain``: which topics refuse writes without a node."""

import pytest

from milena.cluster.view import ClusterView, PartitionView, TopicView
from milena.commands.drain import refusing_topics


def view(replicas, isr, least):
    partition = PartitionView(
        partition=0, leader=isr[0], leader_epoch=0, replicas=replicas, isr=isr
    )
    configs = {} if least is None else {"min.insync.replicas": str(least)}
    topic = TopicView(name="t", partitions=(partition,), configs=configs)
    return ClusterView(cluster_id="c", version=1, controller_id=1, nodes=(), topics=(topic,))


@pytest.mark.parametrize(
    ("replicas", "isr", "least", "refuses"),
    [
        ((1, 2, 3), (1, 2, 3), None, False),
        ((1, 2, 3), (1, 2), None, True),
        ((1, 2, 3), (2, 3), None, False),
        ((1, 2, 3), (1,), None, False),
        ((1, 2, 3), (1, 2, 3), 3, True),
        ((1, 2, 3), (1, 2), 1, False),
        ((1, 2), (1, 2), None, False),
        ((1, 2), (1, 2), 2, True),
        ((1,), (1,), None, False),
    ],
)
def test_a_topic_refuses_writes_if_the_node_is_one_too_many(replicas, isr, least, refuses):
    assert refusing_topics(view(replicas, isr, least), 1) == (["t"] if refuses else [])
