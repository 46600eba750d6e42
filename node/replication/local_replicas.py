"""The replicas of this node: create the replicas that the image gives to this broker, and remove all others.

This module ignores images from before this broker's registration: they may still name this broker as the leader of
partitions that its former process led. Logs are opened and created on worker threads, because that syncs files. Roles
change on the data loop.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter

from immutables import Map

from milena.disk.files import Files
from milena.model.errors import DiskFullError, MilenaError
from milena.model.types import ReplicaHealth
from node.config.budgets import LASTING_RETRY_MS
from node.metadata.image_parts import ImageParts
from node.metadata.topic_settings import log_config, topic_settings
from node.replica.runner import PartitionRunner, ReplicaRole
from node.replica.runner_context import RunnerContext
from node.replication.fetcher import ReplicaFetchers
from raft_meta.machine.commands import ReplicaReport
from raft_meta.machine.image import Image, PartitionKey, Topic
from storage.log.partition_log import PartitionLog
from storage.replica.data_directory import DataDirectory
from storage.segments.log_config import LogConfig
from storage.segments.uncommitted import UncommittedMemory

logger = logging.getLogger(__name__)

CREATED_AT_ONCE = 64
"""Number of replicas that are created at the same time, with one write of the manifest."""
RESTING_TICKS = 5
"""Resting replicas (``PartitionRunner.is_resting``) are checked only once in this many ticks. On an idle node with
thousands of replicas, these checks are most of the cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLog:
    """A log found on disk at start-up, before its topic is known from the image."""

    topic_id: str
    topic: str
    partition: int
    log: PartitionLog


