"""Rules of the replicas that a node holds: made, found again, given roles, removed; never acting on an old image."""

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any

import pytest
from immutables import Map

from milena.model.errors import CorruptLogError, DiskFailedError
from milena.model.types import ReplicaHealth
from node.metrics.counts import NodeCounts
from node.replica.runner import PartitionRunner, ReplicaRole
from node.replica.runner_context import RunnerContext
from node.replication.fetcher import ReplicaFetchers
from node.replication.local_replicas import RESTING_TICKS, LocalReplicas
from raft_meta.machine.commands import AlterConfigs, CreateTopic, DeleteTopic
from raft_meta.machine.copies import replace
from storage.replica.data_directory import DataDirectory
from tests.support.clusters.control import Control, registration
from tests.support.clusters.runners import batch
from tests.support.disk.memory_files import MemoryFiles
from tests.support.time.virtual_time import LoopClock, LoopExecutor, after, settle, virtual

ROOT = "/data"
ONE, TWO = "a" * 32, "b" * 32


class Follows:
    """Stands in for the fetchers: remembers who is followed."""

    def __init__(self) -> None:
        self.leaders: dict[str, int | None] = {}

    def assign(self, runner: object, leader_id: int | None) -> None:
        self.leaders[runner.name] = leader_id  # type: ignore[attr-defined]

    async def stop(self) -> None:
        self.leaders.clear()


class Host:
    """Broker 1's replicas on a memory disk, in a cluster of brokers 1 to 3 on one metadata log."""

    def __init__(self, files: MemoryFiles | None = None, control: Control | None = None) -> None:
        self.files = files or MemoryFiles()
        self.control = control or Control()
        self.pool = LoopExecutor()
        self.fatal: list[BaseException] = []
        self.directory = DataDirectory.open(
            self.files, ROOT, node_id=1, directory_id="dir1", reserve_bytes=0
        )
        self.follows = Follows()
        self.replicas = LocalReplicas(
            files=self.files,
            directory=self.directory,
            context=RunnerContext(
                broker_id=1,
                clock=LoopClock(),
                pool=self.pool,
                sync_pool=self.pool,
                lag_ms_max=10_000,
                on_fatal=self.fatal.append,
                on_proposal=lambda runner, proposal: None,
                on_disk_full=lambda runner: None,
                on_doubt=lambda runner, offset: None,
                counts=NodeCounts(),
            ),
            fetchers=self.follows,  # type: ignore[arg-type]
        )
        self.task: asyncio.Task[None] | None = None

    @property
    def metadata(self) -> "object":
        return self.control.nodes[1].metadata

    async def start(self, *, was_clean: bool = False) -> "Host":
        """Recover, register, take part."""
        control = self.control
        if control.log.leader_id is None:
            await control.start(2, 3)
        await self.replicas.recover(was_clean=was_clean)
        control.nodes[1].metadata.listen(self.replicas.on_image)
        epoch = await control.register(
            1, last_epoch=self.directory.broker_epoch, reports=self.replicas.reports()
        )
        self.directory.set_broker_epoch(epoch)
        self.replicas.broker_epoch = epoch
        self.replicas.on_image(control.image)
        self.task = asyncio.get_running_loop().create_task(self.replicas.run())
        await control.unfence(1)
        await settle()
        return self

    async def create(self, topic_id: str, *placement: tuple[int, ...]) -> None:
        await self.control.propose(
            CreateTopic(topic_id=topic_id, name=topic_id[:1], configs=(), placement=placement)
        )
        await settle(60)

    def place(self, *placements: tuple[str, tuple[int, ...]]) -> None:
        """The next image: partition 0 of these topics has these replicas, led by the first of them."""
        image = self.replicas._image
        assert image is not None
        partitions = image.partitions
        for topic_id, replicas in placements:
            before = partitions[topic_id, 0]
            after = replace(
                before,
                replicas=replicas,
                isr=tuple(member for member in before.isr if member in replicas),
                leader=replicas[0],
                leader_epoch=before.leader_epoch + (not set(before.replicas) <= set(replicas)),
                partition_epoch=before.partition_epoch + 1,
            )
            partitions = partitions.set((topic_id, 0), after)
        self.replicas.on_image(replace(image, index=image.index + 1, partitions=partitions))

    async def stop(self, *, is_clean: bool = True) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        if is_clean:
            await self.replicas.close(is_clean=True)
        self.directory.close()
        self.control.nodes[1].metadata._listeners.remove(self.replicas.on_image)


