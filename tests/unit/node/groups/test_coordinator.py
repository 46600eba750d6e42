"""Groups on whole nodes: any node takes heartbeats and commits, one decides, and it may be another from now on."""

import asyncio
from collections.abc import Iterable

import pytest

from http_api.group_ports import (
    GroupState,
    Heartbeat,
    HeartbeatAnswer,
    OffsetToCommit,
    Reset,
    ResetTarget,
)
from milena.model.errors import (
    FateUnknownError,
    GroupNotEmptyError,
    GroupNotFoundError,
    InvalidConsumerError,
    InvalidRequestError,
    MemberNotFoundError,
    NoQuorumError,
    NotCoordinatorError,
    PartitionNotFoundError,
    RequestTooLargeError,
    StaleMemberEpochError,
    TopicNotFoundError,
)
from milena.model.types import MonotonicMs
from node.groups.coordinator import GroupCoordinator
from node.groups.desk import GroupDesk
from raft_meta.machine.commands import AlterGroup
from raft_meta.machine.coordinators import coordinator_of
from tests.support.clusters.nodes import Cluster, SimNode
from tests.support.time.virtual_time import after, virtual

ALL = (1, 2, 3)


class Member:
    """A client that does what it is told: it works on what it is assigned, and says so."""

    def __init__(
        self, cluster: Cluster, name: str, *, group: str = "g", topics: Iterable[str] = ("t",)
    ) -> None:
        self.cluster = cluster
        self.group = group
        self.name = name
        self.topics = tuple(topics)
        self.epoch = 0
        self.owned: set[tuple[str, int]] = set()
        self.answer: HeartbeatAnswer | None = None

    async def beat(self, *, node: int = 1, wait_ms: int = 0, **settings: object) -> HeartbeatAnswer:
        is_new = self.epoch == 0
        heartbeat = Heartbeat(
            member_id=self.name,
            member_epoch=self.epoch,
            topics=self.topics if is_new else None,
            owned=sorted(self.owned),
            wait_ms=wait_ms,
            **settings,  # type: ignore[arg-type]
        )
        answer = await self.cluster.nodes[node].groups.service.heartbeat(self.group, heartbeat)
        self.epoch = answer.member_epoch
        self.owned = set(answer.assignment)
        self.answer = answer
        return answer

    async def leave(self, *, node: int = 1) -> None:
        await self.cluster.nodes[node].groups.service.heartbeat(
            self.group, Heartbeat(member_id=self.name, member_epoch=-1)
        )

    async def commit(self, partition: int, offset: int, *, node: int = 1) -> None:
        await self.cluster.nodes[node].groups.service.commit(
            self.group,
            [OffsetToCommit(topic="t", partition=partition, offset=offset)],
            member_id=self.name,
            member_epoch=self.epoch,
        )

    @property
    def numbers(self) -> list[int]:
        return sorted(number for _, number in self.owned)


async def started(partitions: int = 4, **settings: int) -> Cluster:
    cluster = await Cluster(**settings).start()  # type: ignore[arg-type]
    # The feature level rises once everybody is there.
    await cluster.until(lambda: cluster.image.feature_level >= 3)
    await cluster.create("t", *[ALL] * partitions)
    return cluster


def coordinator(cluster: Cluster, group: str = "g") -> SimNode:
    found = coordinator_of(cluster.image, group)
    assert found is not None
    return cluster.nodes[found]


def other(cluster: Cluster, group: str = "g") -> int:
    return next(i for i in cluster.nodes if i != coordinator(cluster, group).node_id)


@virtual
async def test_a_member_joins_through_any_node_and_works_on_everything() -> None:
    cluster = await started()
    member = Member(cluster, "m1")
    await member.beat(node=other(cluster))
    assert member.numbers == [0, 1, 2, 3]
    assert member.epoch == 1
    await cluster.close()


