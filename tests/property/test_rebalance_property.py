"""What a coordinator works out, taken by the state machine itself: nothing is refused, and everybody gets a share.

Topics come, grow and go underneath; members join, leave, are succeeded, give back in their own time, or not at all
until their patience is tried; REST consumers are dropped in one step with their membership.
"""

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from node.groups.rebalance import (
    Join,
    Leave,
    MemberChange,
    Release,
    effective,
    next_state,
    to_give_back,
    waited_for,
)
from node.groups.subscriptions import Subscriptions
from raft_meta.machine import codec, invariants
from raft_meta.machine import commands as c
from raft_meta.machine.groups.group_rules import PREDECESSORS_LEVEL
from raft_meta.machine.image import Group, GroupMember, PartitionKey
from raft_meta.machine.topics import partition_sets
from tests.support.machine.group_scripts import member
from tests.support.machine.images import GroupCluster, commit_of, consumer_of

SEEDS = st.integers(min_value=0, max_value=1 << 32)
IDS = ("m1", "m2", "m3", "m4")
REST = ("r1", "r2")
TOPICS = ("t", "u", "v")
ASSIGNORS = ("range", "roundrobin", "sticky")


class Story:
    """One group in a cluster, and members as obedient as the dice are."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.remembers = self.rng.random() < 0.7
        self.cluster = GroupCluster(level=PREDECESSORS_LEVEL if self.remembers else 3)
        self.subscriptions = Subscriptions()
        self.topics_made = 1
        self.known: dict[str, tuple[int, set[PartitionKey]]] = {}
        """What each member last heard: its epoch, and what it works on."""

    @property
    def group(self) -> Group | None:
        return self.cluster.image.groups.get("g")

    @property
    def members(self) -> tuple[GroupMember, ...]:
        return self.group.members if self.group else ()

    def step(self) -> None:
        dice = self.rng.random()
        if dice < 0.1:
            self._change_topics()
        elif dice < 0.2:
            self._drop()
        present = {m.member_id for m in self.members if self.rng.random() < 0.7}
        self.take([self._change() for _ in range(self.rng.choice([0, 1, 1, 2]))], present)

    def take(self, changes: list[MemberChange], present: set[str]) -> None:
        """As the coordinator does: work it out from the image, and propose it."""
        self.subscriptions.look(self.cluster.image)
        coming = {change.member.member_id for change in changes if isinstance(change, Join)}
        after = next_state(
            self.group,
            changes,
            self.subscriptions,
            present=present | coming,
            remembers=self.remembers,
        )
        if after is None:
            return
        applied = self.cluster.alter(
            "g", after.generation, after.members, after.left, after.assignor
        )
        assert applied.error is None, applied.error
        assert not invariants.violations(self.cluster.image)
        for m in self.members:
            if m.member_id in present | coming or m.is_rest:
                self.check_heard(m)

    def check_heard(self, m: GroupMember) -> None:
        """Within one epoch, what a member works on only shrinks: else an old heartbeat could give back what is new."""
        epoch, before = self.known.get(m.member_id, (0, set()))
        works_on = set(partition_sets.keys_of(effective(m)))
        assert m.member_epoch >= epoch
        if m.member_epoch == epoch:
            assert works_on <= before
        self.known[m.member_id] = (m.member_epoch, works_on)

    def _change(self) -> MemberChange:
        dice = self.rng.random()
        if dice < 0.35 or not self.members:
            return Join(member=self._settings())
        chosen = self.rng.choice(self.members)
        if dice < 0.5:
            self.known.pop(chosen.member_id, None)
            return Leave(member_id=chosen.member_id)
        epoch = chosen.member_epoch - (self.rng.random() < 0.1)
        return Release(
            member_id=chosen.member_id, member_epoch=epoch, partitions=to_give_back(chosen)
        )

    def _settings(self) -> GroupMember:
        is_rest = self.rng.random() < 0.3
        member_id = self.rng.choice(REST if is_rest else IDS)
        if member_id not in {m.member_id for m in self.members}:
            self.known.pop(member_id, None)
        names = tuple(sorted(self.rng.sample(TOPICS, self.rng.randint(1, 3))))
        made = member(member_id, 0, is_rest=is_rest, topics=names)
        return replace(
            made,
            assignor=self.rng.choice(ASSIGNORS),
            instance_id=None if is_rest else self.rng.choice([None, None, "i"]),
        )

    def _change_topics(self) -> None:
        image = self.cluster.image
        name = self.rng.choice(TOPICS)
        topic = image.topic(name)
        if topic is None:
            self.topics_made += 1
            self.cluster.create(
                ((1, 2, 3),) * self.rng.randint(1, 5),
                name=name,
                topic_id=f"{self.topics_made:032x}",
            )
        elif self.rng.random() < 0.5:
            self.cluster.do(c.DeleteTopic(topic_id=topic.topic_id))
        else:
            self.cluster.do(
                c.AddPartitions(
                    topic_id=topic.topic_id,
                    partition_count=topic.partition_count,
                    placement=((1, 2, 3),),
                )
            )

    def _drop(self) -> None:
        """The consumer and its membership, without a word to the core."""
        instance = self.rng.choice(REST)
        applied = self.cluster.put(consumer_of("g", instance))
        assert applied.error is None
        created = codec.decode_response(applied.response)
        assert isinstance(created, int)
        name = c.ConsumerName(group_id="g", instance=instance, created_index=created)
        dropped = self.cluster.do(
            c.DeleteConsumers(consumers=(name,), **self.cluster.proposer("g"))
        )
        assert dropped.error is None
        self.known.pop(instance, None)

    def commit(self, member_id: str, member_epoch: int, keys: set[PartitionKey]) -> bool:
        """Whether a commit of these partitions is taken; the image stays as it is."""
        if not keys:
            return True
        some = commit_of("g", {0: 1}, member_id=member_id, member_epoch=member_epoch)
        offsets = tuple(
            replace(some.offsets[0], topic_id=topic_id, partition=partition)
            for topic_id, partition in sorted(keys)
        )
        before = self.cluster.image
        applied = self.cluster.commit(replace(some, offsets=offsets))
        self.cluster.image = before
        return codec.decode_response(applied.response) == ("",)

    def settle(self) -> int:
        """Everybody is there and does what it is asked to; how many rounds it took until nothing changed."""
        for rounds in range(20):
            before = self.group
            self.take(
                [
                    Release(
                        member_id=m.member_id,
                        member_epoch=m.member_epoch,
                        partitions=to_give_back(m),
                    )
                    for m in self.members
                ],
                {m.member_id for m in self.members},
            )
            if self.group == before:
                return rounds
        raise AssertionError(f"it goes on for ever: {self.group}")


@settings(max_examples=60)
@given(SEEDS)
def test_nothing_that_the_core_works_out_is_refused(seed: int) -> None:
    story = Story(seed)
    for _ in range(40):
        story.step()


@settings(max_examples=60)
@given(SEEDS)
def test_in_the_end_every_partition_is_worked_on_and_nobody_waits(seed: int) -> None:
    story = Story(seed)
    for _ in range(25):
        story.step()
    assert story.settle() <= 4
    image = story.cluster.image
    worked_on = {key for m in story.members for key in partition_sets.keys_of(effective(m))}
    wanted = {name for m in story.members for name in m.topics}
    assert worked_on == {key for key in image.partitions if image.topics[key[0]].name in wanted}
    for m in story.members:
        assert not waited_for(m)
        assert not to_give_back(m)


@settings(max_examples=30)
@given(SEEDS)
def test_a_partition_is_committed_by_the_one_who_may_work_on_it(seed: int) -> None:
    story = Story(seed)
    for _ in range(25):
        story.step()
        for m in story.members:
            mine = set(partition_sets.keys_of(effective(m)))
            for other in story.members:
                taken = story.commit(other.member_id, other.member_epoch, mine)
                assert taken == (other is m or not mine)
            assert story.commit(m.member_id, m.member_epoch - 1, mine) == (not mine)
