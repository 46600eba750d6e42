"""The coordinator of a group follows from the image, and moves only when its broker comes or goes."""

from dataclasses import replace

import pytest
from immutables import Map

from milena.model.errors import NotCoordinatorError, StaleBrokerEpochError
from raft_meta.machine.groups.coordinators import check_coordinator, coordinator_of
from raft_meta.machine.image import Broker, Image

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