@virtual
async def test_who_coordinates_nothing_looks_around_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[GroupCoordinator] = []
    tick = GroupCoordinator._tick

    def counted(self: GroupCoordinator, now_ms: MonotonicMs) -> None:
        looks.append(self)
        tick(self, now_ms)

    monkeypatch.setattr(GroupCoordinator, "_tick", counted)
    cluster = await started()
    await after(1_000)
    looks.clear()
    await after(5_000)
    assert {looks.count(node.groups.coordinator) for node in cluster.nodes.values()} == {10}
    member = Member(cluster, "m1")
    await member.beat()
    await after(1_000)
    looks.clear()
    await after(5_000)
    busy = coordinator(cluster)
    for node in cluster.nodes.values():
        assert looks.count(node.groups.coordinator) == (50 if node is busy else 10)
    await cluster.close()


@virtual
async def test_a_heartbeat_that_changes_nothing_writes_nothing() -> None:
    cluster = await started()
    member = Member(cluster, "m1")
    await member.beat()
    index = cluster.image.index
    for node in ALL:
        await member.beat(node=node)
    assert cluster.image.index == index
    await cluster.close()


@virtual
async def test_two_members_share_once_the_first_has_given_back() -> None:
    cluster = await started()
    one, two = Member(cluster, "m1"), Member(cluster, "m2")
    await one.beat()
    await two.beat(node=2)
    assert two.numbers == []
    assert two.answer is not None
    assert len(two.answer.pending) == 2
    await one.beat(node=3)
    assert len(one.numbers) == 2
    await one.beat(node=3)
    await two.beat(node=2)
    assert sorted(one.numbers + two.numbers) == [0, 1, 2, 3]
    await cluster.close()


@virtual
async def test_a_waiting_heartbeat_hears_of_a_rebalance_at_once() -> None:
    cluster = await started()
    one, two = Member(cluster, "m1"), Member(cluster, "m2")
    await one.beat()
    await one.beat()
    loop = asyncio.get_running_loop()
    begin = loop.time()
    waiting = asyncio.create_task(one.beat(node=2, wait_ms=5_000))
    await after(100)
    assert not waiting.done()
    taken = asyncio.create_task(two.beat(node=3))
    await waiting
    await taken
    assert loop.time() - begin < 0.5
    assert len(one.numbers) == 2
    # And who waits for what the other lets go hears of that.
    await two.beat(wait_ms=0)
    waiting = asyncio.create_task(two.beat(node=3, wait_ms=5_000))
    await after(50)
    await one.beat()
    await waiting
    assert len(two.numbers) == 2
    await cluster.close()


@virtual
async def test_the_newest_heartbeat_of_a_member_is_the_one_that_hears_the_news() -> None:
    cluster = await started()
    one, two = Member(cluster, "m1"), Member(cluster, "m2")
    await one.beat()
    await one.beat()
    left = asyncio.create_task(one.beat(node=1, wait_ms=5_000))
    await after(50)
    newest = asyncio.create_task(one.beat(node=2, wait_ms=5_000))
    await after(50)
    assert left.done()
    assert not newest.done()
    begin = asyncio.get_running_loop().time()
    await two.beat(node=3)
    assert len((await newest).assignment) == 2
    assert asyncio.get_running_loop().time() - begin < 0.1
    await cluster.close()


@virtual
async def test_a_waiting_heartbeat_is_answered_when_its_time_is_up() -> None:
    cluster = await started()
    member = Member(cluster, "m1")
    await member.beat()
    begin = asyncio.get_running_loop().time()
    await member.beat(node=other(cluster), wait_ms=5_000)
    assert 4.9 < asyncio.get_running_loop().time() - begin < 5.5
    await cluster.close()


@virtual
async def test_a_silent_member_loses_its_partitions_after_its_session() -> None:
    cluster = await started()
    one, two = Member(cluster, "m1"), Member(cluster, "m2")
    await one.beat(session_timeout_ms=2_000)
    await two.beat(session_timeout_ms=60_000)
    await after(2_500)
    await two.beat()
    assert two.numbers == [0, 1, 2, 3]
    with pytest.raises(MemberNotFoundError):
        await one.beat()
    with pytest.raises(MemberNotFoundError):
        await one.commit(0, 5)
    await cluster.close()


