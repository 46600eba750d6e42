"""Random, mostly valid commands for the state machine, also such as confused nodes might propose."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from milena.model.types import WallMs
from raft_meta.machine import codec, transactional_ids
from raft_meta.machine import commands as c
from raft_meta.machine.access import audit
from raft_meta.machine.apply import Applied, apply
from raft_meta.machine.image import Image
from raft_meta.machine.topics import elections, reassignments
from tests.support.machine.access_commands import AccessSource
from tests.support.machine.group_commands import GroupSource
from tests.support.machine.kafka_transaction_commands import KafkaTransactionSource
from tests.support.machine.transaction_commands import TransactionSource

BROKERS = 5
NAMES = ("a", "b", "a.b", "a_b", "c-d", audit.TOPIC)
CONFIGS = (
    ("min.insync.replicas", "1"),
    ("min.insync.replicas", "2"),
    ("min.insync.replicas", "3"),
    ("unclean.leader.election.enable", "true"),
    ("unclean.leader.election.enable", "FALSE"),
    ("retention.ms", "1000"),
    ("retention.ms", "x"),
)


Maker = Callable[[Image], c.Command]


def sometimes(rng: Random, share: float) -> bool:
    return rng.random() < share


@dataclass
class CommandSource:
    """Generates the next command for an image. ``directories`` has the state of the nodes' disks."""

    rng: Random
    directories: dict[int, tuple[str, int]] = field(default_factory=dict)
    topics_made: int = 0

    def __post_init__(self) -> None:
        self.access = AccessSource(self.rng)

    def next(self, image: Image) -> c.Command:
        makers: list[tuple[int, Maker]] = [
            (8, self._register),
            (10, self._unfence),
            (2, self._set_kafka_addresses),
            (6, self._fence),
            (2, self._drain),
            (8, self._elect),
            (4, self._lead),
            (8, self._isr),
            (5, self._give_up),
            (3, self._move),
            (6, self._steps),
            (2, self._step),
            (3, self.create),
            (1, self.delete),
            (1, self._add),
            (2, self._config),
            (1, self._producer),
            (1, self._cluster),
            (8, GroupSource(self.rng).next),
            (6, TransactionSource(self.rng).next),
            (5, self.access.next),
        ]
        weights = [weight for weight, _ in makers]
        return self.rng.choices([maker for _, maker in makers], weights)[0](image)

    def repair(self, image: Image) -> c.Command:
        """Return a command that brings one of three brokers back."""
        broker_id = next(n for n in (1, 2, 3) if n not in image.live_brokers())
        if broker_id not in image.brokers:
            return replace(self._register(image), broker_id=broker_id)
        return c.UnfenceBroker(
            controller_epoch=image.controller_epoch,
            broker_id=broker_id,
            broker_epoch=image.brokers[broker_id].broker_epoch,
        )

    def _broker(self) -> int:
        return self.rng.randint(1, BROKERS)

    def _subset(self, members: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.rng.sample(members, self.rng.randint(1, len(members))))

    def _epoch(self, image: Image, broker_id: int) -> int:
        broker = image.brokers.get(broker_id)
        return (broker.broker_epoch if broker else 0) - sometimes(self.rng, 0.05)

    def _register(self, image: Image) -> c.RegisterBroker:
        broker_id = self._broker()
        directory, last = self.directories.get(broker_id, (f"d{broker_id}", -1))
        if sometimes(self.rng, 0.1):
            directory, last = f"d{self.rng.random()}", -1
        if sometimes(self.rng, 0.9):
            self.directories[broker_id] = (directory, image.index + 1)
        keys = self.rng.sample(sorted(image.partitions), min(3, len(image.partitions)))
        reports = tuple(
            c.ReplicaReport(
                topic_id=topic_id,
                partition=partition,
                is_damaged=sometimes(self.rng, 0.3),
                last_epoch=self.rng.randint(0, 5),
                log_end_offset=self.rng.randint(0, 100),
            )
            for topic_id, partition in keys
            if sometimes(self.rng, 0.5)
        )
        return c.RegisterBroker(
            broker_id=broker_id,
            directory_id=directory,
            last_broker_epoch=last,
            incarnation=1,
            api_url="http://b",
            peer_host="b",
            peer_port=1,
            rack=None,
            feature_min=1,
            feature_max=codec.FEATURE_LEVEL_MAX,
            was_clean_stop=False,
            reports=reports,
        )

    def _set_kafka_addresses(self, image: Image) -> c.Command:
        broker_id = self._broker()
        names = sorted(
            {self.rng.choice(["plain", "external"]) for _ in range(self.rng.randint(0, 2))}
        )
        return c.SetKafkaAddresses(
            broker_id=broker_id,
            broker_epoch=self._epoch(image, broker_id),
            addresses=tuple((name, "b", self.rng.choice([0, 9092, 9093])) for name in names),
        )

    def _unfence(self, image: Image) -> c.Command:
        broker_id = self._broker()
        return c.UnfenceBroker(
            controller_epoch=image.controller_epoch,
            broker_id=broker_id,
            broker_epoch=self._epoch(image, broker_id),
        )

    def _fence(self, image: Image) -> c.Command:
        broker_id = self._broker()
        is_planned = sometimes(self.rng, 0.7)
        return c.FenceBroker(
            controller_epoch=image.controller_epoch,
            broker_id=broker_id,
            broker_epoch=self._epoch(image, broker_id),
            changes=elections.plan_fence(image, broker_id) if is_planned else (),
        )

    def _drain(self, image: Image) -> c.Command:
        broker_id = self._broker()
        return c.DrainBroker(
            controller_epoch=image.controller_epoch,
            broker_id=broker_id,
            broker_epoch=self._epoch(image, broker_id),
            changes=elections.plan_drain(image, broker_id),
        )

    def _elect(self, image: Image) -> c.Command:
        plan = self.rng.choice(
            [elections.plan_elections, elections.plan_preferred, elections.plan_shrinks]
        )
        return c.ElectLeaders(controller_epoch=image.controller_epoch, changes=plan(image))

    def _lead(self, image: Image) -> c.Command:
        """Return a change of leader that no plan would make."""
        if not image.partitions:
            return self.create(image)
        topic_id, partition = self.rng.choice(sorted(image.partitions))
        state = image.partitions[topic_id, partition]
        change = c.LeaderChange(
            topic_id=topic_id,
            partition=partition,
            partition_epoch=state.partition_epoch - sometimes(self.rng, 0.1),
            leader=self.rng.choice([None, self._broker(), *state.replicas]),
            isr=self._subset(state.replicas),
            is_unclean=sometimes(self.rng, 0.3),
        )
        return c.ElectLeaders(controller_epoch=image.controller_epoch, changes=(change,))

    def _isr(self, image: Image) -> c.Command:
        led = sorted(key for key, state in image.partitions.items() if state.leader is not None)
        if not led:
            return self._elect(image)
        topic_id, partition = self.rng.choice(led)
        state = image.partitions[topic_id, partition]
        sender = state.leader or 0
        members = {sender, *self._subset(state.replicas)}
        change = c.IsrChange(
            topic_id=topic_id,
            partition=partition,
            leader_epoch=state.leader_epoch - sometimes(self.rng, 0.05),
            partition_epoch=state.partition_epoch - sometimes(self.rng, 0.05),
            isr=tuple(
                c.IsrMember(broker_id=member, broker_epoch=self._epoch(image, member))
                for member in sorted(members)
            ),
        )
        epoch = image.brokers[sender].broker_epoch
        return c.AlterIsr(broker_id=sender, broker_epoch=epoch, changes=(change,))

    def _give_up(self, image: Image) -> c.Command:
        """Return a command of a broker with a damaged copy, or of a confused one."""
        if not image.partitions:
            return self.create(image)
        key = self.rng.choice(sorted(image.partitions))
        state = image.partitions[key]
        broker_id = self._broker() if sometimes(self.rng, 0.1) else self.rng.choice(state.replicas)
        change = elections.plan_give_up(image, broker_id, key)
        if change is None or sometimes(self.rng, 0.2):
            change = c.LeaderChange(
                topic_id=key[0],
                partition=key[1],
                partition_epoch=state.partition_epoch - sometimes(self.rng, 0.1),
                leader=self.rng.choice([None, state.leader, *state.replicas]),
                isr=self.rng.choice([state.isr, self._subset(state.replicas)]),
                is_unclean=sometimes(self.rng, 0.1),
            )
        return c.GiveUpReplicas(
            broker_id=broker_id, broker_epoch=self._epoch(image, broker_id), changes=(change,)
        )

    def _move(self, image: Image) -> c.Command:
        keys = sorted(image.partitions)
        known = tuple(sorted(image.brokers)) or (1,)
        targets = [
            c.TargetReplicas(
                topic_id=topic_id,
                partition=partition,
                replicas=self._subset((*known, 9) if sometimes(self.rng, 0.05) else known),
                max_concurrent=self.rng.choice([0, 0, 1]),
                throttle_bytes_per_s=self.rng.choice([0, 0, 0, 100, -1]),
            )
            for topic_id, partition in self.rng.sample(keys, min(2, len(keys)))
        ]
        return c.ReassignPartitions(targets=tuple(targets))

    def _steps(self, image: Image) -> c.Command:
        """Return a step of the controller, or a cancellation."""
        plan = reassignments.plan_steps(image)
        if plan.handovers and sometimes(self.rng, 0.7):
            return c.ElectLeaders(controller_epoch=image.controller_epoch, changes=plan.handovers)
        return c.StepReassignments(steps=(*plan.starts, *plan.finishes))

    def _step(self, image: Image) -> c.Command:
        """Return a step of a move that no plan would make."""
        moving = [key for key, _ in reassignments.running(image)]
        keys = moving or sorted(image.partitions)
        if not keys:
            return self.create(image)
        topic_id, partition = self.rng.choice(keys)
        state = image.partitions[topic_id, partition]
        step = c.ReassignmentStep(
            topic_id=topic_id,
            partition=partition,
            partition_epoch=state.partition_epoch - sometimes(self.rng, 0.1),
            kind=self.rng.choice(["start", "finish", "cancel", "cancel", "jump"]),
            leader=self.rng.choice([None, state.leader, *state.replicas]),
        )
        return c.StepReassignments(steps=(step,))

    def _placement(self, image: Image, count: int) -> tuple[tuple[int, ...], ...]:
        known = tuple(sorted(image.brokers)) or (1,)
        factor = min(len(known), self.rng.randint(1, 3))
        return tuple(tuple(self.rng.sample(known, factor)) for _ in range(count))

    def create(self, image: Image) -> c.Command:
        self.topics_made += 1
        return c.CreateTopic(
            topic_id=f"{self.topics_made:032x}",
            name=self.rng.choice(NAMES),
            configs=tuple(self.rng.sample(CONFIGS, self.rng.randint(0, 2))),
            placement=self._placement(image, self.rng.randint(1, 3)),
        )

    def _topic_id(self, image: Image) -> str:
        return self.rng.choice(sorted(image.topics) or ["0" * 32])

    def delete(self, image: Image) -> c.Command:
        return c.DeleteTopic(topic_id=self._topic_id(image))

    def _add(self, image: Image) -> c.Command:
        topic = image.topics.get(self._topic_id(image))
        return c.AddPartitions(
            topic_id=topic.topic_id if topic else "0" * 32,
            partition_count=topic.partition_count if topic else 0,
            placement=self._placement(image, 1),
        )

    def _config(self, image: Image) -> c.Command:
        name, value = self.rng.choice(CONFIGS)
        return c.AlterConfigs(
            topic_id=self._topic_id(image),
            changes=((name, None if sometimes(self.rng, 0.3) else value),),
        )

    def _producer(self, image: Image) -> c.Command:
        if sometimes(self.rng, 0.2):
            ids = tuple(self.rng.sample(range(1, 6), 3))
            since_ms = WallMs(max(0, image.now_ms - self.rng.randint(0, 20)))
            return c.ForgetProducers(producer_ids=ids, unused_since_ms=since_ms)
        name = self.rng.choice([None, "p", "q"])
        is_transactional = name is not None and sometimes(self.rng, 0.5)
        principal = self.rng.choice(["", "User:ann", "User:bob"])
        return c.AllocateProducer(name=name, is_transactional=is_transactional, principal=principal)

    def _cluster(self, image: Image) -> c.Command:
        choices: list[c.Command] = [
            c.ClaimController(broker_id=self._broker()),
            c.UnregisterBroker(broker_id=self._broker()),
            c.SetFeatureLevel(feature_level=self.rng.randint(1, codec.FEATURE_LEVEL_MAX)),
            c.CheckImage(index=image.index, image_hash=codec.image_hash(image)),
            c.ForgetAudited(through=self.rng.randint(0, image.audit_count + 1)),
            c.CorrectTime(
                controller_epoch=image.controller_epoch - self.rng.randint(0, 1),
                now_ms=WallMs(self.rng.randint(0, 10_000)),
            ),
        ]
        return self.rng.choice(choices)