class TestMaking:
    @virtual
    async def test_replicas_of_this_broker_are_made_and_get_their_roles(self) -> None:
        host = await Host().start()
        await host.create(ONE, (1, 2), (2, 1), (2, 3))
        roles = {key: runner.role for key, runner in host.replicas.runners.items()}
        assert roles == {(ONE, 0): ReplicaRole.LEADER, (ONE, 1): ReplicaRole.FOLLOWER}
        assert host.follows.leaders == {"a-0": None, "a-1": 2}
        assert host.directory.replicas() == {(ONE, 0), (ONE, 1)}
        await host.stop()
        host.control.stop()

    @virtual
    async def test_files_are_there_before_the_manifest_lists_them(self) -> None:
        host = await Host().start()
        seen: list[bool] = []

        def watch(kind: str, path: str) -> None:
            if kind == "rename" and "replicas" in path:
                seen.append(any(ONE in name for name in host.files.paths()))

        host.files.on_operation = watch
        await host.create(ONE, (1, 2))
        assert seen == [True]
        await host.stop()
        host.control.stop()

    @virtual
    async def test_a_full_disk_only_delays_it(self) -> None:
        host = await Host().start()
        host.files.capacity = host.files.used_bytes()
        await host.create(ONE, (1, 2))
        assert not host.replicas.runners
        host.files.capacity = None
        await after(1_500)
        assert set(host.replicas.runners) == {(ONE, 0)}
        await host.stop()
        host.control.stop()

    @virtual
    async def test_what_finds_no_room_leaves_nothing_behind(self) -> None:
        """It may be wanted elsewhere before there is room, and then nobody would look for it until the next start."""
        host = await Host().start()
        await host.create(ONE, (2, 3))
        for room in range(0, 60_000, 500):
            host.files.capacity = host.files.used_bytes() + room
            host.place((ONE, (2, 3, 1)))
            await settle(60)
            host.place((ONE, (2, 3)))
            await after(1_500)
            assert not host.replicas.runners
            assert not any(ONE in path for path in host.files.paths()), room
        await host.stop()
        host.control.stop()

    @virtual
    async def test_one_that_finds_no_room_takes_back_those_made_beside_it(self) -> None:
        """None of them is listed: what nobody lists is not to lie around, nor be open."""
        host = await Host().start()
        await host.create(ONE, (2, 3), (2, 3), (2, 3))
        image = host.replicas._image
        assert image is not None
        wanted = [
            (key, replace(state, replicas=(2, 3, 1))) for key, state in image.partitions.items()
        ]
        host.files.capacity = host.files.used_bytes() + 20_000
        host.replicas.on_image(
            replace(image, index=image.index + 1, partitions=image.partitions.update(wanted))
        )
        await settle(60)
        assert not host.replicas.runners
        assert not host.directory.replicas()
        assert not any(ONE in path for path in host.files.paths())
        host.files.capacity = None
        await after(1_500)
        assert len(host.replicas.runners) == len(host.directory.replicas()) == 3
        await host.stop()
        host.control.stop()

    @virtual
    async def test_any_other_failure_ends_the_node(self) -> None:
        host = await Host().start()
        host.files.fail_next_sync(ONE)
        await host.create(ONE, (1, 2))
        assert host.task is not None
        with pytest.raises(DiskFailedError):
            await host.task
        host.control.stop()

    @virtual
    async def test_waiting_for_a_leadership_ends_when_it_is_taken(self) -> None:
        host = await Host().start()
        waiting = asyncio.ensure_future(host.replicas.leading(ONE, 0, 0, timeout_ms=10_000))
        await settle()
        assert not waiting.done()
        await host.create(ONE, (1, 2))
        runner = await waiting
        assert runner is not None
        assert runner.leader is not None
        assert await host.replicas.leading(ONE, 0, 99, timeout_ms=300) is runner
        assert await host.replicas.leading(TWO, 0, 0, timeout_ms=300) is None
        assert not host.replicas._roles_changed._waiters
        await host.stop()
        host.control.stop()