class HeldProposals:
    """What a node proposes to its groups waits from now on; ``fates`` says how each ends, in turn."""

    def __init__(self, node: SimNode, *fates: Exception | None) -> None:
        self._propose = node.metadata.propose
        self._fates = list(fates)
        self.release = asyncio.Event()
        self.count = 0
        node.metadata.propose = self.propose  # type: ignore[method-assign]

    async def propose(self, command: object, **named: object) -> object:
        if not isinstance(command, AlterGroup):
            return await self._propose(command, **named)  # type: ignore[arg-type]
        self.count += 1
        await self.release.wait()
        fate = self._fates.pop(0) if self._fates else None
        if fate is not None:
            raise fate
        return await self._propose(command, **named)  # type: ignore[arg-type]


async def expiring(*fates: Exception | None) -> tuple[Cluster, HeldProposals, Member, Member]:
    """``m1`` was silent for too long, and its removal is under way."""
    cluster = await started()
    one, two = Member(cluster, "m1"), Member(cluster, "m2")
    await one.beat(session_timeout_ms=2_000)
    await two.beat(session_timeout_ms=60_000)
    held = HeldProposals(coordinator(cluster), *fates)
    await after(2_500)
    assert held.count == 1
    return cluster, held, one, two


@virtual
async def test_who_is_being_removed_is_not_told_to_go_on() -> None:
    """Else it would work on for a session on what another member is given at once."""
    cluster, held, one, two = await expiring()
    late = asyncio.create_task(one.beat())
    await after(100)
    assert not late.done()
    held.release.set()
    with pytest.raises(MemberNotFoundError):
        await late
    await two.beat()
    assert two.numbers == [0, 1, 2, 3]
    await cluster.close()


@virtual
async def test_who_could_not_be_removed_goes_on_when_it_is_heard() -> None:
    cluster, held, one, two = await expiring(NoQuorumError("no quorum; nothing was changed"))
    late = asyncio.create_task(one.beat())
    await after(100)
    held.release.set()
    await late
    await one.beat()
    await two.beat()
    assert (len(one.numbers), len(two.numbers)) == (2, 2)
    await cluster.close()


@virtual
async def test_who_may_have_been_removed_is_not_told_to_go_on_before_it_is_known() -> None:
    cluster, held, one, two = await expiring(FateUnknownError("nobody knows"))
    late = asyncio.create_task(one.beat())
    await after(100)
    held.release.set()
    with pytest.raises(MemberNotFoundError):
        await late
    assert held.count == 2
    await two.beat()
    assert two.numbers == [0, 1, 2, 3]
    await cluster.close()


@virtual
async def test_a_member_that_keeps_what_it_is_to_give_back_is_removed() -> None:
    cluster = await started()
    one, two = Member(cluster, "m1"), Member(cluster, "m2")
    await one.beat(rebalance_timeout_ms=3_000)
    await two.beat()
    own = set(one.owned)
    for _ in range(5):
        await after(1_000)
        try:
            await one.beat()
        except MemberNotFoundError:
            break
        one.owned = own
    await two.beat()
    assert two.numbers == [0, 1, 2, 3]
    await cluster.close()


@virtual
async def test_a_member_that_leaves_is_succeeded_at_once() -> None:
    cluster = await started()
    one, two = Member(cluster, "m1"), Member(cluster, "m2")
    await one.beat()
    await two.beat()
    await one.leave(node=2)
    await one.leave(node=3)
    await two.beat()
    assert two.numbers == [0, 1, 2, 3]
    await cluster.close()


