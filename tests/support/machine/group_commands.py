"""Random commands about groups, offsets and REST consumers, from correct and confused coordinators."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from milena.model.types import WallMs
from raft_meta.machine import commands as c
from raft_meta.machine.groups.coordinators import coordinator_of
from raft_meta.machine.image import (
    Group,
    GroupMember,
    Image,
    PartitionKey,
    PartitionSet,
    RestConsumer,
)
from raft_meta.machine.topics import partition_sets as sets
from tests.support.machine.group_scripts import member as member_of

GROUPS = ("g", "h", "tool")
MEMBERS = ("a", "b", "c", "d")


Maker = Callable[[Image, str], c.Command]


@dataclass
class GroupSource:
    """Generates the next command for an image."""

    rng: Random

    def next(self, image: Image) -> c.Command:
        makers: list[tuple[int, Maker]] = [
            (5, self._join),
            (12, self._reconcile),
            (2, self._leave),
            (3, self._confused),
            (10, self._commit),
            (3, self._expire),
            (1, self._delete),
            (4, self._consumer),
            (2, self._drop),
        ]
        weights = [weight for weight, _ in makers]
        maker = self.rng.choices([maker for _, maker in makers], weights)[0]
        return maker(image, self.rng.choice(GROUPS))

    def _sometimes(self, share: float) -> bool:
        return self.rng.random() < share

    def _by(self, image: Image, group_id: str) -> dict[str, int]:
        sender = coordinator_of(image, group_id) or 1
        if self._sometimes(0.03):
            sender = self.rng.choice(sorted(image.brokers) or [1])
        broker = image.brokers.get(sender)
        epoch = (broker.broker_epoch if broker else 0) - self._sometimes(0.02)
        return {"broker_id": sender, "broker_epoch": epoch}

    def _version(self, image: Image) -> int:
        return image.coordinators_version - self._sometimes(0.03)

    # --- what a coordinator does ---

    def _alter(
        self,
        image: Image,
        group_id: str,
        generation: int,
        members: list[GroupMember],
        left: tuple[str, ...] = (),
    ) -> c.Command:
        group = image.groups.get(group_id)
        return c.AlterGroup(
            group_id=group_id,
            version=(group.version if group else 0) - self._sometimes(0.03),
            generation=generation,
            assignor="sticky",
            members=tuple(members),
            left=left,
            **self._by(image, group_id),
        )

    def _join(self, image: Image, group_id: str) -> c.Command:
        """Add a member, or replace one; all targets are computed again."""
        group = _group(image, group_id)
        present = {found.member_id: found for found in group.members}
        absent = [name for name in MEMBERS if name not in present]
        if not absent:
            return self._leave(image, group_id)
        generation = group.generation + self.rng.choice([1, 1, 3])
        left: tuple[str, ...] = ()
        held: PartitionSet = ()
        if present and self._sometimes(0.2):
            left = (self.rng.choice(sorted(present)),)
            held = present.pop(left[0]).held
        instance = self.rng.choice([None, None, "i", "j"])
        name = self.rng.choice(absent)
        present[name] = member_of(
            name, generation, instance_id=instance, is_rest=self._sometimes(0.4)
        )
        targets = self._targets(image, sorted(present))
        members = [replace(found, target=targets[key]) for key, found in present.items()]
        members = [
            replace(found, held=sets.intersection(held, found.target))
            if found.member_id == name
            else found
            for found in members
        ]
        return self._alter(image, group_id, generation, members, left)

    def _targets(self, image: Image, names: list[str]) -> dict[str, PartitionSet]:
        keys = [key for key in sorted(image.partitions) if self._sometimes(0.9)]
        owners = [self.rng.choice(names) for _ in keys]
        return {
            name: sets.of(key for key, owner in zip(keys, owners, strict=True) if owner == name)
            for name in names
        }

    def _reconcile(self, image: Image, group_id: str) -> c.Command:
        """Take away what a member must release, and give it the free partitions of its target."""
        group = _group(image, group_id)
        if not group.members:
            return self._join(image, group_id)
        found = self.rng.choice(group.members)
        target = set(sets.keys_of(found.target))
        kept = [key for key in sets.keys_of(found.held) if key in target or self._sometimes(0.3)]
        taken = {
            key
            for other in group.members
            if other.member_id != found.member_id
            for key in sets.keys_of(other.held)
        }
        given = [key for key in sets.keys_of(found.target) if key not in taken]
        held = sets.of([*kept, *given])
        is_there = sets.is_subset(held, found.target)
        epoch = group.generation if is_there else found.member_epoch
        return self._alter(
            image, group_id, group.generation, [replace(found, held=held, member_epoch=epoch)]
        )

    def _leave(self, image: Image, group_id: str) -> c.Command:
        group = _group(image, group_id)
        names = [found.member_id for found in group.members]
        leavers = names if self._sometimes(0.3) else [self.rng.choice(names or ["a"])]
        return self._alter(image, group_id, group.generation, [], tuple(leavers))

    def _confused(self, image: Image, group_id: str) -> c.Command:
        """Return a random state of the group, mostly an invalid one."""
        group = _group(image, group_id)
        found = self.rng.choice(group.members or (member_of("a", 1),))
        keys = sorted(image.partitions)
        wrong = replace(
            found,
            member_id=self.rng.choice([found.member_id, *MEMBERS]),
            instance_id=self.rng.choice([found.instance_id, "i"]),
            member_epoch=found.member_epoch + self.rng.choice([-1, 0, 0, 1]),
            held=sets.of(self._some(keys)),
            target=self.rng.choice([found.target, sets.of(self._some(keys))]),
        )
        return self._alter(
            image, group_id, group.generation + self.rng.choice([-1, 0, 0, 1, 1]), [wrong]
        )

    def _some(self, keys: list[PartitionKey]) -> list[PartitionKey]:
        return self.rng.sample(keys, min(len(keys), self.rng.randint(0, 2)))

    # --- offsets ---

    def _commit(self, image: Image, group_id: str) -> c.Command:
        commits = [self.one_commit(image, self.rng.choice([group_id, *GROUPS])) for _ in range(2)]
        return c.CommitOffsets(commits=tuple(commits), **self._by(image, group_id))

    def one_commit(self, image: Image, group_id: str) -> c.GroupCommit:
        group = _group(image, group_id)
        found = self.rng.choice((None, *group.members, *group.members))
        keys = sorted(image.partitions)
        if found is not None and found.held and self._sometimes(0.9):
            keys = list(sets.keys_of(found.held))
        chosen = self._some(keys) or keys[:1] or [("f" * 32, 0)]
        epoch = -1 if found is None else found.member_epoch - self._sometimes(0.1)
        return c.GroupCommit(
            group_id=group_id,
            member_id=None if found is None else found.member_id,
            member_epoch=epoch,
            offsets=tuple(
                c.OffsetCommit(
                    topic_id=topic_id,
                    partition=partition + 9 * self._sometimes(0.03),
                    offset=self.rng.randint(0, 1000) - 1000 * self._sometimes(0.03),
                    leader_epoch=-1,
                    metadata=self.rng.choice(["", "note"]),
                )
                for topic_id, partition in chosen
            ),
            coordinators_version=self._version(image),
        )

    def _expire(self, image: Image, group_id: str) -> c.Command:
        before_ms = WallMs(max(0, image.now_ms + self.rng.randint(-50, 100)))
        expiry = c.GroupExpiry(group_id=group_id, before_ms=before_ms)
        return c.ExpireOffsets(groups=(expiry,), **self._by(image, group_id))

    def _delete(self, image: Image, group_id: str) -> c.Command:
        version = self._version(image)
        by = self._by(image, group_id)
        return c.DeleteGroup(group_id=group_id, coordinators_version=version, **by)

    # --- REST consumers ---

    def _consumer(self, image: Image, group_id: str) -> c.Command:
        instance = self.rng.choice(MEMBERS)
        present = image.consumers.get((group_id, instance))
        by_hand = sets.of(self._some(sorted(image.partitions)))
        reads = self.rng.choice(
            [{}, {"topics": ("a", "b")}, {"pattern": "a.*"}, {"assigned": by_hand}]
        )
        wanted = RestConsumer(
            group_id=group_id,
            instance=instance,
            created_index=present.created_index if present else 0,
            format="json",
            auto_offset_reset="earliest",
            is_auto_commit=True,
            fetch_min_bytes=1,
            request_timeout_ms=1000,
            **reads,  # type: ignore[arg-type]  # one of the three, each of its own type
        )
        is_new = (present is None) ^ self._sometimes(0.1)
        return c.PutConsumer(
            is_new=is_new,
            consumer=wanted,
            coordinators_version=self._version(image),
            **self._by(image, group_id),
        )

    def _drop(self, image: Image, group_id: str) -> c.Command:
        names = [
            c.ConsumerName(
                group_id=group_id,
                instance=key[1],
                created_index=found.created_index - self._sometimes(0.1),
            )
            for key, found in sorted(image.consumers.items(), key=lambda item: item[0])
            if key[0] == group_id and self._sometimes(0.5)
        ]
        return c.DeleteConsumers(consumers=tuple(names), **self._by(image, group_id))


def _group(image: Image, group_id: str) -> Group:
    """Return the group, or an empty group."""
    found = image.groups.get(group_id)
    if found is not None:
        return found
    return Group(
        group_id=group_id,
        version=0,
        generation=0,
        assignor="",
        members=(),
        emptied_ms=WallMs(0),
    )
