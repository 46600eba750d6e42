"""Bounds of transactions, and what a refused one leaves behind.

What ends do is in the golden scripts (``tests/scripts/machine/transactions*.txt``).
"""

from dataclasses import replace

import pytest
from immutables import Map

from milena.model.errors import (
    InvalidProducerError,
    InvalidRequestError,
    RequestTooLargeError,
    TransactionsPendingError,
)
from raft_meta.machine import codec, producers, shapes, transactions
from raft_meta.machine import commands as c
from raft_meta.machine.groups import group_rules
from raft_meta.machine.image import Ending, Image, TransactionKey
from raft_meta.machine.invariants import violations
from raft_meta.machine.transactions import NotCommitted, check_end, outcome_of
from tests.support.machine.group_scripts import member
from tests.support.machine.images import (
    TOPIC_ID,
    TransactionCluster,
    aborted,
    commit_of,
    committed,
    extent_of,
)


@pytest.fixture
def cluster() -> TransactionCluster:
    return TransactionCluster()


def outcome(cluster: TransactionCluster, transaction: TransactionKey, partition: int = 0) -> object:
    return outcome_of(cluster.image, TOPIC_ID, partition, *transaction)


class TestBounds:
    """Everything that comes from outside has one, and says so."""

    def test_as_many_ends_as_one_command_may_have(self, cluster: TransactionCluster) -> None:
        one = cluster.begin()
        marker = c.FinishedMarker(topic_id="t", partition=0, producer_id=1, producer_epoch=0)
        for command in (
            c.EndTransactions(ends=(aborted(one),) * 1001),
            c.FinishMarkers(markers=(marker,) * 4001),
        ):
            assert isinstance(cluster.do(command).error, RequestTooLargeError)
        assert outcome(cluster, one) is NotCommitted.OPEN
        assert cluster.end(*[aborted(one)] * 1000) == ("",) * 1000

    def test_extents_and_offsets_of_one_transaction_count_together(
        self, cluster: TransactionCluster
    ) -> None:
        cluster.create(((1,),) * 998, name="wide", topic_id="2" * 32)
        one = cluster.begin()
        wide = tuple(replace(extent_of(p, 1), topic_id="2" * 32) for p in range(998))
        most = replace(committed(one, {}, commit_of("g", {0: 1, 1: 1})), extents=wide)
        assert cluster.end(replace(most, extents=(*wide, extent_of(0, 1)))) == (
            "request_too_large",
        )
        assert outcome(cluster, one) is NotCommitted.OPEN
        assert cluster.end(most) == ("",)
        assert cluster.image.ending_count == 998

    def test_a_thousand_extents_are_a_small_part_of_a_command(self) -> None:
        """The largest that a command may be is 1 MiB."""
        wide = tuple(extent_of(p, 1 << 62, 1 << 61) for p in range(1000))
        end = replace(committed((1 << 40, 32766), {0: 1}, is_keyed=True), extents=wide)
        check_end(end)
        envelope = TransactionCluster().envelope(c.EndTransactions(ends=(end,)))
        assert len(codec.encode_envelope(envelope)) < 64 << 10

    def test_homes_of_keys_are_told_of_no_more_partitions_together_than_one_is(self) -> None:
        cluster = TransactionCluster(level=transactions.SHARED_KEYS_LEVEL)
        cluster.create(((1,),) * 40, name="wide", topic_id="2" * 32)
        one = cluster.begin()
        wide = tuple(replace(extent_of(p, 1), topic_id="2" * 32) for p in range(40))
        end = replace(committed(one, {}, is_keyed=True), extents=wide)
        assert cluster.end(replace(end, home_count=26)) == ("request_too_large",)
        assert outcome(cluster, one) is NotCommitted.OPEN
        assert cluster.end(replace(end, home_count=25)) == ("",)
        endings = [e for found in cluster.image.ending.values() for e in found.values()]
        assert sum(len(ending.extents) for ending in endings) == 1000

    def test_the_end_of_one_with_one_home_has_the_bytes_that_earlier_releases_read(self) -> None:
        end = committed((5, 2), {0: 9, 1: 7}, is_keyed=True)
        assert shapes.pack(end) == [
            *(5, 2, True, True),
            [[TOPIC_ID, 0, -1, 9], [TOPIC_ID, 1, -1, 7]],
            [],
        ]
        assert shapes.pack(replace(end, home_count=2))[-1:] == [2]  # type: ignore[index]

    def test_a_commit_waits_while_too_many_markers_are_to_be_written(
        self, cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transactions, "ENDINGS_MAX", 3)
        one, other, third = cluster.begin(), cluster.begin(), cluster.begin()
        assert cluster.end(committed(one, {0: 1, 1: 1}), committed(other, {0: 5, 2: 1})) == (
            "",
            "too_many_transactions",
        )
        assert outcome(cluster, other) is NotCommitted.OPEN
        # What leaves nothing behind is not held up: commits of offsets alone, and aborts.
        assert cluster.end(committed(third, {}, commit_of("g", {0: 1}))) == ("",)
        assert cluster.finish(one, 0) == 1
        assert cluster.end(committed(other, {0: 5, 2: 1})) == ("",)
        assert cluster.image.ending_count == 3
        fourth = cluster.begin()
        assert cluster.end(committed(fourth, {3: 1}), aborted(fourth)) == (
            "too_many_transactions",
            "",
        )

    def test_the_last_epoch_of_a_producer_carries_no_transaction(
        self, cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its end could not raise the epoch; a new id carries the next one."""
        monkeypatch.setattr(producers, "PRODUCER_EPOCH_MAX", 1)
        monkeypatch.setattr(transactions, "PRODUCER_EPOCH_MAX", 1)
        first = cluster.begin("app")
        assert cluster.end(committed(first, {0: 9})) == ("",)
        last = (first[0], 1)
        assert cluster.end(committed(last, {0: 12}), aborted(last)) == ("invalid_producer",) * 2
        following = cluster.begin("app")
        assert following == (first[0] + 1, 0)
        assert outcome(cluster, last) is NotCommitted.ABORTED
        assert outcome(cluster, first) == Ending(end_offset=9)
        assert cluster.end(committed(first, {0: 9})) == ("transaction_not_found",)
        assert violations(cluster.image) == []

    def test_an_epoch_is_what_a_batch_can_hold(self) -> None:
        check_end(aborted((1, 32_766)))
        with pytest.raises(InvalidProducerError):
            check_end(aborted((1, 32_767)))


@pytest.mark.parametrize(
    "wrong",
    [
        replace(committed((1, 0), {0: 9}), is_commit=False),
        replace(committed((1, 0), {}, commit_of("g", {0: 1})), is_commit=False),
        replace(aborted((1, 0)), is_keyed=True),
        committed((1, 0), {}, is_keyed=True),
        committed((1, 0), {0: 0}),
        committed((1, 0), {0: -5}),
        replace(committed((1, 0), {}), extents=(extent_of(0, 9, 9),)),
        replace(committed((1, 0), {}), extents=(extent_of(0, 9, -2),)),
        replace(committed((1, 0), {}), extents=(extent_of(0, 9), extent_of(0, 10))),
    ],
)
def test_what_makes_no_sense_leaves_the_transaction_open(
    cluster: TransactionCluster, wrong: c.TransactionEnd
) -> None:
    with pytest.raises(InvalidRequestError):
        check_end(wrong)
    assert cluster.begin() == (1, 0)
    assert cluster.end(wrong) == ("invalid_request",)
    assert outcome(cluster, (1, 0)) is NotCommitted.OPEN
    assert cluster.end(committed((1, 0), {0: 9})) == ("",)


class TestLeaders:
    """An end that names leaders counts only while they lead; else it may be asked again."""

    def test_it_counts_while_they_lead(self) -> None:
        cluster = TransactionCluster(level=9)
        one = cluster.begin()
        assert cluster.end(led(cluster, committed(one, {0: 9, 2: 4}))) == ("",)
        assert outcome(cluster, one, 2) == Ending(end_offset=4)

    @pytest.mark.parametrize("moved", [0, 2])
    def test_another_leader_of_one_partition_leaves_it_open(self, moved: int) -> None:
        cluster = TransactionCluster(level=9)
        one = cluster.begin()
        end = led(cluster, committed(one, {0: 9, 2: 4}, commit_of("g", {0: 1})))
        lead(cluster, moved, 2)
        assert cluster.end(end) == ("stale_leader_epoch",)
        assert outcome(cluster, one) is NotCommitted.OPEN
        assert not cluster.image.ending_count
        assert not cluster.image.offset_count
        assert cluster.end(led(cluster, end)) == ("",)

    def test_once_it_is_committed_it_stays_so_whoever_leads(self) -> None:
        cluster = TransactionCluster(level=9)
        one = cluster.begin()
        end = led(cluster, committed(one, {0: 9}))
        assert cluster.end(end) == ("",)
        lead(cluster, 0, 2)
        assert cluster.end(end) == ("",)

    def test_a_partition_that_is_not_there_aborts_whoever_is_said_to_lead_it(self) -> None:
        cluster = TransactionCluster(level=9)
        one = cluster.begin()
        end = replace(committed(one, {9: 9}), leader_epochs=(0,))
        assert cluster.end(end) == ("partition_not_found",)
        assert outcome(cluster, one) is NotCommitted.ABORTED

    def test_each_partition_has_one_or_none_has(self) -> None:
        end = committed((1, 0), {0: 9, 2: 4})
        for epochs in ((0,), (0, 0, 0)):
            with pytest.raises(InvalidRequestError, match="each of its partitions"):
                check_end(replace(end, leader_epochs=epochs))

    def test_before_all_nodes_know_of_it_none_is_named(self) -> None:
        cluster = TransactionCluster(level=8)
        one = cluster.begin()
        assert cluster.end(led(cluster, committed(one, {0: 9}))) == ("invalid_request",)
        assert outcome(cluster, one) is NotCommitted.OPEN


def led(cluster: TransactionCluster, end: c.TransactionEnd) -> c.TransactionEnd:
    """The same under the leaders that there are."""
    partitions = cluster.image.partitions
    epochs = (partitions[extent.topic_id, extent.partition].leader_epoch for extent in end.extents)
    return replace(end, leader_epochs=tuple(epochs))


def lead(cluster: TransactionCluster, partition: int, leader: int) -> None:
    state = cluster.image.partitions[TOPIC_ID, partition]
    change = c.LeaderChange(
        topic_id=TOPIC_ID,
        partition=partition,
        partition_epoch=state.partition_epoch,
        leader=leader,
        isr=state.isr,
    )
    elected = c.ElectLeaders(controller_epoch=cluster.image.controller_epoch, changes=(change,))
    assert cluster.do(elected).error is None
    assert cluster.image.partitions[TOPIC_ID, partition].leader_epoch == state.leader_epoch + 1


@pytest.mark.parametrize("partition", [-1, 4])
def test_a_partition_that_is_not_there_aborts(cluster: TransactionCluster, partition: int) -> None:
    one = cluster.begin()
    assert cluster.end(committed(one, {0: 9, partition: 9})) == ("partition_not_found",)
    assert outcome(cluster, one) is NotCommitted.ABORTED
    assert not cluster.image.ending


class TestAllOrNothing:
    """A commit that is refused for one of its parts leaves nothing of the others."""

    def test_no_room_for_the_last_of_its_offsets(
        self, cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(group_rules, "OFFSETS_MAX", 3)
        cluster.end(committed(cluster.begin(), {}, commit_of("g", {0: 1})))
        one, other = cluster.begin(), cluster.begin()
        too_much = committed(
            one, {0: 9}, commit_of("g", {0: 2, 1: 2}), commit_of("h", {0: 2, 1: 2})
        )
        fits = committed(other, {1: 9}, commit_of("g", {0: 3, 1: 3}), commit_of("h", {0: 3}))
        assert cluster.end(too_much, fits) == ("group_limit_reached", "")
        assert outcome(cluster, one) is NotCommitted.ABORTED
        assert set(cluster.image.ending) == {(TOPIC_ID, 1)}
        assert read(cluster.image) == {("g", 0): 3, ("g", 1): 3, ("h", 0): 3}
        assert cluster.image.offset_count == 3

    def test_no_room_for_the_last_of_its_groups(
        self, cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(group_rules, "GROUPS_MAX", 2)
        one, other = cluster.begin(), cluster.begin()
        groups = [commit_of(name, {0: 1}) for name in ("f", "g", "h")]
        assert cluster.end(committed(one, {}, *groups), committed(other, {}, *groups[1:])) == (
            "group_limit_reached",
            "",
        )
        assert set(cluster.image.groups) == set(cluster.image.offsets) == {"g", "h"}

    def test_one_group_may_be_made_by_several_commits_of_a_command(
        self, cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(group_rules, "GROUPS_MAX", 1)
        one, other = cluster.begin(), cluster.begin()
        twice = (commit_of("g", {0: 1}), commit_of("g", {0: 2, 1: 1}))
        assert cluster.end(
            committed(one, {}, *twice), committed(other, {}, commit_of("g", {2: 1}))
        ) == ("", "")
        assert read(cluster.image) == {("g", 0): 2, ("g", 1): 1, ("g", 2): 1}
        assert cluster.image.groups["g"].version == cluster.image.index
        assert violations(cluster.image) == []

    def test_a_fenced_member_keeps_the_offsets_of_all_others_back(
        self, cluster: TransactionCluster
    ) -> None:
        held = ((TOPIC_ID, (0,)),)
        cluster.alter("g", 2, [member("a", 2, held, held)])
        before = cluster.image
        one = cluster.begin()
        fenced = commit_of("g", {0: 5}, member_id="a", member_epoch=1)
        assert cluster.end(committed(one, {0: 9}, commit_of("h", {0: 5}), fenced)) == (
            "stale_member_epoch",
        )
        after = cluster.image
        assert after.offsets is before.offsets
        assert after.groups is before.groups
        assert after.ending is before.ending


def read(image: Image) -> dict[tuple[str, int], int]:
    return {
        (group_id, key[1]): found.offset
        for group_id, offsets in image.offsets.items()
        for key, found in offsets.items()
    }


def test_what_a_command_does_not_touch_is_the_same_object(cluster: TransactionCluster) -> None:
    """Nodes tell by identity what they have to look at."""
    one, other = cluster.begin(), cluster.begin()
    cluster.end(committed(other, {2: 1}, commit_of("g", {0: 1})))
    before = cluster.image
    assert cluster.end(committed(one, {0: 9})) == ("",)
    after = cluster.image
    assert after.offsets is before.offsets
    assert after.groups is before.groups
    assert after.ending[TOPIC_ID, 2] is before.ending[TOPIC_ID, 2]
    before = after
    assert cluster.end(committed(one, {0: 9}), aborted((99, 0))) == ("", "transaction_not_found")
    assert cluster.finish(one, 1, 2, 3) == 0
    after = cluster.image
    assert after.producers is before.producers
    assert after.ending is before.ending


def test_a_forgotten_producer_has_no_transaction_that_is_open(
    cluster: TransactionCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image says epoch 0 of every id that it once gave out; that must not open one again."""
    monkeypatch.setattr(producers, "UNNAMED_KEPT", 2)
    one, other = cluster.begin(), cluster.begin()
    cluster.end(committed(other, {0: 9}))
    assert outcome(cluster, one) is NotCommitted.OPEN
    for _ in range(3):
        cluster.begin()
    assert cluster.image.producer_epoch(one[0]) == 0
    assert outcome(cluster, one) is NotCommitted.ABORTED
    assert cluster.end(committed(one, {0: 9})) == ("transaction_not_found",)
    # What was decided before needs no producer.
    assert outcome(cluster, other) == Ending(end_offset=9)
    assert violations(cluster.image) == []


def test_the_home_alone_keeps_everything_that_was_written(cluster: TransactionCluster) -> None:
    one = cluster.begin()
    end = committed(one, {2: 9, 0: 4}, is_keyed=True)
    assert cluster.end(end) == ("",)
    assert outcome(cluster, one, 2) == Ending(end_offset=9, extents=end.extents)
    assert outcome(cluster, one, 0) == Ending(end_offset=4)
    assert outcome(cluster, one, 1) is NotCommitted.ABORTED


def test_offsets_of_a_transaction_need_no_coordinator(cluster: TransactionCluster) -> None:
    """Whoever proposes the end: who coordinates a group says nothing of what its members may commit."""
    for broker in cluster.image.brokers.values():
        cluster.image = replace(
            cluster.image,
            brokers=cluster.image.brokers.set(broker.broker_id, replace(broker, is_draining=True)),
        )
    one = cluster.begin()
    assert cluster.end(committed(one, {}, commit_of("g", {0: 5}))) == ("",)
    assert read(cluster.image) == {("g", 0): 5}


def test_markers_of_one_command_may_repeat_each_other(cluster: TransactionCluster) -> None:
    one, other = cluster.begin(), cluster.begin()
    cluster.end(committed(one, {0: 9, 1: 9}), committed(other, {0: 12}))
    assert cluster.finish(one, 0, 0, 1, 3) == 2
    assert cluster.image.ending == Map({(TOPIC_ID, 0): Map({other: Ending(end_offset=12)})})
    assert cluster.image.ending_count == 1


@pytest.mark.parametrize("count", [2, 100])
def test_a_large_topic_takes_its_endings_along_whichever_way_is_shorter(
    cluster: TransactionCluster, count: int
) -> None:
    cluster.create(((1,),) * 100, name="wide", topic_id="2" * 32)
    end = committed(cluster.begin(), {0: 1})
    wide = tuple(replace(extent_of(p, 1), topic_id="2" * 32) for p in range(count))
    assert cluster.end(replace(end, extents=(*end.extents, *wide))) == ("",)
    change = c.AlterConfigs(topic_id="2" * 32, changes=(("flush.messages", "2"),))
    assert isinstance(cluster.do(change).error, TransactionsPendingError)
    cluster.do(c.DeleteTopic(topic_id="2" * 32))
    assert set(cluster.image.ending) == {(TOPIC_ID, 0)}
    assert cluster.image.ending_count == 1


def test_a_topic_that_takes_none_may_change_while_another_waits(
    cluster: TransactionCluster,
) -> None:
    cluster.create(((1,),), name="lazy", topic_id="2" * 32, configs=(("flush.messages", "9"),))
    cluster.end(committed(cluster.begin(), {0: 1}))
    change = c.AlterConfigs(topic_id="2" * 32, changes=(("flush.messages", "10"),))
    assert cluster.do(change).error is None