@virtual
async def test_a_restarted_static_member_takes_over_and_its_former_process_is_stopped() -> None:
    cluster = await started()
    one, two = Member(cluster, "old"), Member(cluster, "new")
    await one.beat(instance_id="i1")
    await two.beat(instance_id="i1")
    assert two.numbers == [0, 1, 2, 3]
    with pytest.raises(StaleMemberEpochError):
        await one.beat()
    await cluster.close()


@virtual
async def test_growing_topics_and_new_ones_are_shared_out() -> None:
    cluster = await started(1)
    member = Member(cluster, "m1")
    member.topics = ()
    await member.beat(pattern="t.*", session_timeout_ms=300_000)
    assert member.numbers == [0]
    waiting = asyncio.create_task(member.beat(wait_ms=5_000))
    await after(10)
    await cluster.create("t2", ALL)
    await waiting
    await member.beat()
    assert member.owned == {("t", 0), ("t2", 0)}
    await cluster.close()


@virtual
async def test_a_topic_that_grows_is_shared_out_and_one_with_other_configs_is_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each group's desk would work out all its assignments, on the loop that clients wait for."""
    cluster = await started(1)
    member = Member(cluster, "m1")
    await member.beat()
    kicked: list[str] = []
    kick = GroupDesk.kick

    def look(desk: GroupDesk) -> None:
        kicked.append(desk.group_id)
        kick(desk)

    monkeypatch.setattr(GroupDesk, "kick", look)
    admin = coordinator(cluster).admin
    await admin.alter_configs("t", {"flush.ms": "5"}, is_validate_only=False)
    await after(10)
    assert kicked == []
    await admin.add_partitions("t", 2)
    await after(10)
    assert set(kicked) == {"g"}
    await member.beat()
    assert member.numbers == [0, 1]
    await cluster.close()


@virtual
async def test_members_survive_the_coordinator_and_keep_what_they_have() -> None:
    cluster = await started()
    one, two = Member(cluster, "m1"), Member(cluster, "m2")
    for member in (one, two, one, one, two):
        await member.beat(node=other(cluster))
    had = (one.numbers, two.numbers)
    assert sorted(had[0] + had[1]) == [0, 1, 2, 3]
    gone = coordinator(cluster).node_id
    node = other(cluster)
    waiting = asyncio.create_task(one.beat(node=node, wait_ms=5_000))
    await after(20)
    await cluster.kill(gone)
    await waiting
    await two.beat(node=node)
    assert (one.numbers, two.numbers) == had
    await one.commit(one.numbers[0], 7, node=node)
    await cluster.close()


@virtual
async def test_a_coordinator_that_is_cut_off_answers_nothing() -> None:
    cluster = await started()
    member = Member(cluster, "m1")
    await member.beat()
    lost = coordinator(cluster)
    cluster.isolate(lost.node_id)
    await after(4_000)
    with pytest.raises((NotCoordinatorError, FateUnknownError)):
        await member.beat(node=lost.node_id)
    survivor = next(i for i in cluster.nodes if i != lost.node_id)
    await member.beat(node=survivor)
    assert member.numbers == [0, 1, 2, 3]
    cluster.heal()
    await after(5_000)
    await member.beat(node=lost.node_id)
    await cluster.close()


@virtual
async def test_commits_of_any_node_are_seen_on_any_node() -> None:
    cluster = await started()
    member = Member(cluster, "m1")
    await member.beat()
    for offset, node in enumerate((1, 2, 3), start=5):
        await member.commit(1, offset, node=node)
        for reader in ALL:
            found = await cluster.nodes[reader].groups.service.committed("g", [("t", 1)])
            assert [row.offset for row in found] == [offset]
    await cluster.close()


@virtual
async def test_commits_of_many_members_share_commands() -> None:
    cluster = await started()
    member = Member(cluster, "m1")
    await member.beat()
    node = coordinator(cluster)
    await asyncio.gather(*(member.commit(i % 4, i, node=node.node_id) for i in range(200)))
    assert node.counts.groups.commits == 200
    assert node.counts.groups.commit_commands <= 3
    await cluster.close()


