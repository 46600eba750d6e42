"""Transactional ids of Kafka clients: what they enlist, how their transactions end, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from milena.model.errors import (
    ConflictError,
    FeatureLevelError,
    InvalidProducerError,
    InvalidRequestError,
    StaleProducerEpochError,
)
from milena.model.types import WallMs
from raft_meta.machine import codec, producers, transactional_ids, transactions
from raft_meta.machine import commands as c
from raft_meta.machine.image import KafkaTransactionalId, TransactionKey
from raft_meta.machine.invariants import violations
from raft_meta.machine.transactions import NotCommitted, outcome_of
from tests.support.machine.group_scripts import member
from tests.support.machine.images import TOPIC_ID, KafkaTransactionCluster, aborted, commit_of

Client = tuple[int, int]


@pytest.fixture
def cluster() -> Any:
    made = KafkaTransactionCluster()
    yield made
    assert violations(made.image) == []
    assert codec.decode_image(codec.encode_image(made.image)) == made.image


def row_of(cluster: KafkaTransactionCluster, name: str = "tx") -> KafkaTransactionalId:
    return cluster.image.transactional_ids[name]


def outcome(
    cluster: KafkaTransactionCluster, transaction: TransactionKey, partition: int = 0
) -> object:
    return outcome_of(cluster.image, TOPIC_ID, partition, *transaction)


class TestInit:
    """A client begins under its transactional id."""

    def test_each_client_gets_an_epoch_above_those_before(
        self, cluster: KafkaTransactionCluster
    ) -> None:
        first, second, other = cluster.init(), cluster.init(), cluster.init("other")
        assert (second[0], second[1]) == (first[0], 1)
        assert other[0] != first[0]
        # The identity of the transactions in logs is another one than the client's.
        assert cluster.own()[0] not in (first[0], other[0])

    def test_a_second_client_aborts_what_the_first_left_open(
        self, cluster: KafkaTransactionCluster
    ) -> None:
        first = cluster.init()
        assert cluster.enlist(first, 0) == ("",)
        own = cluster.own()
        assert outcome(cluster, own) is NotCommitted.OPEN
        cluster.init()
        assert outcome(cluster, own) is NotCommitted.ABORTED
        assert not row_of(cluster).is_open
        assert cluster.enlist(first, 0) == ("stale_producer_epoch",)
        late = cluster.kafka_end(own, {0: 1}, version=row_of(cluster).version)
        assert cluster.end(late) == ("transaction_aborted",)

    def test_a_client_that_asks_again_for_its_next_epoch_gets_the_same(
        self, cluster: KafkaTransactionCluster
    ) -> None:
        """Its first answer may have been lost (KIP-360)."""
        first = cluster.init()
        assert cluster.init(client=first) == (first[0], 1)
        assert cluster.init(client=first) == (first[0], 1)
        assert cluster.init(client=(first[0], 1)) == (first[0], 2)
        refused = cluster.try_init(client=first)
        assert isinstance(refused, StaleProducerEpochError)

    def test_a_client_that_begins_has_no_earlier_transaction(
        self, cluster: KafkaTransactionCluster
    ) -> None:
        """Otherwise its first end would look like a repeated end of its predecessor."""
        client = cluster.init()
        cluster.enlist(client, 0)
        cluster.commit_kafka({0: 3})
        assert row_of(cluster).last == "committed"
        cluster.init()
        assert row_of(cluster).last == ""

    def test_a_fenced_client_gets_no_epoch(self, cluster: KafkaTransactionCluster) -> None:
        first = cluster.init()
        cluster.init()
        assert isinstance(cluster.try_init(client=first), StaleProducerEpochError)
        assert isinstance(cluster.try_init(client=(99, 0)), InvalidProducerError)

    def test_an_unknown_id_begins_again_whatever_the_client_remembers(
        self, cluster: KafkaTransactionCluster
    ) -> None:
        """An id may have expired. @platformatic/kafka sends producer id 0 and epoch 0 with a new one."""
        for name, client in (("unknown", cluster.init()), ("new", (0, 0))):
            assert cluster.try_init(name, client=client) is None
            row = cluster.image.transactional_ids[name]
            assert (row.producer_id, row.producer_epoch) != client

    @pytest.mark.parametrize(
        ("name", "timeout_ms"),
        [("tx", 0), ("tx", 900_001), ("", 1), ("n" * 256, 1), ("milena.tx", 1)],
    )
    def test_values_out_of_bounds_are_refused(
        self, cluster: KafkaTransactionCluster, name: str, timeout_ms: int
    ) -> None:
        assert isinstance(cluster.try_init(name, timeout_ms=timeout_ms), InvalidRequestError)
        assert not cluster.image.transactional_ids

    def test_a_name_belongs_to_one_interface(self, cluster: KafkaTransactionCluster) -> None:
        cluster.begin("http")
        assert isinstance(cluster.try_init("http"), ConflictError)
        cluster.init()
        assert isinstance(cluster.do(c.AllocateProducer(name="tx")).error, ConflictError)

    def test_used_up_epochs_lead_to_other_ids(
        self, cluster: KafkaTransactionCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in (producers, transactions, transactional_ids):
            monkeypatch.setattr(module, "PRODUCER_EPOCH_MAX", 2)
        first = cluster.init()
        assert cluster.init() == (first[0], 1)
        second = cluster.init()
        assert second[0] > first[0]
        assert second[1] == 0
        owns = set()
        for _ in range(5):
            assert cluster.enlist(second, 0) == ("",)
            owns.add(cluster.own())
            assert cluster.commit_kafka({0: 9}) == ("",)
        assert len(owns) == 5
        assert len({own for own, _ in owns}) == 3
        assert cluster.image.ending_count == 5

    def test_a_raised_epoch_above_the_last_is_another_id(
        self, cluster: KafkaTransactionCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in (transactions, transactional_ids):
            monkeypatch.setattr(module, "PRODUCER_EPOCH_MAX", 2)
        first = cluster.init()
        assert cluster.enlist(first, 0) == ("",)
        assert cluster.commit_kafka({0: 9}, raises_client=True) == ("",)
        assert cluster.client() == (first[0], 1)
        assert cluster.enlist(cluster.client(), 0) == ("",)
        assert cluster.commit_kafka({0: 9}, raises_client=True) == ("",)
        assert cluster.client()[0] > first[0]
        assert cluster.client()[1] == 0

    def test_below_the_level_there_are_none(self) -> None:
        cluster = KafkaTransactionCluster(level=11)
        assert isinstance(cluster.try_init(), FeatureLevelError)


class TestEnlist:
    """A client enlists partitions and groups, and stages offsets."""

    def test_repeating_an_enlistment_changes_nothing(
        self, cluster: KafkaTransactionCluster
    ) -> None:
        client = cluster.init()
        assert cluster.enlist(client, 1, 0) == ("",)
        version = row_of(cluster).version
        assert row_of(cluster).partitions == ((TOPIC_ID, 0), (TOPIC_ID, 1))
        assert cluster.enlist(client, 0) == ("",)
        assert row_of(cluster).version == version
        assert cluster.enlist(client, 2) == ("",)
        assert row_of(cluster).version > version

    def test_others_are_refused(self, cluster: KafkaTransactionCluster) -> None:
        client = cluster.init()
        for stranger, code in (
            ((client[0], client[1] + 1), "stale_producer_epoch"),
            ((client[0] + 1, 0), "invalid_producer"),
            (cluster.own(), "invalid_producer"),
        ):
            assert cluster.enlist(stranger, 0) == (code,)
        assert cluster.enlist(client, 0, name="unknown") == ("invalid_producer",)
        assert not row_of(cluster).is_open

    def test_partitions_must_exist_and_lose_nothing(self, cluster: KafkaTransactionCluster) -> None:
        client = cluster.init()
        assert cluster.enlist(client, 0, 4) == ("partition_not_found",)
        cluster.create(
            ((1, 2, 3),), name="lazy", topic_id="2" * 32, configs=(("flush.messages", "1000"),)
        )
        for topic_id, code in (
            ("2" * 32, "topic_not_transactional"),
            ("3" * 32, "topic_not_found"),
        ):
            enlistment = cluster.enlistment(client, partitions=((topic_id, 0),))
            assert cluster.enlist_all(enlistment) == (code,)
        assert not row_of(cluster).is_open

    def test_a_transaction_enlists_no_more_than_it_can_commit(
        self, cluster: KafkaTransactionCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = cluster.init()
        monkeypatch.setattr(transactional_ids, "ITEMS_MAX", 3)
        assert cluster.enlist(client, 0, 1) == ("",)
        assert cluster.stage(client, commit_of("g", {0: 1, 1: 1})) == ("request_too_large",)
        assert cluster.enlist(client, 2, 3) == ("request_too_large",)
        assert cluster.enlist(client, 2) == ("",)
        monkeypatch.setattr(transactional_ids, "METADATA_BYTES_MAX", 3)
        monkeypatch.setattr(transactional_ids, "ITEMS_MAX", 9)
        for metadata, code in (("four", "request_too_large"), ("abc", "")):
            commit = commit_of("g", {0: 1}, metadata=metadata)
            assert cluster.stage(client, commit) == (code,)

    def test_each_of_a_command_is_taken_by_itself(self, cluster: KafkaTransactionCluster) -> None:
        client, other = cluster.init(), cluster.init("other")
        wrong = cluster.enlistment((9, 9), partitions=((TOPIC_ID, 0),))
        good = cluster.enlistment(client, partitions=((TOPIC_ID, 1),))
        more = cluster.enlistment(other, "other", partitions=((TOPIC_ID, 1),))
        assert cluster.enlist_all(good, wrong, more) == ("", "invalid_producer", "")
        too_many = c.EnlistInTransactions(enlistments=(good,) * 1001)
        assert cluster.do(too_many).error is not None

    def test_offsets_need_their_group_in_the_transaction(
        self, cluster: KafkaTransactionCluster
    ) -> None:
        client = cluster.init()
        bare = cluster.enlistment(client, offsets=(commit_of("g", {0: 1}),))
        assert cluster.enlist_all(bare) == ("transaction_not_found",)
        assert cluster.enlist_all(cluster.enlistment(client, groups=("g",))) == ("",)
        assert cluster.enlist_all(bare) == ("",)
        assert cluster.image.staging["g"] == ("tx",)

    def test_offsets_are_checked_like_a_commit(self, cluster: KafkaTransactionCluster) -> None:
        client = cluster.init()
        cluster.finish_classic("classic", 3, "m")
        for commit, code in (
            (commit_of("classic", {0: 1}, member_id="m", member_epoch=3), ""),
            (commit_of("classic", {0: 1}, member_id="m", member_epoch=2), "generation"),
            (commit_of("classic", {0: 1}, member_id="x", member_epoch=3), "member_not_found"),
            (commit_of("classic", {0: 1}), ""),  # a client before KIP-447
            (commit_of("classic", {9: 1}), "partition_not_found"),
            (commit_of("classic", {0: -1}), "invalid_consumer"),
            (commit_of("new", {0: 1}), ""),
        ):
            assert cluster.stage(client, commit) == (code,), commit

    def test_a_server_group_takes_offsets_from_its_members_alone(
        self, cluster: KafkaTransactionCluster
    ) -> None:
        """They may not wait for the end of the transaction, so the member is checked at the commit as well."""
        client = cluster.init()
        held = ((TOPIC_ID, (0,)),)
        cluster.alter("g", 1, [member("m", epoch=1, held=held, target=held)])
        assert cluster.stage(client, commit_of("g", {0: 1})) == ("group_not_empty",)
        good = commit_of("g", {0: 5}, member_id="m", member_epoch=1)
        assert cluster.stage(client, good) == ("",)
        successor = member("n", epoch=2, held=held, target=held)
        assert cluster.alter("g", 2, [successor], left=("m",)).error is None
        own = cluster.own()
        assert cluster.commit_kafka({}) == ("member_not_found",)
        assert outcome(cluster, own) is NotCommitted.ABORTED
        assert "g" not in cluster.image.offsets

    def test_a_member_of_a_server_group_keeps_its_offsets_under_a_later_epoch(
        self, cluster: KafkaTransactionCluster
    ) -> None:
        """A rebalance amid the transaction raises the epoch. The member still holds the partition."""
        client = cluster.init()
        held = ((TOPIC_ID, (0,)),)
        cluster.alter("g", 1, [member("m", epoch=1, held=held, target=held)])
        good = commit_of("g", {0: 5}, member_id="m", member_epoch=1)
        assert cluster.stage(client, good) == ("",)
        later = [member("m", epoch=2, held=held, target=held), member("n", epoch=2)]
        assert cluster.alter("g", 2, later).error is None
        assert cluster.commit_kafka({}) == ("",)
        assert cluster.image.offsets["g"][TOPIC_ID, 0].offset == 5

    def test_a_member_of_a_server_group_that_lost_the_partition_commits_nothing(
        self, cluster: KafkaTransactionCluster
    ) -> None:
        client = cluster.init()
        held = ((TOPIC_ID, (0,)),)
        cluster.alter("g", 1, [member("m", epoch=1, held=held, target=held)])
        assert cluster.stage(client, commit_of("g", {0: 5}, member_id="m", member_epoch=1)) == ("",)
        assert cluster.alter("g", 2, [member("m", epoch=2)]).error is None
        assert cluster.commit_kafka({}) == ("stale_member_epoch",)
        assert "g" not in cluster.image.offsets

    def test_a_deleted_topic_leaves_the_transaction(self, cluster: KafkaTransactionCluster) -> None:
        cluster.create(((1, 2, 3),), name="gone", topic_id="2" * 32)
        client = cluster.init()
        cluster.enlist_all(
            cluster.enlistment(client, partitions=((TOPIC_ID, 0), ("2" * 32, 0)), groups=("g",))
        )
        gone = commit_of("g", {0: 1})
        gone = replace(gone, offsets=(replace(gone.offsets[0], topic_id="2" * 32),))
        assert cluster.stage(client, gone) == ("",)
        version = row_of(cluster).version
        cluster.do(c.DeleteTopic(topic_id="2" * 32))
        row = row_of(cluster)
        assert (row.partitions, row.offsets, row.is_open) == (((TOPIC_ID, 0),), (), True)
        assert "g" not in cluster.image.staging
        # A commit that was made before the deletion must be made again.
        assert cluster.commit_kafka({0: 3}, version=version) == ("stale_version",)
        assert cluster.commit_kafka({0: 3}) == ("",)


class TestEnd:
    """``EndTransactions`` decides transactions of Kafka clients as it does all others."""

    def test_a_commit_takes_records_and_offsets_together(
        self, cluster: KafkaTransactionCluster
    ) -> None:
        client = cluster.init()
        cluster.enlist(client, 0, 1)
        cluster.stage(client, commit_of("g", {0: 7}, metadata="m"))
        assert "g" not in cluster.image.offsets
        own = cluster.own()
        assert cluster.commit_kafka({0: 3}) == ("",)
        assert cluster.image.ending[TOPIC_ID, 0][own].end_offset == 3
        # What the commit does not name is aborted.
        assert outcome(cluster, own, 1) is NotCommitted.ABORTED
        committed = cluster.image.offsets["g"][TOPIC_ID, 0]
        assert (committed.offset, committed.metadata) == (7, "m")
        row = row_of(cluster)
        assert (row.is_open, row.last, row.offsets) == (False, "committed", ())
        assert not cluster.image.staging
        assert cluster.client() == client

    def test_a_repeated_end_is_answered_in_the_same_way(
        self, cluster: KafkaTransactionCluster
    ) -> None:
        client = cluster.init()
        cluster.enlist(client, 0)
        own, version = cluster.own(), row_of(cluster).version
        first = cluster.kafka_end(own, {0: 3}, version=version)
        assert cluster.end(first, first) == ("", "")
        assert cluster.end(first) == ("",)
        assert cluster.end(aborted(own)) == ("transaction_committed",)
        assert cluster.image.ending_count == 1

    def test_an_abort_leaves_nothing(self, cluster: KafkaTransactionCluster) -> None:
        client = cluster.init()
        cluster.enlist(client, 0)
        cluster.stage(client, commit_of("g", {0: 7}))
        own = cluster.own()
        assert cluster.end_kafka(own, version=row_of(cluster).version) == ("",)
        assert outcome(cluster, own) is NotCommitted.ABORTED
        assert "g" not in cluster.image.offsets
        assert not cluster.image.staging
        row = row_of(cluster)
        assert (row.last, cluster.client()) == ("aborted", client)

    def test_an_end_misses_nothing_that_was_enlisted(
        self, cluster: KafkaTransactionCluster
    ) -> None:
        client = cluster.init()
        cluster.enlist(client, 0)
        own, version = cluster.own(), row_of(cluster).version
        cluster.stage(client, commit_of("g", {0: 7}))
        assert cluster.commit_kafka({0: 3}, version=version) == ("stale_version",)
        assert outcome(cluster, own) is NotCommitted.OPEN
        assert row_of(cluster).is_open

    def test_only_the_client_commits_and_only_what_it_enlisted(
        self, cluster: KafkaTransactionCluster
    ) -> None:
        client = cluster.init()
        cluster.enlist(client, 0)
        own, version = cluster.own(), row_of(cluster).version
        commit = cluster.kafka_end(own, {0: 3}, version=version)
        for end in (
            replace(commit, version=-1),  # as of an HTTP client that found the identity
            cluster.kafka_end(own, {0: 3, 1: 3}, version=version),
            replace(commit, offsets=(commit_of("g", {0: 1}),)),
            replace(commit, is_keyed=True),
        ):
            assert cluster.end(end) == ("invalid_request",)
        http = cluster.begin()
        assert cluster.end(replace(aborted(http), version=5)) == ("invalid_request",)
        assert cluster.end(commit) == ("",)

    def test_an_abort_by_others_fences_the_client(self, cluster: KafkaTransactionCluster) -> None:
        """Its next record must not begin another transaction: it belongs to the aborted one."""
        client = cluster.init()
        cluster.enlist(client, 0)
        own = cluster.own()
        assert cluster.end(aborted(own)) == ("",)
        assert cluster.end(aborted(own)) == ("",)
        assert cluster.client() == (client[0], client[1] + 1)
        assert cluster.enlist(client, 0) == ("stale_producer_epoch",)
        assert isinstance(cluster.try_init(client=client), StaleProducerEpochError)

    def test_without_an_open_transaction_there_is_nothing_to_end(
        self, cluster: KafkaTransactionCluster
    ) -> None:
        client = cluster.init()
        own, version = cluster.own(), row_of(cluster).version
        assert cluster.end(aborted(own)) == ("transaction_not_found",)
        assert cluster.end_kafka(own, version=version) == ("transaction_not_found",)
        assert cluster.commit_kafka({}) == ("transaction_not_found",)
        assert cluster.client() == client

    def test_two_ends_in_one_command_see_each_other(self, cluster: KafkaTransactionCluster) -> None:
        client = cluster.init()
        cluster.enlist(client, 0)
        own, version = cluster.own(), row_of(cluster).version
        commit = cluster.kafka_end(own, {0: 3}, version=version)
        late = replace(commit, producer_epoch=own[1] + 1)
        assert cluster.end(commit, late, aborted(own)) == (
            "",
            "stale_version",
            "transaction_committed",
        )

    def test_a_staged_offset_of_a_former_generation_is_committed(
        self, cluster: KafkaTransactionCluster
    ) -> None:
        """Members of the next generation wait for it (KIP-447)."""
        client = cluster.init()
        cluster.finish_classic("g", 1, "m")
        cluster.stage(client, commit_of("g", {0: 7}, member_id="m", member_epoch=1))
        cluster.finish_classic("g", 2, "n")
        assert cluster.commit_kafka({}) == ("",)
        assert cluster.image.offsets["g"][TOPIC_ID, 0].offset == 7

    def test_a_leader_that_changed_since_it_was_asked_decides_nothing(
        self, cluster: KafkaTransactionCluster
    ) -> None:
        client = cluster.init()
        cluster.enlist(client, 0)
        own = cluster.own()
        commit = cluster.kafka_end(own, {0: 3}, version=row_of(cluster).version)
        assert cluster.end(replace(commit, leader_epochs=(7,))) == ("stale_leader_epoch",)
        assert cluster.end(replace(commit, leader_epochs=(0,))) == ("",)


class TestExpiry:
    """Names that are not used for long are forgotten, and transactions that are overdue are found."""

    def test_a_forgotten_name_is_gone_with_its_ids(self, cluster: KafkaTransactionCluster) -> None:
        client = cluster.init()
        own = cluster.own()
        forget = c.ForgetProducers(producer_ids=(own[0],), unused_since_ms=WallMs(999))
        assert cluster.do(forget).error is None
        assert "tx" in cluster.image.transactional_ids
        cluster.do(replace(forget, unused_since_ms=WallMs(1000)))
        assert not cluster.image.transactional_ids
        assert not cluster.image.transactional_names
        assert cluster.enlist(client, 0) == ("invalid_producer",)
        assert cluster.init()[0] not in (client[0], own[0])

    def test_an_open_transaction_keeps_its_name(self, cluster: KafkaTransactionCluster) -> None:
        client = cluster.init()
        cluster.enlist(client, 0)
        ids = (cluster.own()[0],)
        cluster.do(c.ForgetProducers(producer_ids=ids, unused_since_ms=WallMs(5000)))
        assert row_of(cluster).is_open

    def test_overdue_ones_are_found(self, cluster: KafkaTransactionCluster) -> None:
        client = cluster.init(timeout_ms=50)
        cluster.init("idle", timeout_ms=1)
        cluster.enlist(client, 0)
        assert [*transactional_ids.overdue(cluster.image, WallMs(1049))] == []
        assert [*transactional_ids.overdue(cluster.image, WallMs(1050))] == [aborted(cluster.own())]

    def test_a_corrected_time_leaves_the_transaction_open(
        self, cluster: KafkaTransactionCluster
    ) -> None:
        cluster.enlist(cluster.init(), 0)
        cluster.do(c.CorrectTime(controller_epoch=1, now_ms=WallMs(0)))
        assert row_of(cluster).began_ms == 1
