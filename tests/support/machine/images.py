"""Small images for tests, made only by commands."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from milena.model.errors import MilenaError
from milena.model.types import WallMs
from raft_meta.machine import codec
from raft_meta.machine import commands as c
from raft_meta.machine.apply import Applied, apply
from raft_meta.machine.groups.coordinators import coordinator_of
from raft_meta.machine.image import (
    ClassicGroup,
    ClassicMember,
    GroupMember,
    Image,
    PartitionKey,
    RestConsumer,
    TransactionExtent,
    TransactionKey,
)

TOPIC_ID = "0" * 31 + "1"


def register(broker_id: int, *, rack: str | None = None, last: int = -1) -> c.RegisterBroker:
    return c.RegisterBroker(
        broker_id=broker_id,
        directory_id=f"d{broker_id}",
        last_broker_epoch=last,
        incarnation=1,
        api_url=f"http://broker-{broker_id}:8082",
        peer_host=f"broker-{broker_id}",
        peer_port=7082,
        rack=rack,
        feature_min=1,
        feature_max=codec.FEATURE_LEVEL_MAX,
        was_clean_stop=False,
        reports=(),
    )


class Cluster:
    """An image and the proposer of its commands; ``do`` applies a command and keeps the resulting image."""

    def __init__(self, racks: Sequence[str | None] = (), *, level: int = 1) -> None:
        self.image = Image()
        self.sequence = 0
        self.do(c.InitCluster(cluster_id="cluster", voters=(1, 2, 3), feature_level=level))
        self.do(c.ClaimController(broker_id=1))
        for broker_id, rack in enumerate(racks, 1):
            self.do(register(broker_id, rack=rack))
            self.unfence(broker_id)

    def envelope(self, command: c.Command) -> c.Envelope:
        self.sequence += 1
        return c.Envelope(
            proposer=9,
            incarnation=1,
            sequence=self.sequence,
            now_ms=WallMs(1000),
            command=command,
        )

    def apply(self, envelope: c.Envelope) -> Applied:
        applied = apply(self.image, self.image.index + 1, envelope)
        self.image = applied.image
        return applied

    def do(self, command: c.Command) -> Applied:
        return self.apply(self.envelope(command))

    def unfence(self, broker_id: int) -> Applied:
        epoch = self.image.brokers[broker_id].broker_epoch
        return self.do(c.UnfenceBroker(controller_epoch=1, broker_id=broker_id, broker_epoch=epoch))

    def create(
        self,
        placement: tuple[tuple[int, ...], ...],
        *,
        name: str = "t",
        topic_id: str = TOPIC_ID,
        configs: tuple[tuple[str, str], ...] = (),
    ) -> Applied:
        return self.do(
            c.CreateTopic(topic_id=topic_id, name=name, configs=configs, placement=placement)
        )


class GroupCluster(Cluster):
    """Three live brokers at the feature level of groups, a topic ``t`` of four partitions, and group coordinators."""

    def __init__(self, *, level: int = 3) -> None:
        super().__init__([None] * 3, level=level)
        self.create(((1, 2, 3),) * 4)

    def proposer(self, group_id: str) -> dict[str, int]:
        """Return the fields of a command that name its proposer: the coordinator of the group."""
        broker_id = coordinator_of(self.image, group_id)
        assert broker_id is not None
        return {"broker_id": broker_id, "broker_epoch": self.image.brokers[broker_id].broker_epoch}

    def versioned_proposer(self, group_id: str) -> dict[str, int]:
        """Return the fields of ``proposer``, and the version of the set of coordinators."""
        return {**self.proposer(group_id), "coordinators_version": self.image.coordinators_version}

    def alter(
        self,
        group_id: str,
        generation: int,
        members: Iterable[GroupMember] = (),
        left: tuple[str, ...] = (),
        assignor: str = "sticky",
    ) -> Applied:
        group = self.image.groups.get(group_id)
        command = c.AlterGroup(
            group_id=group_id,
            version=group.version if group else 0,
            generation=generation,
            assignor=assignor,
            members=tuple(members),
            left=left,
            **self.proposer(group_id),
        )
        return self.do(command)

    def commit(self, *commits: c.GroupCommit) -> Applied:
        version = self.image.coordinators_version
        present = tuple(replace(commit, coordinators_version=version) for commit in commits)
        return self.do(c.CommitOffsets(commits=present, **self.proposer(commits[0].group_id)))

    def put(self, consumer: RestConsumer, *, is_new: bool = True) -> Applied:
        by = self.versioned_proposer(consumer.group_id)
        return self.do(c.PutConsumer(is_new=is_new, consumer=consumer, **by))


class ClassicCluster(GroupCluster):
    """As ``GroupCluster``, at the feature level of classic groups."""

    def __init__(self, *, level: int = 12) -> None:
        super().__init__(level=level)

    def finish(
        self, group_id: str, generation: int, classic: ClassicGroup, *, version: int | None = None
    ) -> Applied:
        """Propose a finished generation of a classic group."""
        group = self.image.groups.get(group_id)
        present = group.version if group else 0
        return self.do(
            c.PutClassicGroup(
                group_id=group_id,
                version=present if version is None else version,
                generation=generation,
                classic=classic,
                **self.proposer(group_id),
            )
        )


class TransactionCluster(GroupCluster):
    """Like ``GroupCluster``, at the feature level of transactions or a later one."""

    def __init__(self, *, level: int = 6) -> None:
        super().__init__(level=level)

    def begin(self, name: str | None = None) -> TransactionKey:
        """Begin a transaction; return its key."""
        answer = codec.decode_response(self.do(c.AllocateProducer(name=name)).response)
        assert isinstance(answer, tuple)
        producer_id, epoch = answer
        return int(producer_id), int(epoch)

    def end(self, *ends: c.TransactionEnd) -> object:
        """Return the response to each of them."""
        return codec.decode_response(self.do(c.EndTransactions(ends=ends)).response)

    def finish(self, transaction: TransactionKey, *partitions: int) -> object:
        """Finish the markers of these partitions of ``t``; return how many of them had an ending of the transaction."""
        markers = tuple(
            c.FinishedMarker(
                topic_id=TOPIC_ID,
                partition=partition,
                producer_id=transaction[0],
                producer_epoch=transaction[1],
            )
            for partition in partitions
        )
        return codec.decode_response(self.do(c.FinishMarkers(markers=markers)).response)


class KafkaTransactionCluster(TransactionCluster):
    """As ``TransactionCluster``, at the feature level of transactional ids of Kafka clients."""

    def __init__(self, *, level: int = 12) -> None:
        super().__init__(level=level)

    def try_init(
        self,
        name: str = "tx",
        *,
        client: TransactionKey = (-1, -1),
        timeout_ms: int = 60_000,
    ) -> MilenaError | None:
        """Begin as a client; return the refusal."""
        command = c.InitTransactionalId(
            name=name,
            timeout_ms=timeout_ms,
            producer_id=client[0],
            producer_epoch=client[1],
            principal="",
        )
        self._answer = self.do(command)
        return self._answer.error

    def init(
        self,
        name: str = "tx",
        *,
        client: TransactionKey = (-1, -1),
        timeout_ms: int = 60_000,
    ) -> TransactionKey:
        """Begin as a client; return its producer id and epoch."""
        assert self.try_init(name, client=client, timeout_ms=timeout_ms) is None
        answer = codec.decode_response(self._answer.response)
        assert isinstance(answer, tuple)
        producer_id, epoch = answer
        return int(producer_id), int(epoch)

    def client(self, name: str = "tx") -> TransactionKey:
        """Return the present producer id and epoch of the client."""
        row = self.image.transactional_ids[name]
        return row.producer_id, row.producer_epoch

    def own(self, name: str = "tx") -> TransactionKey:
        """Return the identity of the present transaction in logs."""
        own = self.image.producers[self.image.producer_names[name]]
        return own.producer_id, own.producer_epoch

    def enlistment(
        self,
        client: TransactionKey,
        name: str = "tx",
        *,
        partitions: tuple[PartitionKey, ...] = (),
        groups: tuple[str, ...] = (),
        offsets: tuple[c.GroupCommit, ...] = (),
    ) -> c.Enlistment:
        return c.Enlistment(
            name=name,
            producer_id=client[0],
            producer_epoch=client[1],
            partitions=partitions,
            groups=groups,
            offsets=offsets,
        )

    def enlist_all(self, *enlistments: c.Enlistment) -> object:
        """Return the response to each of them."""
        applied = self.do(c.EnlistInTransactions(enlistments=enlistments))
        return codec.decode_response(applied.response)

    def enlist(self, client: TransactionKey, *partitions: int, name: str = "tx") -> object:
        """Enlist partitions of ``t``."""
        keys = tuple((TOPIC_ID, partition) for partition in partitions)
        return self.enlist_all(self.enlistment(client, name, partitions=keys))

    def stage(self, client: TransactionKey, commit: c.GroupCommit, name: str = "tx") -> object:
        """Enlist a group, and stage offsets of it."""
        return self.enlist_all(
            self.enlistment(client, name, groups=(commit.group_id,), offsets=(commit,))
        )

    def kafka_end(
        self,
        own: TransactionKey,
        ends: dict[int, int],
        *,
        version: int,
        raises_client: bool = False,
    ) -> c.TransactionEnd:
        """Return the commit of a transaction by its client."""
        return replace(committed(own, ends), version=version, raises_client=raises_client)

    def commit_kafka(
        self,
        ends: dict[int, int],
        *,
        name: str = "tx",
        version: int | None = None,
        raises_client: bool = False,
    ) -> object:
        """Commit the present transaction; ``ends``: end offset by partition of ``t``."""
        present = self.image.transactional_ids[name].version
        end = self.kafka_end(
            self.own(name),
            ends,
            version=present if version is None else version,
            raises_client=raises_client,
        )
        return self.end(end)

    def end_kafka(self, own: TransactionKey, *, version: int) -> object:
        """Abort a transaction as its client."""
        return self.end(replace(aborted(own), version=version))

    def finish_classic(self, group_id: str, generation: int, member_id: str) -> None:
        """Let a classic group of one member finish a generation."""
        group = self.image.groups.get(group_id)
        one = ClassicMember(
            member_id=member_id,
            instance_id=None,
            client_id="c",
            host="h",
            session_ms=10_000,
            rebalance_ms=10_000,
            assignment=b"",
        )
        classic = ClassicGroup(
            protocol_type="consumer",
            protocol="range",
            leader=member_id,
            members=(one,),
            has_assignments=True,
        )
        applied = self.do(
            c.PutClassicGroup(
                group_id=group_id,
                version=group.version if group else 0,
                generation=generation,
                classic=classic,
                **self.proposer(group_id),
            )
        )
        assert applied.error is None, applied.error


def extent_of(partition: int, end_offset: int, base_offset: int = -1) -> TransactionExtent:
    """Return the extent of a transaction in a partition of ``t``."""
    return TransactionExtent(
        topic_id=TOPIC_ID, partition=partition, base_offset=base_offset, end_offset=end_offset
    )


def committed(
    transaction: TransactionKey,
    ends: dict[int, int],
    *offsets: c.GroupCommit,
    is_keyed: bool = False,
) -> c.TransactionEnd:
    """Return a commit of the writes to ``t``: their end offset, by partition."""
    return c.TransactionEnd(
        producer_id=transaction[0],
        producer_epoch=transaction[1],
        is_commit=True,
        is_keyed=is_keyed,
        extents=tuple(extent_of(partition, end) for partition, end in ends.items()),
        offsets=offsets,
    )


def aborted(transaction: TransactionKey) -> c.TransactionEnd:
    """Return an abort."""
    return c.TransactionEnd(
        producer_id=transaction[0],
        producer_epoch=transaction[1],
        is_commit=False,
        is_keyed=False,
        extents=(),
        offsets=(),
    )


def commit_of(
    group_id: str,
    offsets: dict[int, int],
    *,
    member_id: str | None = None,
    member_epoch: int = -1,
    metadata: str = "",
) -> c.GroupCommit:
    """Return a commit of offsets in ``t``, by partition."""
    return c.GroupCommit(
        group_id=group_id,
        member_id=member_id,
        member_epoch=member_epoch,
        offsets=tuple(
            c.OffsetCommit(
                topic_id=TOPIC_ID,
                partition=partition,
                offset=offset,
                leader_epoch=-1,
                metadata=metadata,
            )
            for partition, offset in offsets.items()
        ),
    )


def consumer_of(group_id: str, instance: str) -> RestConsumer:
    return RestConsumer(
        group_id=group_id,
        instance=instance,
        created_index=0,
        format="binary",
        auto_offset_reset="latest",
        is_auto_commit=True,
        fetch_min_bytes=-1,
        request_timeout_ms=1000,
    )