class TestRemoving:
    @virtual
    async def test_a_deleted_topics_replicas_go_from_manifest_and_disk(self) -> None:
        host = await Host().start()
        await host.create(ONE, (1, 2))
        await host.create(TWO, (1, 2))
        await host.control.propose(DeleteTopic(topic_id=ONE))
        await settle(60)
        assert set(host.replicas.runners) == {(TWO, 0)}
        assert host.directory.replicas() == {(TWO, 0)}
        assert not any(ONE in path for path in host.files.paths())
        await host.stop()
        host.control.stop()

    @virtual
    async def test_the_manifest_forgets_it_before_its_files_go(self) -> None:
        host = await Host().start()
        await host.create(ONE, (1, 2))
        order: list[str] = []

        def watch(kind: str, path: str) -> None:
            if (kind == "rename" and "replicas" in path) or (kind == "remove" and ONE in path):
                order.append(kind)

        host.files.on_operation = watch
        await host.control.propose(DeleteTopic(topic_id=ONE))
        await settle(60)
        assert order[0] == "rename"
        assert "remove" in order
        await host.stop()
        host.control.stop()

    @virtual
    async def test_all_that_leaves_is_taken_out_in_one_turn(self) -> None:
        """Removing files takes its time: one that is given back meanwhile may be in sync when its turn would come."""
        host = await Host().start()
        await host.create(ONE, (2, 1))
        await host.create(TWO, (2, 1))
        runners = list(host.replicas)
        host.pool.hold()
        host.place((ONE, (2, 3)), (TWO, (2, 3)))
        await settle()
        assert not host.replicas.runners
        host.place((TWO, (2, 3, 1)))
        await settle()
        assert not host.replicas.runners
        host.pool.release()
        await settle(60)
        made = host.replicas.find(TWO, 0)
        assert made is not None
        assert made not in runners
        assert set(host.replicas.runners) == {(TWO, 0)}
        assert host.directory.replicas() == {(TWO, 0)}
        await host.stop()
        host.control.stop()

    @virtual
    async def test_who_left_follows_nobody_under_the_new_leader_epoch(self) -> None:
        """Its leader may see it given back before it does, and would count what is about to be removed."""
        host = await Host().start()
        await host.create(ONE, (2, 1))
        assert host.follows.leaders == {"a-0": 2}
        host.place((ONE, (2, 3)))
        assert host.replicas.find(ONE, 0) is not None
        assert host.follows.leaders == {"a-0": None}
        host.place((ONE, (2, 3, 1)))
        assert host.follows.leaders == {"a-0": 2}
        await host.stop()
        host.control.stop()

    @virtual
    async def test_without_room_for_the_manifest_it_is_removed_later(self) -> None:
        host = await Host().start()
        await host.create(ONE, (2, 1))
        host.files.capacity = host.files.used_bytes()
        host.place((ONE, (2, 3)))
        await settle(60)
        assert not host.replicas.runners
        assert host.directory.replicas() == {(ONE, 0)}
        host.files.capacity = None
        await after(1_500)
        assert not host.directory.replicas()
        assert not any(ONE in path for path in host.files.paths())
        await host.stop()
        host.control.stop()

    @virtual
    async def test_what_was_deleted_while_the_node_was_away_goes_at_its_start(self) -> None:
        host = await Host().start()
        await host.create(ONE, (1, 2))
        await host.create(TWO, (1, 2))
        await host.stop()
        await host.control.propose(DeleteTopic(topic_id=ONE))
        again = await Host(host.files, host.control).start(was_clean=True)
        await settle(60)
        assert set(again.replicas.runners) == {(TWO, 0)}
        assert not any(ONE in path for path in again.files.paths())
        await again.stop()
        host.control.stop()

    @virtual
    async def test_leftovers_that_nobody_lists_are_removed(self) -> None:
        host = await Host().start()
        await host.create(ONE, (1, 2))
        await host.stop()
        host.directory = DataDirectory.open(
            host.files, ROOT, node_id=1, directory_id="x", reserve_bytes=0
        )
        host.directory.remove_replicas([(ONE, 0)])
        host.directory.close()
        again = Host(host.files, host.control)
        await again.replicas.recover(was_clean=True)
        assert not any(ONE in path for path in again.files.paths())
        host.control.stop()


