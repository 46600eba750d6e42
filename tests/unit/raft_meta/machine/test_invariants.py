"""Each invariant of an image, broken by hand, is found."""

from dataclasses import replace

import pytest
from immutables import Map

from raft_meta.machine.image import Image, Partition, Producer, Proposer, Suspect
from raft_meta.machine.invariants import violations
from tests.support.machine_images import TOPIC_ID, Cluster

KEY = (TOPIC_ID, 0)


@pytest.fixture
def image() -> Image:
    cluster = Cluster([None] * 3)
    cluster.create(((1, 2, 3),))
    assert violations(cluster.image) == []
    return cluster.image


SUSPECT = Suspect(broker_id=2, last_epoch=0, log_end_offset=0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"isr": ()}, "isr is empty"),
        ({"isr": (2, 1)}, "isr is not made of replicas in their order"),
        ({"isr": (1, 9)}, "isr is not made of replicas in their order"),
        ({"leader": 9}, "leader 9 is not a live member of isr"),
        ({"isr": (2, 3)}, "leader 1 is not a live member of isr"),
        ({"eligible": (2,)}, "in sync and merely eligible at once"),
        ({"isr": (1, 2), "eligible": (3,)}, "eligible replicas although isr suffices"),
        ({"leader": None, "isr": (1,), "eligible": (3,)}, "there is no leader"),
        ({"suspects": (SUSPECT,)}, "in doubt stayed under a leader"),
        ({"leader": None, "isr": (1,), "suspects": (SUSPECT,)}, "suspect outside isr"),
        ({"leader": None, "suspects": (SUSPECT, SUSPECT)}, "suspects are not in order"),
        ({"leader": None, "damaged": (2,)}, "damaged member beside others"),
        ({"unclean_epoch": 1}, "unclean epoch from the future"),
    ],
)
def test_partitions(image: Image, changes: dict[str, object], sentence: str) -> None:
    partition: Partition = replace(image.partitions[KEY], **changes)
    broken = replace(image, partitions=image.partitions.set(KEY, partition))
    assert any(sentence in problem for problem in violations(broken)), violations(broken)


def test_a_fenced_leader(image: Image) -> None:
    broker = replace(image.brokers[1], is_fenced=True)
    broken = replace(image, brokers=image.brokers.set(1, broker))
    assert violations(broken) == ["t-0: leader 1 is not a live member of isr"]


def test_maps_that_do_not_match(image: Image) -> None:
    assert "topic names" in violations(replace(image, topic_ids=Map()))[0]
    assert "partitions do not" in violations(replace(image, partitions=Map()))[0]
    producer = Producer(producer_id=9, producer_epoch=0, name="p")
    problems = violations(replace(image, producers=Map({9: producer})))
    assert "producer names" in problems[0]
    assert "never allocated" in problems[1]


def test_numbers_from_nowhere(image: Image) -> None:
    proposer = Proposer(incarnation=1, floor=5, window=Map({5: b""}))
    assert "below its floor" in violations(replace(image, proposers=Map({7: proposer})))[0]
    assert "from the future" in violations(replace(image, index=1))[0]
