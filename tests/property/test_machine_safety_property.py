"""Promise 1 at the level of metadata: an acks=all record is never lost while one in-sync replica's disk survives.

Around the real state machine and the controller's real plans stands a toy of one partition's replication: logs are
lists, followers truncate to the common prefix and copy, the high watermark is the least end of the isr and moves only
with min.insync.replicas. Disks lie (a recovery may cut anything, but says so), directories vanish, processes die at
any time, sessions end late, and ISR wishes arrive when everything has changed. Bits rot in copies that others have
sound; who finds out gives its copy up. The partition moves between brokers, is
called back half-way, and a broker whose replica was removed deletes its log sooner or later.

Held after every election without loss being allowed: if one of those who could be elected still has every committed
record, then the leader has.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milena.model.errors import NotEnoughReplicasError
from milena.model.types import WallMs
from raft_meta.machine import commands as c
from raft_meta.machine import invariants
from raft_meta.machine.apply import apply
from raft_meta.machine.image import Image, Partition
from raft_meta.machine.topics import configs, elections, reassignments

BROKERS = (1, 2, 3, 4, 5)
TOPIC = "0" * 32
KEY = (TOPIC, 0)
Step = Callable[[], None]
Record = tuple[int, int]
"""(leader epoch, unique number)"""


@dataclass
class Node:
    """One broker's disk and process."""

    broker_id: int
    log: list[Record] = field(default_factory=list)
    synced_end: int = 0
    """What the node has said to be on its disk: an honest one keeps it."""
    directory: str = "first"
    stored_epoch: int = -1
    is_up: bool = False
    epoch: int = -1
    """Under which the process that is up has registered; -1: not yet."""
    has_cut: bool = False
    """Recovery cut something, and no registration has reported it yet. Survives restarts."""


def common_prefix(left: list[Record], right: list[Record]) -> int:
    length = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        length += 1
    return length


