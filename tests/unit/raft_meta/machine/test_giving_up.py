"""A damaged copy leaves its partition while its broker runs: in favour of whom, and what its past counts for."""

from dataclasses import replace

import msgpack  # type: ignore[import-untyped]  # ships no types

from milena.model.errors import FeatureLevelError, StaleBrokerEpochError
from raft_meta.machine import codec, invariants
from raft_meta.machine import commands as c
from raft_meta.machine.apply import Applied
from raft_meta.machine.image import Partition
from raft_meta.machine.topics import elections
from tests.support.machine.images import TOPIC_ID, Cluster

KEY = (TOPIC_ID, 0)


def cluster(level: int = 4, **configs: str) -> Cluster:
    """Three brokers; broker 1 leads a partition of replicas 1, 2, 3, all in sync."""
    made = Cluster((None, None, None), level=level)
    made.create(((1, 2, 3),), configs=tuple(configs.items()))
    made.do(
        c.ElectLeaders(
            controller_epoch=made.image.controller_epoch,
            changes=elections.plan_elections(made.image),
        )
    )
    return made


def at(made: Cluster) -> Partition:
    return made.image.partitions[KEY]


def give_up(made: Cluster, broker_id: int, **changes: object) -> Applied:
    plan = elections.plan_give_up(made.image, broker_id, KEY)
    assert plan is not None
    applied = made.do(
        c.GiveUpReplicas(
            broker_id=broker_id,
            broker_epoch=made.image.brokers[broker_id].broker_epoch,
            changes=(replace(plan, **changes),),  # type: ignore[arg-type]
        )
    )
    assert not invariants.violations(made.image)
    return applied


def codes(applied: Applied) -> list[str]:
    answer = codec.decode_response(applied.response)
    assert isinstance(answer, tuple)
    return [str(code) for code in answer]


def test_a_follower_leaves_and_its_leader_begins_a_new_epoch() -> None:
    made = cluster()
    before = at(made)
    assert codes(give_up(made, 2)) == [""]
    after = at(made)
    assert (after.leader, after.isr, after.eligible) == (1, (1, 3), ())
    assert after.leader_epoch == before.leader_epoch + 1
    assert after.partition_epoch == before.partition_epoch + 1


def test_a_leader_leaves_and_another_one_leads_at_once() -> None:
    made = cluster()
    before = at(made)
    assert codes(give_up(made, 1)) == [""]
    after = at(made)
    assert (after.leader, after.isr) == (2, (2, 3))
    assert after.leader_epoch == before.leader_epoch + 1


def test_who_was_given_up_is_not_even_eligible() -> None:
    made = cluster(**{"min.insync.replicas": "3"})
    assert codes(give_up(made, 2)) == [""]
    assert (at(made).isr, at(made).eligible) == ((1, 3), ())


def test_positions_of_one_that_is_out_of_sync_count_no_more_either() -> None:
    made = cluster()
    give_up(made, 3)
    before = at(made)
    assert codes(give_up(made, 3)) == [""]
    assert at(made).leader_epoch == before.leader_epoch + 1
    assert at(made).isr == before.isr


def test_the_last_one_in_sync_stays() -> None:
    made = cluster()
    give_up(made, 2)
    give_up(made, 3)
    assert at(made).isr == (1,)
    assert elections.plan_give_up(made.image, 1, KEY) is None
    before = at(made)
    change = c.LeaderChange(
        topic_id=TOPIC_ID, partition=0, partition_epoch=before.partition_epoch, leader=2, isr=(2,)
    )
    epoch = made.image.brokers[1].broker_epoch
    applied = made.do(c.GiveUpReplicas(broker_id=1, broker_epoch=epoch, changes=(change,)))
    assert codes(applied) == ["not_enough_replicas"]
    assert at(made) == before


def test_what_the_plan_did_not_know_refuses_it() -> None:
    made = cluster()
    before = at(made)
    assert codes(give_up(made, 2, partition_epoch=before.partition_epoch - 1)) == ["stale_version"]
    assert codes(give_up(made, 2, isr=(1, 2, 3)))[0]
    assert codes(give_up(made, 2, is_unclean=True))[0]
    assert codes(give_up(made, 2, partition=7))[0]
    assert at(made) == before
    stale = c.GiveUpReplicas(broker_id=2, broker_epoch=1, changes=())
    assert isinstance(made.do(stale).error, StaleBrokerEpochError)


def test_it_waits_until_every_broker_knows_it() -> None:
    made = cluster(level=3)
    plan = elections.plan_give_up(made.image, 2, KEY)
    assert plan is not None
    epoch = made.image.brokers[2].broker_epoch
    applied = made.do(c.GiveUpReplicas(broker_id=2, broker_epoch=epoch, changes=(plan,)))
    assert isinstance(applied.error, FeatureLevelError)


def test_its_bytes() -> None:
    change = c.LeaderChange(topic_id="t", partition=1, partition_epoch=4, leader=3, isr=(3,))
    command = c.GiveUpReplicas(broker_id=1, broker_epoch=2, changes=(change,))
    encoded = codec.encode_envelope(Cluster().envelope(command))
    assert msgpack.unpackb(encoded)[5:] == [25, [1, 2, [["t", 1, 4, 3, [3], False]]]]
    assert codec.decode_envelope(encoded).command == command
