"""Consumer groups in memory, as members see them: joins, rebalances, sessions and commits, on the loop's clock.

This is a coordinator without a cluster. It assigns partitions round robin. A partition goes to its next owner after the
previous owner has released it. Sessions and rebalances time out, and a commit of a partition that a member does not own
is refused. ``failures`` are raised first, one per call. The next ``lost_answers`` calls take effect, but their
responses are lost.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from milena.cluster.group_views import GroupOffset
from milena.consuming.membership import Beat, BeatAnswer
from milena.consuming.options import Subscription
from milena.errors import (
    GroupNotEmptyError,
    MemberFencedError,
    MemberUnknownError,
    NotNowError,
    StaleMemberError,
    TargetNotFoundError,
    UnreachableError,
)
from milena.records import TopicPartition

INTERVAL_MS = 3_000
T = TypeVar("T")


@dataclass
class Member:
    """The coordinator's state of one member."""

    subscription: Subscription | None
    instance_id: str | None
    session_ms: int
    rebalance_ms: int
    epoch: int = 0
    held: set[TopicPartition] = field(default_factory=set)
    target: set[TopicPartition] = field(default_factory=set)
    heard_s: float = 0.0
    revoking_since_s: float | None = None


class FakeGroup:
    """One group. ``topics`` maps names to partition counts; change it and call ``rebalance``."""

    def __init__(self, **topics: int) -> None:
        self.topics = topics
        self.members: dict[str, Member] = {}
        self.predecessors: dict[str, str] = {}
        self.generation = 0
        self.tags: Mapping[str, str] = {}
        """The tags of the topics; empty: a commit may name any."""
        self.offsets: dict[TopicPartition, int] = {}
        self.failures: deque[Exception | None] = deque()
        self.lost_answers = 0
        self.beats: list[Beat] = []
        self.commits: list[tuple[str | None, dict[TopicPartition, int]]] = []
        self.overlaps: list[tuple[TopicPartition, str, str]] = []
        self.expired: list[str] = []
        self._changed = asyncio.Event()

    # -- the port ----------------------------------------------------------------------------------

    async def heartbeat(self, group: str, beat: Beat, *, session_ms: int) -> BeatAnswer:
        self.beats.append(beat)
        await self._pass()
        answer = self._beat(beat)
        end_s = self._now_s() + beat.wait_ms / 1000
        while beat.wait_ms and not self._is_news(beat) and (left_s := end_s - self._now_s()) > 0:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), left_s)
            except TimeoutError:
                break
        if beat.member_epoch >= 0:
            answer = self._answer(beat.member_id)
        return self._lose_or(answer)

    async def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        *,
        member_id: str | None,
        member_epoch: int,
        topic_tags: Mapping[TopicPartition, str],
    ) -> None:
        await self._pass()
        self._expire()
        for where, tag in topic_tags.items():
            if tag != self.tags.get(where.topic, tag):
                raise TargetNotFoundError(f"another {where.topic}", status=404, error_code=40401)
        if member_id is None:
            if self.members:
                raise GroupNotEmptyError("the group has members", status=409, error_code=40918)
        else:
            member = self._member(member_id)
            if member.epoch != member_epoch or not offsets.keys() <= member.held:
                raise StaleMemberError("stale", status=409, error_code=40925)
        self.commits.append((member_id, dict(offsets)))
        self.offsets.update(offsets)
        self._lose_or(None)

    async def committed(
        self, group: str, topics: Iterable[str] | None = None
    ) -> dict[TopicPartition, GroupOffset]:
        await self._pass()
        return {
            where: GroupOffset(offset=offset)
            for where, offset in self.offsets.items()
            if topics is None or where.topic in topics
        }

    # -- for tests ---------------------------------------------------------------------------------

    def owned(self, member_id: str) -> set[TopicPartition]:
        return self.members[member_id].held & self.members[member_id].target

    def kick(self, member_id: str) -> None:
        """Remove a member, as if its session had ended."""
        self._remove(member_id)

    def rebalance(self) -> None:
        """Assign all partitions again; a member keeps as many as the new assignment allows."""
        everything = [
            TopicPartition(t, p) for t, n in sorted(self.topics.items()) for p in range(n)
        ]
        self.generation += 1
        names = sorted(self.members)
        for index, name in enumerate(names):
            self.members[name].target = set(everything[index :: len(names)])
        self._reconcile()

    # -- inside ------------------------------------------------------------------------------------

    async def _pass(self) -> None:
        await asyncio.sleep(0)
        if self.failures:
            failure = self.failures.popleft()
            if failure is not None:
                raise failure

    def _lose_or(self, answer: T) -> T:
        if self.lost_answers:
            self.lost_answers -= 1
            raise UnreachableError("the answer was lost")
        return answer

    def _beat(self, beat: Beat) -> BeatAnswer:
        self._expire()
        if beat.member_epoch < 0:
            self._remove(beat.member_id)
            return BeatAnswer(
                member_id=beat.member_id,
                member_epoch=-1,
                generation=0,
                heartbeat_interval_ms=0,
                assignment=frozenset(),
            )
        if beat.member_epoch == 0:
            self._join(beat)
        member = self._member(beat.member_id)
        member.heard_s = self._now_s()
        if beat.member_epoch > member.epoch:
            raise StaleMemberError("from the future", status=409, error_code=40925)
        if beat.subscription is not None and beat.subscription != member.subscription:
            member.subscription = beat.subscription
            self.rebalance()
        member.held -= {w for w in member.held - member.target if w not in beat.owned}
        self._reconcile()
        return self._answer(beat.member_id)

    def _join(self, beat: Beat) -> None:
        if beat.member_id in self.members:
            return
        former = next(
            (
                name
                for name, member in self.members.items()
                if beat.instance_id is not None and member.instance_id == beat.instance_id
            ),
            None,
        )
        # The heartbeat that joins has both timeouts.
        assert beat.session_timeout_ms is not None
        assert beat.rebalance_timeout_ms is not None
        member = Member(
            subscription=beat.subscription,
            instance_id=beat.instance_id,
            session_ms=beat.session_timeout_ms,
            rebalance_ms=beat.rebalance_timeout_ms,
        )
        if former is not None:
            taken_over = self.members.pop(former)
            member.held, member.target = taken_over.held, taken_over.target
            self.expired.append(former)
            self.predecessors[former] = beat.member_id
        self.members[beat.member_id] = member
        self.rebalance()

    def _answer(self, member_id: str) -> BeatAnswer:
        member = self._member(member_id)
        return BeatAnswer(
            member_id=member_id,
            member_epoch=member.epoch,
            generation=self.generation,
            heartbeat_interval_ms=INTERVAL_MS,
            assignment=frozenset(member.held & member.target),
        )

    def _is_news(self, beat: Beat) -> bool:
        member = self.members.get(beat.member_id)
        return (
            member is None
            or member.epoch != beat.member_epoch
            or member.held & member.target != beat.owned
        )

    def _reconcile(self) -> None:
        taken = {where for m in self.members.values() for where in m.held}
        for member in self.members.values():
            if member.held <= member.target:
                free = member.target - taken
                member.held |= free
                taken |= free
                member.epoch = self.generation
                member.revoking_since_s = None
            elif member.revoking_since_s is None:
                member.revoking_since_s = self._now_s()
        self._check()
        self._changed.set()

    def _check(self) -> None:
        seen: dict[TopicPartition, str] = {}
        for name, member in self.members.items():
            for where in member.held:
                if where in seen:
                    self.overlaps.append((where, seen[where], name))
                seen[where] = name

    def _expire(self) -> None:
        now_s = self._now_s()
        for name, member in list(self.members.items()):
            is_silent = now_s - member.heard_s > member.session_ms / 1000 and member.heard_s
            since_s = member.revoking_since_s
            if is_silent or (since_s is not None and now_s - since_s > member.rebalance_ms / 1000):
                self._remove(name)

    def _remove(self, member_id: str) -> None:
        if self.members.pop(member_id, None) is not None:
            self.expired.append(member_id)
            if self.members:
                self.rebalance()
            self._changed.set()

    def _member(self, member_id: str) -> Member:
        if member_id not in self.members:
            if self.predecessors.get(member_id) in self.members:
                raise MemberFencedError("taken over", status=409, error_code=40935)
            raise MemberUnknownError(f"no member {member_id}", status=404, error_code=40411)
        return self.members[member_id]

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()


def not_coordinator() -> NotNowError:
    return NotNowError("another node coordinates the group", status=503, error_code=50310)