class Replication:
    """One partition of three replicas or so, and all that may happen to it; the seed decides."""

    def __init__(self, seed: int, *, is_disk_honest: bool) -> None:
        self.is_disk_honest = is_disk_honest
        self.rng = Random(seed)
        self.image = Image()
        self.nodes = {broker_id: Node(broker_id) for broker_id in BROKERS}
        self.sequence = self.records = self.given_up = 0
        self.committed: list[Record] = []
        self.heard: dict[int, tuple[int, int, int]] = {}
        """Followers' ends as told to a leader: (leader epoch, broker epoch, end)."""
        self.wishes: list[c.AlterIsr] = []
        """Under way; they arrive in any order, or never."""

    def propose(self, command: c.Command) -> None:
        self.sequence += 1
        before = self.image.partition(*KEY)
        envelope = c.Envelope(
            proposer=1,
            incarnation=1,
            sequence=self.sequence,
            now_ms=WallMs(0),
            command=command,
        )
        self.image = apply(self.image, self.image.index + 1, envelope).image
        if before is not None and before.leader_epoch != self.partition.leader_epoch:
            self.check_leavers(before)
            self.check_election(before)
        elif before is not None:
            self.check_joined({*self.partition.isr} - {*before.isr})

    def check_leavers(self, before: Partition) -> None:
        """A move takes nobody out who holds the records, unless enough in sync are left."""
        after = self.partition
        holders = {*before.isr, *before.eligible}
        if not holders <= {*after.replicas}:
            min_insync = configs.min_insync(self.image.topics[TOPIC])
            assert len(after.isr) >= min_insync, (before, after)

    def check_election(self, before: Partition) -> None:
        """The leader has every committed record if anybody in sync had.

        One that died unnoticed and is elected in its absence is not judged: it cannot act on it, since it must
        register first, which takes the leadership away again.
        """
        leader = self.leader()
        if leader is None:
            return
        candidates = {*before.isr, *before.eligible}
        assert leader.broker_id in candidates
        survivors = [broker for broker in candidates if self.has_committed(broker)]
        if survivors:
            assert self.has_committed(leader.broker_id), f"{survivors} had it all: {before}"
        else:
            # Every disk in sync has failed: what is left is the truth from now on.
            del self.committed[common_prefix(leader.log, self.committed) :]

    def check_joined(self, members: set[int]) -> None:
        """Who joins has every committed record, unless it died and nobody knows yet."""
        for member in members:
            assert self.has_committed(member) or not self.is_in_charge(self.nodes[member])

    def has_committed(self, broker_id: int) -> bool:
        return self.nodes[broker_id].log[: len(self.committed)] == self.committed

    @property
    def partition(self) -> Partition:
        return self.image.partitions[KEY]

    def birth(self) -> None:
        self.propose(c.InitCluster(cluster_id="c", voters=(1, 2, 3), feature_level=6))
        self.propose(c.ClaimController(broker_id=1))
        for broker_id in BROKERS:
            self.start(self.nodes[broker_id])
            self.register(self.nodes[broker_id])
        # Now and then not all of its brokers are alive when the partition is made.
        absent = self.rng.sample((1, 2, 3), self.rng.choice([0, 0, 1, 2]))
        for broker_id in BROKERS:
            if broker_id not in absent:
                self.unfence(self.nodes[broker_id])
        self.propose(
            c.CreateTopic(
                topic_id=TOPIC,
                name="t",
                configs=(("min.insync.replicas", self.rng.choice("123")),),
                placement=((1, 2, 3),),
            )
        )

    # --- processes and disks ---

    def any_node(self) -> Node:
        """Mostly one with a replica, or with a part in the move under way."""
        named = [broker_id for broker_id in BROKERS if self.partition.names(broker_id)]
        return self.nodes[self.rng.choice(BROKERS if self.rng.random() < 0.1 else named)]

    def start(self, node: Node) -> None:
        node.is_up, node.epoch = True, -1

    def kill(self) -> None:
        self.any_node().is_up = False

    def power_cut(self) -> None:
        for node in self.nodes.values():
            node.is_up = False

    def restart(self) -> None:
        """Recovery may cut a few records or many, and remembers on disk that it has."""
        node = self.any_node()
        if not node.is_up or self.rng.random() < 0.2:
            self.recover(node)

    def recover(self, node: Node) -> None:
        cut = self.rng.choice([0, 0, 0, 1, 3, 1000])
        if self.is_disk_honest:
            cut = min(cut, len(node.log) - node.synced_end)
        if cut and node.log:
            del node.log[-cut:]
            node.synced_end = min(node.synced_end, len(node.log))
            node.has_cut = True
        self.start(node)

    def outage(self) -> None:
        """Everything goes down, and comes back one after the other while the controller elects."""
        self.power_cut()
        nodes = [node for node in self.nodes.values() if self.partition.names(node.broker_id)]
        for node in self.rng.sample(nodes, self.rng.randint(1, len(nodes))):
            if self.rng.random() < 0.1:
                self.lose_directory()
            self.return_soon(self.nodes[node.broker_id])
            if self.rng.random() < 0.2:
                self.nodes[node.broker_id].is_up = False
                self.end_session(node.broker_id)
            self.elect()

    def return_soon(self, node: Node) -> None:
        self.recover(node)
        self.register(node)
        if self.rng.random() < 0.3:
            self.start(node)
            self.register(node)
        self.unfence(node)

    def lose_directory(self) -> None:
        node = self.any_node()
        if self.is_disk_honest:
            return
        self.nodes[node.broker_id] = Node(node.broker_id, directory=node.directory + "+")

    def come_back(self) -> None:
        node = self.any_node()
        if node.is_up and node.epoch == -1:
            self.register(node, is_stored=self.rng.random() < 0.9)

    def register(self, node: Node, *, is_stored: bool = True) -> None:
        report = c.ReplicaReport(
            topic_id=TOPIC,
            partition=0,
            is_damaged=False,
            last_epoch=node.log[-1][0] if node.log else -1,
            log_end_offset=len(node.log),
        )
        self.propose(
            c.RegisterBroker(
                broker_id=node.broker_id,
                directory_id=node.directory,
                last_broker_epoch=node.stored_epoch,
                incarnation=1,
                api_url="u",
                peer_host="h",
                peer_port=1,
                rack=None,
                feature_min=1,
                feature_max=6,
                was_clean_stop=False,
                reports=(report,) if node.has_cut else (),
            )
        )
        broker = self.image.brokers.get(node.broker_id)
        if broker is None or broker.broker_epoch != self.image.index:
            return
        # Crashing before the epoch is on disk also loses the note that the report was made.
        if is_stored:
            node.epoch = node.stored_epoch = broker.broker_epoch
            node.has_cut = False
        else:
            node.is_up = False

    def unfence(self, node: Node) -> None:
        if node.is_up and node.epoch != -1:
            self.propose(
                c.UnfenceBroker(
                    controller_epoch=1, broker_id=node.broker_id, broker_epoch=node.epoch
                )
            )

    def rot(self) -> None:
        """A copy is found damaged, and ends before the damage once nobody counts on it; or its broker dies before that.

        What was proposed may arrive when everything has changed.
        """
        node = self.any_node()
        if not self.is_in_charge(node) or not node.log:
            return
        plan = elections.plan_give_up(self.image, node.broker_id, KEY)
        if plan is None:
            return
        if self.rng.random() < 0.3:
            for _ in range(self.rng.randint(1, 4)):
                self.rng.choice([self.elect, self.fence, self.wish, self.commit, self.fetch])()
        before = self.partition.leader_epoch
        self.propose(
            c.GiveUpReplicas(broker_id=node.broker_id, broker_epoch=node.epoch, changes=(plan,))
        )
        members = {*self.partition.isr, *self.partition.eligible}
        if self.partition.leader_epoch == before or node.broker_id in members:
            return
        self.given_up += 1
        if node.log and self.rng.random() < 0.9:
            del node.log[self.rng.randrange(len(node.log)) :]
            node.synced_end = min(node.synced_end, len(node.log))
        else:
            node.is_up = False

    # --- the controller ---

    def unfence_any(self) -> None:
        self.unfence(self.any_node())

    def fence(self) -> None:
        """A session ends; now and then of a live broker, or under a plan that came too late."""
        node = self.any_node()
        if node.is_up and self.rng.random() < 0.8:
            return
        self.end_session(node.broker_id, is_planned=self.rng.random() < 0.8)

    def end_session(self, broker_id: int, *, is_planned: bool = True) -> None:
        self.propose(
            c.FenceBroker(
                controller_epoch=1,
                broker_id=broker_id,
                broker_epoch=self.image.brokers[broker_id].broker_epoch,
                changes=elections.plan_fence(self.image, broker_id) if is_planned else (),
            )
        )

    def drain(self) -> None:
        broker_id = self.any_node().broker_id
        self.propose(
            c.DrainBroker(
                controller_epoch=1,
                broker_id=broker_id,
                broker_epoch=self.image.brokers[broker_id].broker_epoch,
                changes=elections.plan_drain(self.image, broker_id),
            )
        )

    def elect(self) -> None:
        self.propose(
            c.ElectLeaders(controller_epoch=1, changes=elections.plan_elections(self.image))
        )

    def balance(self) -> None:
        plan = self.rng.choice([elections.plan_preferred, elections.plan_shrinks])
        self.propose(c.ElectLeaders(controller_epoch=1, changes=plan(self.image)))

    def configure(self) -> None:
        changes = (("min.insync.replicas", self.rng.choice("123")),)
        self.propose(c.AlterConfigs(topic_id=TOPIC, changes=changes))

    # --- moves ---

    def move(self) -> None:
        replicas = tuple(self.rng.sample(BROKERS, self.rng.choice([1, 2, 3, 3, 3])))
        target = c.TargetReplicas(
            topic_id=TOPIC,
            partition=0,
            replicas=replicas,
            max_concurrent=0,
            throttle_bytes_per_s=0,
        )
        self.propose(c.ReassignPartitions(targets=(target,)))

    def advance(self) -> None:
        """What the controller does next; a finish may come without the handover before it."""
        plan = reassignments.plan_steps(self.image)
        if plan.handovers and self.rng.random() < 0.5:
            self.propose(c.ElectLeaders(controller_epoch=1, changes=plan.handovers))
            return
        finishes = [
            c.ReassignmentStep(
                topic_id=TOPIC,
                partition=0,
                partition_epoch=change.partition_epoch,
                kind=reassignments.FINISH,
                leader=change.leader,
            )
            for change in plan.handovers
        ]
        self.propose(c.StepReassignments(steps=(*plan.starts, *plan.finishes, *finishes)))

    def hurry(self) -> None:
        """Everybody comes back, or nearly, and catches up with the leader, so that a move gets somewhere."""
        self.elect()
        for node in self.nodes.values():
            if self.partition.names(node.broker_id) and self.rng.random() < 0.9:
                if not node.is_up or node.epoch == -1:
                    self.return_soon(node)
                self.unfence(node)
                self.fetch_to(node, 1000)
        self.commit()
        self.wish()
        for _ in range(self.rng.randint(1, 3)):
            self.advance()

    def cancel(self) -> None:
        if self.partition.moving is not None:
            try:
                step = reassignments.plan_cancel(self.image, KEY)
            except NotEnoughReplicasError:
                return
            self.propose(c.StepReassignments(steps=(step,)))

    def clean_up(self) -> None:
        """A broker has seen that it holds no replica any more."""
        for node in self.nodes.values():
            if node.is_up and node.broker_id not in self.partition.replicas:
                node.log, node.synced_end, node.has_cut = [], 0, False

    # --- the partition ---

    def leader(self) -> Node | None:
        """The leader, if it is up and in the life that was elected."""
        if self.partition.leader is None:
            return None
        node = self.nodes[self.partition.leader]
        return node if self.is_in_charge(node) else None

    def is_in_charge(self, node: Node) -> bool:
        return node.is_up and node.epoch == self.image.brokers[node.broker_id].broker_epoch

    def append(self) -> None:
        node = self.leader()
        if node is not None:
            self.records += 1
            node.log.append((self.partition.leader_epoch, self.records))

    def fetch(self) -> None:
        """A follower truncates to the common prefix, copies a few records or all, and acknowledges its end."""
        self.fetch_to(self.any_node(), self.rng.choice([0, 1, 1000]))

    def fetch_to(self, node: Node, count: int) -> None:
        leader = self.leader()
        if leader is None or node is leader or not node.is_up or node.epoch == -1:
            return
        if node.broker_id not in self.partition.replicas:
            return
        common = common_prefix(leader.log, node.log)
        end = max(len(node.log), common) + count
        node.log[common:] = leader.log[common:end]
        node.synced_end = len(node.log)
        if node.epoch == self.image.brokers[node.broker_id].broker_epoch:
            self.heard[node.broker_id] = (self.partition.leader_epoch, node.epoch, len(node.log))

    def end_of(self, broker_id: int) -> int:
        """What the leader knows of a follower's end, in this epoch and under its live broker epoch."""
        leader_epoch, broker_epoch, end = self.heard.get(broker_id, (-1, -1, -1))
        is_current = leader_epoch == self.partition.leader_epoch
        is_alive = broker_epoch == self.image.brokers[broker_id].broker_epoch
        return end if is_current and is_alive else -1

    def commit(self) -> None:
        leader, isr = self.leader(), self.partition.isr
        min_insync = int(self.image.topics[TOPIC].configs["min.insync.replicas"])
        if leader is None or len(isr) < min_insync:
            return
        leader.synced_end = len(leader.log)
        # Whoever is about to join counts already: the wish may have been granted.
        union = {*isr, *self.wished()} - {leader.broker_id}
        others = [self.end_of(member) for member in union]
        watermark = min([len(leader.log), *others])
        if watermark > len(self.committed):
            assert leader.log[: len(self.committed)] == self.committed
            self.committed = leader.log[:watermark]

    def wish(self) -> None:
        """The leader wants another isr: whoever joins has caught up with all that is committed."""
        leader = self.leader()
        if leader is None:
            return
        wanted = {leader.broker_id}
        for broker_id in self.partition.replicas:
            is_caught_up = self.end_of(broker_id) >= len(self.committed)
            stays = broker_id in self.partition.isr and self.rng.random() < 0.8
            if stays or (is_caught_up and self.rng.random() < 0.8):
                wanted.add(broker_id)
        change = c.IsrChange(
            topic_id=TOPIC,
            partition=0,
            leader_epoch=self.partition.leader_epoch,
            partition_epoch=self.partition.partition_epoch,
            isr=tuple(
                c.IsrMember(broker_id=member, broker_epoch=self.image.brokers[member].broker_epoch)
                for member in sorted(wanted)
            ),
        )
        self.wishes.append(
            c.AlterIsr(broker_id=leader.broker_id, broker_epoch=leader.epoch, changes=(change,))
        )
        chance = self.rng.random()
        if chance < 0.1:
            # The wish is overtaken by a restart of whoever it is about.
            self.return_soon(self.any_node())
        if chance < 0.8:
            self.wish_arrives()

    def wished(self) -> set[int]:
        """Members of the wishes that may yet be granted."""
        now = (self.partition.leader_epoch, self.partition.partition_epoch)
        changes = [change for wish in self.wishes for change in wish.changes]
        return {
            member.broker_id
            for change in changes
            if (change.leader_epoch, change.partition_epoch) == now
            for member in change.isr
        }

    def wish_arrives(self) -> None:
        if self.wishes:
            self.propose(self.wishes.pop(self.rng.randrange(-min(len(self.wishes), 3), 0)))

    def step(self) -> None:
        steps: list[tuple[int, Step]] = [
            (15, self.append),
            (30, self.fetch),
            (20, self.commit),
            (10, self.wish),
            (4, self.wish_arrives),
            (3, self.kill),
            (1, self.power_cut),
            (2, self.outage),
            (8, self.restart),
            (10, self.come_back),
            (10, self.unfence_any),
            (5, self.fence),
            (1, self.drain),
            (10, self.elect),
            (2, self.balance),
            (2, self.lose_directory),
            (1, self.configure),
            (6, self.move),
            (12, self.advance),
            (1, self.cancel),
            (15, self.clean_up),
            (4, self.hurry),
            (4, self.rot),
        ]
        weights = [weight for weight, _ in steps]
        self.rng.choices([step for _, step in steps], weights)[0]()
        assert not invariants.violations(self.image)
        if self.is_disk_honest:
            members = {*self.partition.isr, *self.partition.eligible}
            assert all(self.has_committed(member) for member in members)


@pytest.mark.deep
@settings(max_examples=300, deadline=None)
@given(st.integers(min_value=0, max_value=1 << 32), st.booleans())
def test_a_committed_record_lives_as_long_as_one_in_sync_disk(
    seed: int, is_disk_honest: bool
) -> None:
    replication = Replication(seed, is_disk_honest=is_disk_honest)
    replication.birth()
    for _ in range(300):
        replication.step()
