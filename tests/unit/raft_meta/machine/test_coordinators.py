"""The coordinator of a group follows from the image, and moves only when its broker comes or goes."""

from dataclasses import replace

import pytest
from immutables import Map

from milena.model.errors import NotCoordinatorError, StaleBrokerEpochError
from raft_meta.machine import codec, invariants
from raft_meta.machine import commands as c
from raft_meta.machine.groups.coordinators import check_coordinator, coordinator_of
from raft_meta.machine.image import Broker, Image
from tests.support.machine.images import TOPIC_ID, GroupCluster, commit_of, consumer_of, register

PINNED = [3, 2, 3, 2, 2, 2, 3, 2, 3, 2, 1, 1]
GROUPS = [f"group-{n}" for n in range(300)]


def broker(broker_id, **changes):
    made = Broker(
        broker_id=broker_id,
        broker_epoch=100 + broker_id,
        directory_id="",
        incarnation=1,
        api_url="",
        peer_host="",
        peer_port=1,
        rack=None,
        is_fenced=False,
        is_draining=False,
        feature_min=1,
        feature_max=3,
    )
    return replace(made, **changes)


def image_of(*brokers):
    return Image(brokers=Map({b.broker_id: b for b in brokers}))


def test_no_broker_no_coordinator():
    assert coordinator_of(Image(), "g") is None
    assert coordinator_of(image_of(broker(1, is_fenced=True)), "g") is None
    assert coordinator_of(image_of(broker(1, is_draining=True)), "g") is None


def test_groups_are_spread_over_all_brokers():
    image = image_of(broker(1), broker(2), broker(3))
    found = [coordinator_of(image, group) for group in GROUPS]
    assert all(found.count(broker_id) > 60 for broker_id in (1, 2, 3))


@pytest.mark.parametrize("gone", [{"is_fenced": True}, {"is_draining": True}])
def test_only_the_groups_of_a_broker_that_goes_move(gone):
    before = image_of(broker(1), broker(2), broker(3))
    after = image_of(broker(1), broker(2, **gone), broker(3))
    for group in GROUPS:
        former, present = coordinator_of(before, group), coordinator_of(after, group)
        assert present in (1, 3)
        if former != 2:
            assert present == former


def test_the_choice_is_the_same_in_every_release():
    """Nodes of different releases must agree, so that the hash can never change."""
    image = image_of(broker(1), broker(2), broker(3))
    assert [coordinator_of(image, f"g{n}") for n in range(12)] == PINNED


def test_others_are_refused():
    image = image_of(broker(1), broker(2), broker(3))
    coordinator = coordinator_of(image, "g")
    for broker_id in (1, 2, 3):
        if broker_id == coordinator:
            check_coordinator(image, "g", broker_id, 100 + broker_id)
        else:
            with pytest.raises(NotCoordinatorError, match=f"node {coordinator} does"):
                check_coordinator(image, "g", broker_id, 100 + broker_id)
    with pytest.raises(StaleBrokerEpochError):
        check_coordinator(image, "g", coordinator, 99)
    with pytest.raises(StaleBrokerEpochError):
        check_coordinator(image, "g", 4, 104)


def fence(cluster, broker_id):
    broker = cluster.image.brokers[broker_id]
    command = c.FenceBroker(
        controller_epoch=cluster.image.controller_epoch,
        broker_id=broker_id,
        broker_epoch=broker.broker_epoch,
        changes=(),
    )
    assert cluster.do(command).error is None


def away_and_back(cluster):
    """The group's coordinator is fenced for a while, and keeps its epoch."""
    coordinator = coordinator_of(cluster.image, "g")
    fence(cluster, coordinator)
    assert coordinator_of(cluster.image, "g") != coordinator
    cluster.unfence(coordinator)
    assert coordinator_of(cluster.image, "g") == coordinator


def another_for_a_while(cluster):
    """The group's coordinator is not fenced: a new broker takes the group over, and goes."""
    coordinator = coordinator_of(cluster.image, "g")
    new = next(
        number
        for number in range(4, 100)
        if coordinator_of(Image(brokers=cluster.image.brokers.set(number, broker(number))), "g")
        == number
    )
    cluster.do(register(new))
    cluster.unfence(new)
    assert coordinator_of(cluster.image, "g") == new
    fence(cluster, new)
    assert coordinator_of(cluster.image, "g") == coordinator


def commands_of(cluster):
    """Commands that could undo what a later coordinator has acknowledged, as the present one proposes them."""
    by = cluster.versioned_proposer("g")
    changed = replace(cluster.image.consumers["g", "i"], topics=("t",))
    commit = replace(commit_of("g", {0: 5}), coordinators_version=by["coordinators_version"])
    return (
        c.CommitOffsets(commits=(commit,), **cluster.proposer("g")),
        c.DeleteGroup(group_id="g", **by),
        c.PutConsumer(is_new=False, consumer=changed, **by),
        c.DeleteOffsets(group_id="g", partitions=((TOPIC_ID, 0),), **by),
    )


def outcome(cluster, command):
    applied = cluster.do(command)
    if isinstance(command, c.CommitOffsets) and applied.error is None:
        (code,) = codec.decode_response(applied.response)
        return code
    return "" if applied.error is None else applied.error.code


@pytest.mark.parametrize("move", [away_and_back, another_for_a_while])
@pytest.mark.parametrize(
    ("number", "level", "wanted"),
    [(n, 11, "") for n in range(3)] + [(n, 12, NotCoordinatorError.code) for n in range(4)],
)
def test_a_late_command_undoes_nothing_of_a_coordinator_in_between(move, number, level, wanted):
    """Below level 12 the image cannot know that there was one."""
    cluster = GroupCluster(level=level)
    cluster.commit(commit_of("g", {0: 1}))
    cluster.put(consumer_of("g", "i"))
    late = commands_of(cluster)[number]
    move(cluster)
    cluster.commit(commit_of("g", {0: 9}))
    before = cluster.image
    assert outcome(cluster, late) == wanted
    if wanted:
        assert (cluster.image.offsets, cluster.image.groups) == (before.offsets, before.groups)
        assert cluster.image.consumers == before.consumers
        assert outcome(cluster, commands_of(cluster)[number]) == ""
    assert invariants.violations(cluster.image) == []


def test_the_version_changes_only_with_the_set_of_coordinators():
    cluster = GroupCluster(level=12)
    versions = [cluster.image.coordinators_version]

    def note():
        versions.append(cluster.image.coordinators_version)

    cluster.do(c.SetKafkaAddresses(**of_broker(cluster, 1), addresses=()))
    note()
    fence(cluster, 2)
    note()
    cluster.do(register(2, last=cluster.image.brokers[2].broker_epoch))
    note()
    cluster.unfence(2)
    note()
    cluster.do(register(2, last=cluster.image.brokers[2].broker_epoch))
    note()
    assert [later - versions[0] for later in versions] == [0, 0, 1, 1, 2, 3]
    image = codec.decode_image(codec.encode_image(cluster.image))
    assert image.coordinators_version == versions[-1]


def of_broker(cluster, broker_id):
    epoch = cluster.image.brokers[broker_id].broker_epoch
    return {"broker_id": broker_id, "broker_epoch": epoch}
