"""Each invariant of an image, broken by hand, is found."""

from dataclasses import replace

import pytest
from immutables import Map

from raft_meta.machine.image import (
    AllocatedProducer,
    Ending,
    Group,
    GroupMember,
    Image,
    Partition,
    Proposer,
    RestConsumer,
    Suspect,
)
from raft_meta.machine.invariants import violations
from tests.support.machine.group_scripts import member
from tests.support.machine.images import (
    TOPIC_ID,
    Cluster,
    GroupCluster,
    TransactionCluster,
    commit_of,
    committed,
    consumer_of,
    extent_of,
)

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
    producer = AllocatedProducer(producer_id=9, producer_epoch=0, name="p")
    problems = violations(replace(image, producers=Map({9: producer})))
    assert "producer names" in problems[0]
    assert "never allocated" in problems[1]


def test_numbers_from_nowhere(image: Image) -> None:
    proposer = Proposer(incarnation=1, floor=5, window=Map({5: b""}))
    assert "below its floor" in violations(replace(image, proposers=Map({7: proposer})))[0]
    assert "from the future" in violations(replace(image, index=1))[0]


HELD = ((TOPIC_ID, (0,)),)


@pytest.fixture
def grouped() -> Image:
    cluster = GroupCluster()
    cluster.alter("g", 1, [member("a", 1, HELD, HELD), member("b", 1)])
    cluster.commit(commit_of("g", {0: 5}, member_id="a", member_epoch=1))
    cluster.put(replace(consumer_of("g", "i"), assigned=HELD))
    assert violations(cluster.image) == []
    return cluster.image


def with_group(image: Image, **changes: object) -> Image:
    group: Group = replace(image.groups["g"], **changes)
    return replace(image, groups=image.groups.set("g", group))


def with_member(image: Image, **changes: object) -> Image:
    first, second = image.groups["g"].members
    changed: GroupMember = replace(second, **changes)
    return with_group(image, members=(first, changed))


def found(image: Image, sentence: str) -> bool:
    return any(sentence in problem for problem in violations(image))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"held": HELD, "target": ()}, "is held by two members"),
        ({"held": (), "target": HELD}, "is the target of two members"),
        ({"held": ((TOPIC_ID, (1,)),)}, "holds what is not its target there"),
        ({"member_epoch": 2}, "epoch 2 is outside 1..1"),
        ({"member_epoch": 0}, "epoch 0 is outside 1..1"),
        ({"member_id": "a"}, "not in ascending order of distinct ids"),
        ({"target": ((TOPIC_ID, (3, 2)),)}, "its target is not in canonical order"),
        ({"held": ((TOPIC_ID, ()),)}, "what it holds is not in canonical order"),
        ({"topics": ("b", "a")}, "its topics are not in ascending order"),
        ({"target": ((TOPIC_ID, (4,)),)}, "names t-4, which is not there"),
        ({"target": (("f" * 32, (0,)),)}, "names topic id ffff"),
    ],
)
def test_members(grouped: Image, changes: dict[str, object], sentence: str) -> None:
    broken = with_member(grouped, **changes)
    assert found(broken, sentence), violations(broken)


def test_two_members_of_one_instance(grouped: Image) -> None:
    first, second = grouped.groups["g"].members
    members = (replace(first, instance_id="i"), replace(second, instance_id="i"))
    assert found(with_group(grouped, members=members), "two members have one instance id")


def test_groups(grouped: Image) -> None:
    assert found(with_group(grouped, version=99), "version from the future")
    assert found(with_group(grouped, emptied_ms=1), "lost its members at a wrong time")
    empty = with_group(grouped, members=(), emptied_ms=grouped.now_ms + 1)
    assert found(empty, "lost its members at a wrong time")
    assert found(replace(grouped, feature_level=2), "below the feature level")