class TestStarting:
    @virtual
    async def test_what_was_written_is_found_again(self) -> None:
        host = await Host().start()
        await host.create(ONE, (1,))
        runner = host.replicas.runners[ONE, 0]
        runner.log.append_as_leader([batch("a")], leader_epoch=0, now_ms=1)
        await host.stop()
        again = await Host(host.files, host.control).start(was_clean=True)
        await settle(60)
        assert again.replicas.runners[ONE, 0].log.log_end_offset == 1
        assert again.replicas.reports() == ()
        await again.stop()
        host.control.stop()

    @virtual
    async def test_no_role_before_the_image_has_our_own_registration(self) -> None:
        # An older image may still name this broker leader, in its previous life.
        host = await Host().start()
        await host.create(ONE, (1, 2))
        await host.stop(is_clean=False)
        control = host.control
        host.files.kill()
        again = Host(host.files, control)
        await again.replicas.recover(was_clean=False)
        again.task = asyncio.get_running_loop().create_task(again.replicas.run())
        again.replicas.on_image(control.image)
        await settle(60)
        assert not again.replicas.runners
        stale = control.image
        epoch = await control.propose(registration(1, last_epoch=again.directory.broker_epoch))
        assert isinstance(epoch, int)
        again.replicas.broker_epoch = epoch
        again.replicas.on_image(stale)
        await settle(60)
        assert not again.replicas.runners
        again.replicas.on_image(control.image)
        await settle(60)
        assert again.replicas.runners[ONE, 0].leader is None
        again.task.cancel()
        control.stop()

    @virtual
    async def test_what_an_image_before_our_registration_gives_us_is_made_after_it(self) -> None:
        """Replicas of the two images are the same: that one of them was not acted on is no reason to wait longer."""
        host = await Host().start()
        await host.create(ONE, (2, 3))
        host.place((ONE, (2, 3, 1)))
        image = host.replicas._image
        assert image is not None
        epoch = host.replicas.broker_epoch = image.index + 1
        await settle(60)
        assert not host.replicas.runners
        again = replace(image.brokers[1], broker_epoch=epoch)
        host.replicas.on_image(replace(image, index=epoch, brokers=image.brokers.set(1, again)))
        await settle(60)
        assert set(host.replicas.runners) == {(ONE, 0)}
        await host.stop()
        host.control.stop()

    @virtual
    async def test_a_listed_replica_without_files_is_reported_damaged(self) -> None:
        host = await Host().start()
        await host.create(ONE, (1, 2))
        await host.stop()
        host.files.remove_tree(f"{ROOT}/topics/{ONE}")
        again = Host(host.files, host.control)
        await again.replicas.recover(was_clean=True)
        [report] = again.replicas.reports()
        assert (report.topic_id, report.partition, report.is_damaged) == (ONE, 0, True)
        host.control.stop()

    @virtual
    async def test_a_torn_tail_is_reported_as_suspect(self) -> None:
        host = await Host().start()
        await host.create(ONE, (1, 2))
        runner = host.replicas.runners[ONE, 0]
        for value in ("a", "b"):
            runner.log.append_as_leader([batch(value)], leader_epoch=0, now_ms=1)
        runner.log.flushing.sync_all()
        size = runner.log.size_bytes
        await host.stop(is_clean=False)
        host.files.kill()
        path = next(p for p in host.files.paths() if ONE in p and p.endswith(".log"))
        host.files.flip_bit(path, size - 1)
        again = Host(host.files, host.control)
        await again.replicas.recover(was_clean=False)
        [report] = again.replicas.reports()
        assert (report.is_damaged, report.last_epoch, report.log_end_offset) == (False, 0, 1)
        assert again.replicas._opened[ONE, 0].log.health is ReplicaHealth.SUSPECT
        host.control.stop()

    @virtual
    async def test_files_of_another_partition_are_refused(self) -> None:
        host = await Host().start()
        await host.create(ONE, (1, 2), (1, 2))
        await host.stop()
        host.files.remove_tree(f"{ROOT}/topics/{ONE}/0")
        host.files.rename_durably(f"{ROOT}/topics/{ONE}/1", f"{ROOT}/topics/{ONE}/0")
        again = Host(host.files, host.control)
        with pytest.raises(CorruptLogError):
            await again.replicas.recover(was_clean=True)
        host.control.stop()