@dataclass
class Proposals:
    """Wraps commands in envelopes of three proposers with different clocks; some commands are sent twice."""

    rng: Random
    sequences: dict[int, int] = field(default_factory=dict)
    last: c.Envelope | None = None

    def wrap(self, command: c.Command) -> c.Envelope:
        if self.last is not None and sometimes(self.rng, 0.05):
            return self.last
        proposer = self.rng.randint(1, 3)
        self.sequences[proposer] = self.sequences.get(proposer, 0) + self.rng.choice([1, 1, 1, 5])
        self.last = c.Envelope(
            proposer=proposer,
            incarnation=1,
            sequence=self.sequences[proposer],
            now_ms=WallMs(self.rng.randint(0, 10_000)),
            command=command,
            principal=self.rng.choice(["", "User:ann"]),
        )
        return self.last


def random_history(seed: int, length: int) -> tuple[list[bytes], list[Applied]]:
    """Return a log with this many commands after the cluster's creation, and the result of each."""
    rng = Random(seed)
    source = CommandSource(rng)
    first: list[c.Command] = [
        c.InitCluster(
            cluster_id="cluster",
            voters=(1, 2, 3),
            feature_level=rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 8, 8]),
        ),
        c.ClaimController(broker_id=1),
    ]

    def command(image: Image) -> c.Command:
        return first.pop(0) if first else source.next(image)

    return _history(rng, length, command)