def test_offsets(grouped: Image) -> None:
    assert found(replace(grouped, offset_count=2), "the count of committed offsets")
    assert found(replace(grouped, groups=Map()), "offsets of group g, which is not there")
    assert found(replace(grouped, offsets=Map({"g": Map()})), "or none of them")
    committed = grouped.offsets["g"][KEY]
    for wrong in (replace(committed, offset=-1), replace(committed, commit_ms=1 << 60)):
        broken = replace(grouped, offsets=Map({"g": Map({KEY: wrong})}))
        assert found(broken, "that no client can have committed")
    broken = replace(grouped, offsets=Map({"g": Map({(TOPIC_ID, 9): committed})}))
    assert found(broken, "has an offset in")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"created_index": 99}, "comes from the future"),
        ({"pattern": "t"}, "more than one of topics, a pattern and assigned partitions"),
        ({"assigned": ((TOPIC_ID, (4,)),)}, "names t-4, which is not there"),
        ({"assigned": ((TOPIC_ID, ()),)}, "not in canonical order"),
    ],
)
def test_consumers(grouped: Image, changes: dict[str, object], sentence: str) -> None:
    consumer: RestConsumer = replace(grouped.consumers["g", "i"], **changes)
    broken = replace(grouped, consumers=Map({("g", "i"): consumer}))
    assert found(broken, sentence), violations(broken)


def test_the_counts_of_consumers(grouped: Image) -> None:
    broken = replace(grouped, consumer_counts=Map({"": 7}))
    assert violations(broken) == ["the counts of REST consumers are wrong"]


@pytest.fixture
def ended() -> Image:
    cluster = TransactionCluster()
    cluster.end(committed(cluster.begin("app"), {0: 9, 1: 5}, is_keyed=True))
    assert violations(cluster.image) == []
    return cluster.image


def test_transactions_are_counted_and_none_is_nowhere(ended: Image) -> None:
    assert found(replace(ended, ending_count=1), "the count of transactions that end")
    endings = ended.ending[KEY]
    gone = replace(ended, ending=Map({(TOPIC_ID, 4): endings}), ending_count=1)
    assert found(gone, "which is not there")
    empty = replace(ended, ending=Map({KEY: Map()}), ending_count=0)
    assert found(empty, "or none of them")


@pytest.mark.parametrize(
    ("transaction", "ending", "sentence"),
    [
        ((1, 1), Ending(end_offset=9), "its producer is still at epoch 1"),
        ((2, 0), Ending(end_offset=9), "it never started"),
        ((0, 0), Ending(end_offset=9), "it never started"),
        ((1, -1), Ending(end_offset=9), "it never started"),
        ((1, 0), Ending(end_offset=0), "it wrote nothing"),
        ((1, 0), Ending(end_offset=9, extents=(extent_of(1, 9),)), "it wrote elsewhere alone"),
    ],
)
def test_transactions_that_end(
    ended: Image, transaction: tuple[int, int], ending: Ending, sentence: str
) -> None:
    broken = replace(ended, ending=Map({KEY: Map({transaction: ending})}), ending_count=1)
    assert found(broken, sentence), violations(broken)


def test_an_ending_outlives_its_producer(ended: Image) -> None:
    assert violations(replace(ended, producers=Map(), producer_names=Map())) == []


@pytest.mark.parametrize("changes", [{"last": "taken"}, {"producer_epoch": 0, "last": "aborted"}])
def test_how_the_last_transaction_of_a_producer_ended(
    ended: Image, changes: dict[str, object]
) -> None:
    producer: AllocatedProducer = replace(ended.producers[1], **changes)
    broken = replace(ended, producers=Map({1: producer}), ending=Map(), ending_count=0)
    assert found(broken, "producer 1 has no epoch that ended so")


def test_transactions_below_the_level_that_knows_them(ended: Image) -> None:
    below = "transactions below the feature level"
    assert found(replace(ended, feature_level=5), below)
    assert found(replace(ended, feature_level=5, ending=Map(), ending_count=0), below)