@virtual
async def test_a_commit_is_fenced_by_epoch_and_by_what_is_held() -> None:
    cluster = await started()
    one, two = Member(cluster, "m1"), Member(cluster, "m2")
    await one.beat()
    old = one.epoch
    await two.beat()
    await one.beat()
    await one.beat()
    await two.beat()
    with pytest.raises(StaleMemberEpochError):
        await one.commit(two.numbers[0], 5)
    await two.leave()
    await one.beat()
    assert one.epoch > old
    one.epoch = old
    with pytest.raises(StaleMemberEpochError):
        await one.commit(0, 5)
    service = cluster.nodes[2].groups.service
    with pytest.raises(GroupNotEmptyError):
        await service.commit("g", [OffsetToCommit(topic="t", partition=0, offset=1)])
    await cluster.close()


@virtual
async def test_offsets_are_reset_while_nobody_reads() -> None:
    cluster = await started(2)
    node = cluster.nodes[1]
    for value in "abc":
        await node.write("t", value, partition=1)
    service = cluster.nodes[2].groups.service
    done = await service.reset("g", "t", None, ResetTarget(name=Reset.LATEST))
    assert [(row.partition, row.offset) for row in done] == [(0, 0), (1, 3)]
    done = await service.reset("g", "t", [1], ResetTarget(offset=99))
    assert [row.offset for row in done] == [3]
    done = await service.reset("g", "t", [1], ResetTarget(offset=1))
    assert [row.offset for row in done] == [1]
    done = await service.reset("g", "t", [1], ResetTarget(timestamp_ms=0))
    assert [row.offset for row in done] == [0]
    done = await service.reset("g", "t", [1], ResetTarget(name=Reset.EARLIEST))
    assert [row.offset for row in done] == [0]
    with pytest.raises(TopicNotFoundError):
        await service.reset("g", "nope", None, ResetTarget(offset=1))
    with pytest.raises(PartitionNotFoundError):
        await service.reset("g", "t", [7], ResetTarget(offset=1))
    member = Member(cluster, "m1")
    await member.beat()
    with pytest.raises(GroupNotEmptyError):
        await service.reset("g", "t", None, ResetTarget(name=Reset.LATEST))
    await cluster.close()


@virtual
async def test_a_group_is_described_listed_and_deleted() -> None:
    cluster = await started()
    service = cluster.nodes[3].groups.service
    with pytest.raises(GroupNotFoundError):
        await service.describe("g")
    member = Member(cluster, "m1")
    await member.beat(client_id="c", host="h")
    await member.commit(0, 4)
    described = await service.describe("g")
    assert described.state is GroupState.STABLE
    assert described.coordinator == coordinator(cluster).node_id
    assert [m.member_id for m in described.members] == ["m1"]
    assert list(described.members[0].assignment) == [("t", n) for n in range(4)]
    assert [row.offset for row in described.offsets] == [4]
    with pytest.raises(GroupNotEmptyError):
        await service.delete("g")
    await member.leave()
    assert [found.state for found in await service.groups()] == [GroupState.EMPTY]
    await service.delete("g")
    with pytest.raises(GroupNotFoundError):
        await service.delete("g")
    with pytest.raises(GroupNotFoundError):
        await service.committed("g")
    await cluster.close()


@virtual
async def test_offsets_that_nobody_came_back_for_are_forgotten() -> None:
    cluster = await started(offsets_retention_minutes=1)
    service = cluster.nodes[1].groups.service
    member = Member(cluster, "m1", group="used")
    await member.beat(session_timeout_ms=300_000)
    await member.commit(0, 4)
    await service.commit("left", [OffsetToCommit(topic="t", partition=0, offset=1)])
    await after(50_000)
    assert [row.offset for row in await service.committed("left")] == [1]
    await after(30_000)
    with pytest.raises(GroupNotFoundError):
        await service.committed("left")
    assert [row.offset for row in await service.committed("used")] == [4]
    await cluster.close()