class LocalReplicas:
    """All partition runners of this node.

    Invariants:
        A replica's files are created before the manifest lists it. The manifest lists a replica before the replica
        serves or acknowledges anything. So a listed replica without files is damaged, never new.
        A replica is removed only in a turn of the loop in which the newest image does not give it to this broker. From
        the first turn in which the image does not, the replica follows no leader. So all its acknowledgements are of
        leader epochs from before it left. They do not count if this broker gets the replica again.
    """

    def __init__(
        self,
        *,
        files: Files,
        directory: DataDirectory,
        context: RunnerContext,
        fetchers: ReplicaFetchers,
    ) -> None:
        self.runners: dict[PartitionKey, PartitionRunner] = {}
        self.broker_epoch = -1
        """The broker epoch, once this broker is registered. It is an index; images below it are ignored."""
        self.fetchers = fetchers
        """The fetchers that follow the leaders on other nodes."""
        self._files = files
        self._directory = directory
        self._context = context
        self._pool = context.pool
        self._clock = context.clock
        self._memory = UncommittedMemory()
        self._opened: dict[PartitionKey, OpenedLog] = {}
        self._leaving: dict[PartitionKey, PartitionLog] = {}
        """Logs of removed replicas. Their manifest entries and files are deleted before new replicas are created."""
        self._image: Image | None = None
        self._applied: Image | None = None
        self._roles = ImageParts("brokers", "topics", "partitions")
        self._places = ImageParts("brokers", "partitions")
        """The parts of an image that decide which replicas exist. ``brokers`` has this broker's registration."""
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._roles_changed = asyncio.Event()
        """Wakes the tasks that wait for a role, in order of arrival. It is set only for a moment."""
        self._ticks = 0
        self._altered: dict[PartitionRunner, None] = {}
        """Replicas whose topic's settings changed. Retention is applied to them in the next tick."""

    def __iter__(self) -> Iterator[PartitionRunner]:
        return iter(self.runners.values())

    def find(self, topic_id: str, partition: int) -> PartitionRunner | None:
        """Return the local replica of a partition, or None if this node has none."""
        return self.runners.get((topic_id, partition))

    async def leading(
        self, topic_id: str, partition: int, leader_epoch: int, *, timeout_ms: float
    ) -> PartitionRunner | None:
        """Wait until the replica is in this leader epoch or a later one; return the replica.

        The caller may learn of a leader before this node has seen the image, or created the files. If the time is up,
        return the replica in its present epoch; None if this node has no such replica.
        """
        deadline = self._clock.now_ms() + timeout_ms
        while True:
            runner = self.runners.get((topic_id, partition))
            if runner is not None and runner.leader_epoch >= leader_epoch:
                return runner
            left = deadline - self._clock.now_ms()
            if left <= 0:
                return runner
            with suppress(TimeoutError):
                async with asyncio.timeout(left / 1000):
                    await self._roles_changed.wait()

    # -- start-up --------------------------------------------------------------------------------

    async def recover(self, *, was_clean: bool) -> None:
        """Open every replica that the manifest lists, several at a time on the worker threads."""
        loop = asyncio.get_running_loop()
        for topic_id, partition in self._directory.unlisted_replicas():
            # A process ended while it created or removed this replica. The manifest does not list it, so it has not
            # served anything, or is not needed any more.
            path = self._directory.partition_directory(topic_id, partition)
            await loop.run_in_executor(self._pool, self._files.remove_tree, path)
        jobs = [
            loop.run_in_executor(self._pool, self._open_listed, topic_id, partition, was_clean)
            for topic_id, partition in self._directory.replicas()
        ]
        for opened in await asyncio.gather(*jobs):
            self._opened[opened.topic_id, opened.partition] = opened
            report = opened.log.recovery
            log = logger.info if report.health is ReplicaHealth.SOUND else logger.warning
            log(
                "recovered partition=%s-%d health=%s log_end=%d cut_bytes=%d reason=%s",
                opened.topic,
                opened.partition,
                report.health,
                opened.log.log_end_offset,
                report.cut_bytes,
                report.reason,
            )

    def _open_listed(self, topic_id: str, partition: int, was_clean: bool) -> OpenedLog:
        log = PartitionLog.open(
            self._files,
            self._directory.partition_directory(topic_id, partition),
            config=LogConfig(),
            topic_id=topic_id,
            topic_name="",
            partition=partition,
            is_listed=True,
            was_clean=was_clean,
            now_ms=self._clock.expiry_ms(),
            memory=self._memory,
        )
        return OpenedLog(
            topic_id=topic_id, topic=log.replica.meta.topic_name, partition=partition, log=log
        )

    def reports(self) -> tuple[ReplicaReport, ...]:
        """Return a report for the quorum about each replica that recovery found suspect or damaged."""
        return tuple(
            ReplicaReport(
                topic_id=opened.topic_id,
                partition=opened.partition,
                is_damaged=opened.log.health is ReplicaHealth.DAMAGED,
                last_epoch=opened.log.state.epochs.last_epoch,
                log_end_offset=opened.log.log_end_offset,
            )
            for opened in self._opened.values()
            if opened.log.health is not ReplicaHealth.SOUND
        )

    # -- following the image ---------------------------------------------------------------------

    def on_image(self, image: Image) -> None:
        """Adopt a new image: change the roles of existing replicas now. ``run`` creates and removes files later."""
        self._image = image
        if self.broker_epoch < 0 or image.index < self.broker_epoch:
            return
        if self._roles.have_changed(image):
            old = self._applied
            if (
                old is not None
                and old.brokers is image.brokers
                and old.partitions is image.partitions
            ):
                self._update_settings(old, image)
            else:
                self._update_roles(image)
        if self._places.have_changed(image):
            self._work.set()

    def _update_settings(self, old: Image, image: Image) -> None:
        """Apply an image in which only topics changed. No role changes, and only these topics' replicas are visited."""
        self._applied = image
        # The order must not depend on hashes, so that a simulated run repeats.
        for topic in sorted(_altered_topics(old, image), key=attrgetter("topic_id")):
            for partition in range(topic.partition_count):
                runner = self.runners.get((topic.topic_id, partition))
                if runner is not None:
                    self._give_role(runner, image, topic)

    def _update_roles(self, image: Image) -> None:
        old = self._applied
        self._applied = image
        is_same_fleet = old is not None and old.brokers is image.brokers
        altered = {topic.topic_id for topic in _altered_topics(old, image)}
        for key, runner in self.runners.items():
            state = image.partitions.get(key)
            if state is None:
                continue
            if is_same_fleet and runner.state is state and key[0] not in altered:
                continue
            self._give_role(runner, image, image.topics[key[0]])
        self._roles_changed.set()
        self._roles_changed.clear()

    def _give_role(self, runner: PartitionRunner, image: Image, topic: Topic) -> None:
        state = image.partitions[runner.topic_id, runner.partition]
        settings = topic_settings(topic)
        if settings != runner.settings:
            self._altered[runner] = None
        runner.on_image(
            state,
            settings=settings,
            broker_epoch=self.broker_epoch,
            brokers=image.brokers,
        )
        me = self._context.broker_id
        # A replica that left stays until its files are removed. It must not fetch under this leader epoch: the leader
        # may already have a newer image that gives the replica back. It would count the fetch as an acknowledgement of
        # records that are about to be deleted.
        is_follower = (
            runner.role is ReplicaRole.FOLLOWER and state.leader != me and me in state.replicas
        )
        self.fetchers.assign(runner, state.leader if is_follower else None)

    async def run(self) -> None:
        """Create and delete replicas as the image requires; run until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            image = self._image
            if image is None or self.broker_epoch < 0 or image.index < self.broker_epoch:
                continue
            self._idle.clear()
            try:
                await self._reconcile()
            except DiskFullError as error:
                logger.warning("replicas not made or removed: %s", error)
                await self._clock.sleep(LASTING_RETRY_MS)
                self._work.set()
            self._idle.set()

    async def settled(self) -> None:
        """Wait until the replicas of the newest image are created and the others are removed."""
        while self._work.is_set() or not self._idle.is_set():
            await self._idle.wait()
            await self._clock.sleep(0)

    async def _reconcile(self) -> None:
        await self._remove_unwanted()
        image, me = self._image, self._context.broker_id
        assert image is not None, "reconciled without an image"
        missing = sorted(
            key
            for key, state in image.partitions.items()
            if me in state.replicas and key not in self.runners
        )
        for first in range(0, len(missing), CREATED_AT_ONCE):
            await self._add(missing[first : first + CREATED_AT_ONCE], image)
            self._update_roles(self._image or image)

    def _is_wanted(self, key: PartitionKey) -> bool:
        """Return whether the newest image gives this broker the replica."""
        assert self._image is not None
        state = self._image.partitions.get(key)
        return state is not None and self._context.broker_id in state.replicas

    async def _add(self, keys: Sequence[PartitionKey], image: Image) -> None:
        logs = await self._make([key for key in keys if key not in self._opened], image)
        for key in keys:
            topic = image.topics[key[0]]
            opened = self._opened.pop(key, None)
            log = logs[key] if opened is None else opened.log
            log.config = log_config(topic_settings(topic))
            self.runners[key] = PartitionRunner(
                log,
                topic_id=key[0],
                topic=topic.name,
                partition=key[1],
                settings=topic_settings(topic),
                context=self._context,
            )

    async def _make(
        self, keys: Sequence[PartitionKey], image: Image
    ) -> dict[PartitionKey, PartitionLog]:
        """Create the files of new replicas, and list them in the manifest.

        Raises:
            DiskFullError: none was created, and the files are removed. When there is room again, these replicas may
                belong to another broker.
        """
        loop = asyncio.get_running_loop()
        jobs = (
            loop.run_in_executor(self._pool, self._create, image.topics[key[0]], key[1])
            for key in keys
        )
        # Wait for all jobs, even after a failure: a creation in progress must not overlap with the next attempt.
        made = await asyncio.gather(*jobs, return_exceptions=True)
        logs = [log for log in made if isinstance(log, PartitionLog)]
        failures = [error for error in made if isinstance(error, BaseException)]
        # If an error is not a full disk, raise that one: it stops the node.
        failures.sort(key=lambda error: isinstance(error, DiskFullError))
        try:
            if failures:
                raise failures[0]
            # One write of the manifest for all replicas: each write is synced, and a topic may have many partitions.
            await loop.run_in_executor(self._pool, self._directory.add_replicas, keys)
        except DiskFullError:
            for log in logs:
                await loop.run_in_executor(self._pool, log.delete)
            raise
        return dict(zip(keys, logs, strict=True))

    def _create(self, topic: Topic, partition: int) -> PartitionLog:
        path = self._directory.partition_directory(topic.topic_id, partition)
        try:
            return PartitionLog.open(
                self._files,
                path,
                config=log_config(topic_settings(topic)),
                topic_id=topic.topic_id,
                topic_name=topic.name,
                partition=partition,
                is_listed=False,
                was_clean=False,
                now_ms=self._clock.expiry_ms(),
                memory=self._memory,
            )
        except DiskFullError:
            self._files.remove_tree(path)
            raise

    async def _remove_unwanted(self) -> None:
        """Remove the replicas that the newest image does not give to this broker: close them, then delete their files.

        Deleting files takes time. During it, the cluster may give a replica back to this broker. So all replicas are
        taken out of ``runners`` in one turn of the loop, by the newest image, and this method uses no older one.

        Raises:
            DiskFullError: there is no room for the manifest. The next attempt deletes the files.
        """
        closing: list[PartitionRunner] = []
        for key in [k for k in (*self.runners, *self._opened) if not self._is_wanted(k)]:
            runner, opened = self.runners.pop(key, None), self._opened.pop(key, None)
            if runner is not None:
                logger.info("replica removed partition=%s", runner.name)
                self.fetchers.assign(runner, None)
                closing.append(runner)
                self._leaving[key] = runner.log
            elif opened is not None:
                self._leaving[key] = opened.log
        for runner in closing:
            await runner.close(is_clean=False)
        if not self._leaving:
            return
        loop = asyncio.get_running_loop()
        keys = tuple(self._leaving)
        # One write of the manifest for all replicas, as in ``_make``.
        await loop.run_in_executor(self._pool, self._directory.remove_replicas, keys)
        for key in keys:
            await loop.run_in_executor(self._pool, self._leaving[key].delete)
            del self._leaving[key]

    # -- housekeeping ----------------------------------------------------------------------------

    def tick(self) -> None:
        """Run the lag checks and time-based syncs of every replica, and retention where settings changed."""
        image = self._applied
        if image is None:
            return
        now_ms = self._clock.now_ms()
        self._ticks += 1
        is_for_all = self._ticks % RESTING_TICKS == 0
        for runner in self.runners.values():
            if is_for_all or not runner.is_resting:
                runner.tick(now_ms, image.brokers)
        altered, self._altered = self._altered, {}
        self._apply_retention(altered)

    def on_lease_lost(self) -> None:
        """Pass on to every replica that this node has lost its lease."""
        for runner in self.runners.values():
            runner.on_lease_lost()

    def run_retention(self) -> None:
        """Delete what retention allows, where this node leads. Followers adopt their leader's log start."""
        self._apply_retention(self.runners.values())

    @staticmethod
    def _apply_retention(runners: Iterable[PartitionRunner]) -> None:
        for runner in runners:
            if runner.role is ReplicaRole.LEADER:
                try:
                    runner.upkeep.maybe_apply_retention()
                except MilenaError as error:
                    logger.warning("retention partition=%s: %s", runner.name, error)

    async def close(self, *, is_clean: bool) -> None:
        """Stop following, then sync and close every log."""
        await self.fetchers.stop()
        for runner in self.runners.values():
            await runner.close(is_clean=is_clean)
        for opened in self._opened.values():
            opened.log.close(is_clean=is_clean)


def _altered_topics(old: Image | None, image: Image) -> list[Topic]:
    """Return the topics that are new or changed."""
    before: Map[str, Topic] = Map() if old is None else old.topics
    if before is image.topics:
        return []
    return [topic for key, topic in image.topics.items() if before.get(key) is not topic]