class TestRoles:
    @virtual
    async def test_a_fenced_broker_leads_nothing_and_follows_the_next_leader(self) -> None:
        host = await Host().start()
        await host.create(ONE, (1, 2))
        await host.control.live(2_000, 1)
        runner = host.replicas.runners[ONE, 0]
        assert runner.role is ReplicaRole.FOLLOWER
        assert host.follows.leaders["a-0"] == 2
        await host.stop()
        host.control.stop()

    @virtual
    async def test_a_change_of_configs_is_told_to_the_replicas_of_its_topic_alone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A node may hold thousands: its loop, which answers clients, would stand still for each such change."""
        host = await Host().start()
        await host.create(ONE, (1, 2), (2, 1), (2, 3))
        await host.create(TWO, (1, 2))
        told: list[str] = []
        looks: list[None] = []
        on_image, reconcile = PartitionRunner.on_image, LocalReplicas._reconcile

        def hear(runner: PartitionRunner, *state: Any, **rest: Any) -> None:
            told.append(runner.name)
            on_image(runner, *state, **rest)

        def look(replicas: LocalReplicas) -> Awaitable[None]:
            looks.append(None)
            return reconcile(replicas)

        monkeypatch.setattr(PartitionRunner, "on_image", hear)
        monkeypatch.setattr(LocalReplicas, "_reconcile", look)
        monkeypatch.setattr(LocalReplicas, "_update_roles", pytest.fail)
        await host.control.propose(AlterConfigs(topic_id=ONE, changes=(("flush.ms", "5"),)))
        await settle(60)
        assert (told, looks) == (["a-0", "a-1"], [])
        assert [runner.settings.flush_ms for runner in host.replicas] == [5, 5, None]
        await host.stop()
        host.control.stop()

    @virtual
    async def test_a_change_of_a_partition_is_told_to_its_replica_alone_and_one_of_the_fleet_to_all(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A leader judges its followers by the epochs of their brokers, whatever partitions they have in common."""
        host = await Host().start()
        await host.create(ONE, (1, 2), (1, 2))
        await host.create(TWO, (1, 3))
        told: list[tuple[str, int]] = []
        on_image = PartitionRunner.on_image

        def hear(runner: PartitionRunner, *state: Any, brokers: Any, **rest: Any) -> None:
            told.append((runner.name, brokers[3].broker_epoch))
            on_image(runner, *state, brokers=brokers, **rest)

        monkeypatch.setattr(PartitionRunner, "on_image", hear)
        image = host.control.image
        before = image.partitions[ONE, 1]
        moved = replace(before, leader=2, leader_epoch=before.leader_epoch + 1)
        image = replace(
            image, index=image.index + 1, partitions=image.partitions.set((ONE, 1), moved)
        )
        host.replicas.on_image(image)
        former = image.brokers[3].broker_epoch
        assert told == [("a-1", former)]
        told.clear()
        again = replace(image.brokers[3], broker_epoch=former + 1)
        host.replicas.on_image(
            replace(image, index=image.index + 1, brokers=image.brokers.set(3, again))
        )
        assert sorted(told) == [(name, former + 1) for name in ("a-0", "a-1", "b-0")]
        await host.stop()
        host.control.stop()

    @virtual
    async def test_a_change_of_configs_and_of_a_leader_in_one_image_are_both_told(self) -> None:
        """Images in between may be skipped."""
        host = await Host().start()
        await host.create(ONE, (1, 2))
        await host.create(TWO, (1, 2))
        image = host.control.image
        altered = replace(image.topics[ONE], configs=Map({"flush.ms": "5"}))
        before = image.partitions[TWO, 0]
        moved = replace(before, leader=2, leader_epoch=before.leader_epoch + 1)
        host.replicas.on_image(
            replace(
                image,
                index=image.index + 1,
                topics=image.topics.set(ONE, altered),
                partitions=image.partitions.set((TWO, 0), moved),
            )
        )
        assert host.replicas.runners[ONE, 0].settings.flush_ms == 5
        assert host.replicas.runners[TWO, 0].role is ReplicaRole.FOLLOWER
        await host.stop()
        host.control.stop()

    @virtual
    async def test_a_node_that_stops_follows_nobody_any_more(self) -> None:
        made: list[int] = []

        def make(leader_id: int) -> "object":
            made.append(leader_id)
            raise AssertionError("no new loop while stopping")

        fetchers = ReplicaFetchers(make)  # type: ignore[arg-type]
        await fetchers.stop()
        fetchers.assign(object(), 2)  # type: ignore[arg-type]
        assert made == []

    @virtual
    async def test_retention_that_cannot_read_one_log_goes_on_with_the_others(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host = await Host().start()
        await host.create(ONE, (1,), (1,))
        done: list[int] = []

        def retain(partition: int) -> None:
            done.append(partition)
            raise CorruptLogError("unreadable")

        for runner in host.replicas.runners.values():
            unreadable = partial(retain, runner.partition)
            monkeypatch.setattr(runner.upkeep, "maybe_apply_retention", unreadable)
        host.replicas.run_retention()
        assert sorted(done) == [0, 1]
        await host.stop()
        host.control.stop()

    @virtual
    async def test_replicas_at_rest_are_looked_at_now_and_then(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host = await Host().start()
        await host.create(ONE, (1,), (1,))
        seen: list[int] = []
        quiet, busy = host.replicas.runners[ONE, 0], host.replicas.runners[ONE, 1]
        assert quiet.is_resting
        assert busy.is_resting
        monkeypatch.setattr(type(quiet), "tick", lambda runner, *_: seen.append(runner.partition))
        monkeypatch.setattr(busy.leader, "log_end", 1)
        assert not busy.is_resting
        for _ in range(2 * RESTING_TICKS):
            host.replicas.tick()
        assert (seen.count(0), seen.count(1)) == (2, 2 * RESTING_TICKS)
        await host.stop()
        host.control.stop()