@virtual
async def test_requests_out_of_bounds_are_refused_where_they_arrive() -> None:
    cluster = await started(1)
    service = cluster.nodes[1].groups.service
    owned = [("t", number) for number in range(10_001)]
    with pytest.raises(RequestTooLargeError):
        await service.heartbeat(
            "g", Heartbeat(member_id="m", member_epoch=0, topics=["t"], owned=owned)
        )
    rows = [OffsetToCommit(topic="t", partition=0, offset=1)] * 10_001
    with pytest.raises(RequestTooLargeError):
        await service.commit("g", rows)
    with pytest.raises(InvalidRequestError):
        await service.commit("g", [])
    for name in ("", "x" * 256, "a\nb"):
        with pytest.raises(InvalidConsumerError):
            await service.describe(name)
    await cluster.close()


@virtual
async def test_what_a_node_coordinates_is_counted() -> None:
    cluster = await started()
    member = Member(cluster, "m1")
    await member.beat()
    await member.beat()
    await after(300)
    former = coordinator(cluster)
    counts = former.counts.groups
    assert (counts.groups, counts.members, counts.heartbeats, counts.rebalances) == (1, 1, 2, 1)
    await cluster.kill(former.node_id)
    await member.beat(node=next(iter(cluster.nodes)))
    await after(300)
    counts = coordinator(cluster).counts.groups
    assert (counts.groups, counts.members) == (1, 1)
    await cluster.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"session_timeout_ms": 999},
        {"session_timeout_ms": 300_001},
        {"rebalance_timeout_ms": 10},
        {"assignor": "best"},
        {"pattern": "(a"},
        {"instance_id": "x" * 300},
    ],
    ids=lambda value: next(iter(value)),
)
def test_settings_out_of_range_are_refused(settings: dict[str, object]) -> None:
    @virtual
    async def run() -> None:
        cluster = await started(1)
        with pytest.raises(InvalidConsumerError):
            await Member(cluster, "m1").beat(**settings)
        assert "g" not in cluster.image.groups
        await cluster.close()

    run()


@virtual
async def test_one_bad_member_does_not_harm_those_that_join_with_it() -> None:
    cluster = await started(2)
    good, bad = Member(cluster, "m1"), Member(cluster, "m2", topics=())
    results = await asyncio.gather(good.beat(), bad.beat(), return_exceptions=True)
    assert isinstance(results[1], InvalidConsumerError)
    assert good.numbers == [0, 1]
    await cluster.close()


@virtual
async def test_a_member_without_an_id_is_given_one() -> None:
    cluster = await started(1)
    service = cluster.nodes[1].groups.service
    answer = await service.heartbeat("g", Heartbeat(member_id=None, member_epoch=0, topics=["t"]))
    assert answer.member_id
    assert list(answer.assignment) == [("t", 0)]
    with pytest.raises(InvalidConsumerError):
        await service.heartbeat("g", Heartbeat(member_id=None, member_epoch=3))
    with pytest.raises(MemberNotFoundError):
        await service.heartbeat("g", Heartbeat(member_id="who", member_epoch=3))
    with pytest.raises(StaleMemberEpochError):
        await service.heartbeat("g", Heartbeat(member_id=answer.member_id, member_epoch=99))
    await cluster.close()


@virtual
async def test_groups_that_are_only_asked_for_leave_nothing_behind() -> None:
    """Whoever names a million groups must not fill the memory of their coordinators."""
    cluster = await started()
    member = Member(cluster, "m1")
    await member.beat()
    await after(500)
    index = cluster.image.index
    for number in range(50):
        stranger = Heartbeat(member_id="m", member_epoch=7, topics=("t",))
        with pytest.raises(MemberNotFoundError):
            await cluster.nodes[1].groups.service.heartbeat(f"nobody-{number}", stranger)
    assert cluster.image.index == index
    await after(500)
    assert sum(len(node.groups.coordinator) for node in cluster.nodes.values()) == 1
    await member.beat()
    await cluster.close()
