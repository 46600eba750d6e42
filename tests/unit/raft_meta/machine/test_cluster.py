"""When the feature level may rise: once nobody is left who would not understand it."""

from raft_meta.machine import cluster
from raft_meta.machine.codec import FEATURE_LEVEL_MAX
from raft_meta.machine.commands import RegisterBroker, SetFeatureLevel
from tests.support.machine.images import Cluster, register


def registered(broker_id: int, feature_max: int) -> RegisterBroker:
    command = register(broker_id)
    return RegisterBroker(
        **{
            **{name: getattr(command, name) for name in command.__dataclass_fields__},
            "feature_max": feature_max,
        }
    )


def test_the_level_rises_when_the_last_broker_supports_it() -> None:
    state = Cluster()
    for broker_id, feature_max in ((1, 2), (2, 2)):
        state.do(registered(broker_id, feature_max))
    # A voter that has not come yet may be of the release before.
    assert cluster.supported_level(state.image) == 1
    state.do(registered(3, 1))
    assert cluster.supported_level(state.image) == 1
    state.do(registered(3, FEATURE_LEVEL_MAX + 1))
    assert cluster.supported_level(state.image) == 2
    assert state.do(SetFeatureLevel(feature_level=2)).error is None
    assert cluster.supported_level(state.image) == 2
    for broker_id in (1, 2):
        state.do(registered(broker_id, 3))
    assert cluster.supported_level(state.image) == 3
    # Never to more than this release knows, whatever the others support.
    for broker_id in (1, 2):
        state.do(registered(broker_id, FEATURE_LEVEL_MAX + 1))
    assert cluster.supported_level(state.image) == FEATURE_LEVEL_MAX


def test_an_observer_of_an_older_release_holds_it_back() -> None:
    state = Cluster()
    for broker_id, feature_max in ((1, 2), (2, 2), (3, 2), (4, 1)):
        state.do(registered(broker_id, feature_max))
    assert cluster.supported_level(state.image) == 1