def random_group_history(seed: int, length: int) -> tuple[list[bytes], list[Applied]]:
    """Return a log mostly about groups, in a cluster of three nodes that mostly works."""
    rng = Random(seed)
    return _history(rng, length, _well(rng, GroupSource(rng).next, level=3))


def random_transaction_history(seed: int, length: int) -> tuple[list[bytes], list[Applied]]:
    """Return a log mostly about transactions and the group offsets in them, in a cluster that mostly works."""
    rng = Random(seed)
    groups, transactions = GroupSource(rng), TransactionSource(rng)

    def command(image: Image) -> c.Command:
        return (groups if sometimes(rng, 0.3) else transactions).next(image)

    return _history(rng, length, _well(rng, command, level=6))


def random_kafka_transaction_history(seed: int, length: int) -> tuple[list[bytes], list[Applied]]:
    """Return a log mostly about transactional ids of Kafka clients, in a cluster that mostly works."""
    rng = Random(seed)
    kafka = KafkaTransactionSource(rng)
    others = [GroupSource(rng).next, TransactionSource(rng).next]

    def command(image: Image) -> c.Command:
        if image.feature_level >= transactional_ids.LEVEL and not sometimes(rng, 0.15):
            return kafka.next(image)
        return rng.choice(others)(image)

    return _history(rng, length, _well(rng, command, level=transactional_ids.LEVEL))


def _well(rng: Random, mostly: Maker, *, level: int) -> Maker:
    """Return a function that mostly makes commands of one kind, on a few topics in a cluster of three."""
    source = CommandSource(rng)

    def command(image: Image) -> c.Command:
        at = image.index
        if at < 2:
            init = c.InitCluster(cluster_id="cluster", voters=(1, 2, 3), feature_level=level)
            return init if at == 0 else c.ClaimController(broker_id=1)
        if len(image.live_brokers()) < 3 and (at < 10 or sometimes(rng, 0.5)):
            return source.repair(image)
        if len(image.topics) < 2:
            return source.create(image)
        if sometimes(rng, 0.02):
            return source.delete(image)
        if sometimes(rng, 0.07):
            return source.next(image)
        return mostly(image)

    return command


def _history(rng: Random, length: int, command: Maker) -> tuple[list[bytes], list[Applied]]:
    proposals = Proposals(rng)
    image, log, results = Image(), [], []
    for _ in range(length):
        envelope = proposals.wrap(command(image))
        log.append(codec.encode_envelope(envelope))
        results.append(apply(image, image.index + 1, envelope))
        image = results[-1].image
    return log, results
