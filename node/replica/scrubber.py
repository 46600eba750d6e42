"""Checks the stored segments of all replicas in the background, and gives up copies that are damaged.

The scrubber checks one segment at a time, in steps on a worker thread, below a rate. A pass checks all replicas. It
starts with a random one, so that all are checked in time even if the node restarts often. Damage is checked a second
time, if the segment is still the same part of the log. Then the copy is given up, as if recovery had found the damage:

    others are in sync      If the copy leads, it takes no more writes and lets those in flight commit. One command
                            removes the copy from the ISR and passes its leadership on. Then the log is cut before the
                            damage, and the new leader restores the rest.
    this is the last one    The copy stays, because no other copy could restore it, and serves its sound records. The
                            scrubber tries again until another replica is in sync.

Followers, readers and the compactor also find damage, and the next pass may be days away. Until then, a leader would
send the same damaged bytes again and again, and a replica that a move adds would never catch up. So the scrubber checks
reported damage at once, also in the active segment: first near the reported offset, then the whole segment.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from random import Random

from milena.model.clock import Clock
from milena.model.errors import MilenaError
from node.config.budgets import PROPOSE_MS, SCRUB_RETRY_MS
from node.control.standing import Standing
from node.metadata.store import MetadataStore
from node.metrics.counts import ScrubCounts
from node.replica.compactor import REST_SHARE, Throttle
from node.replica.runner import PartitionRunner
from raft_meta.machine.commands import GiveUpReplicas, LeaderChange
from raft_meta.machine.topics import elections
from storage.segments.scrub import Damage, SegmentScrub

logger = logging.getLogger(__name__)

DOUBTS_BYTES_PER_S = 4 << 20
"""The rate at which reported damage is checked if there are no passes."""
COMMIT_MS_MAX = 1_000
"""How long to wait for writes in flight to commit before another replica leads."""


@dataclass(eq=False, kw_only=True)
class CopyGiver:
    """Gives up a damaged copy if another in-sync replica has its records."""

    metadata: MetadataStore
    standing: Standing

    async def give_up(self, runner: PartitionRunner, damage: Damage) -> bool:
        """Give up the copy; return False if the caller must try again later.

        Also return True if there is nothing to give up any more: the replica is closed, or the damage is gone.
        """
        if runner.is_closed or not runner.log.is_current(damage):
            return True
        if self._plan(runner) is None:
            return False
        runner.damage = damage
        is_taken = False
        try:
            if runner.leader is not None:
                await runner.wait_readable(
                    runner.log.log_end_offset - 1, COMMIT_MS_MAX, is_uncommitted=True
                )
            is_taken = await self._propose(runner)
        except MilenaError as error:
            logger.info("copy not given up partition=%s: %s", runner.name, error)
        finally:
            if not is_taken:
                runner.damage = None
        return is_taken

    def _plan(self, runner: PartitionRunner) -> LeaderChange | None:
        key = (runner.topic_id, runner.partition)
        return elections.plan_give_up(self.metadata.image, self.metadata.node_id, key)

    async def _propose(self, runner: PartitionRunner) -> bool:
        change = self._plan(runner)
        if change is None:
            return False
        answer = await self.metadata.propose(
            GiveUpReplicas(
                broker_id=self.metadata.node_id,
                broker_epoch=self.standing.broker_epoch,
                changes=(change,),
            ),
            timeout_ms=PROPOSE_MS,
        )
        assert isinstance(answer, tuple | list), answer
        return not any(answer)


@dataclass(eq=False, kw_only=True)
class Scrubber:
    """The background checks of one node; runs on the data loop."""

    runners: Iterable[PartitionRunner]
    settled: Callable[[], Awaitable[None]]
    clock: Clock
    pool: Executor
    bytes_per_s: int
    """The rate of passes; 0: no passes."""
    interval_ms: int
    """The time from the start of a pass to the start of the next."""
    counts: ScrubCounts
    giver: CopyGiver
    rng: Random

    def __post_init__(self) -> None:
        self._throttle = Throttle(self.bytes_per_s or DOUBTS_BYTES_PER_S)
        self._doubts: dict[PartitionRunner, int | None] = {}
        """Replica → the offset of the reported damage; None: anywhere in the closed segments."""

    def doubt(self, runner: PartitionRunner, offset: int | None) -> None:
        """Have the segment that holds ``offset`` checked soon (None: all closed ones), unless a check waits already."""
        # Thousands of readers may report the same damage. Known damage needs no second check.
        if runner in self._doubts or runner.kept_damage is not None:
            return
        self._doubts[runner] = offset
        logger.warning("damage met partition=%s offset=%s", runner.name, offset)

    async def attend(self) -> None:
        """Check reported damage, and try again to give up copies that had to be kept, until cancelled."""
        while True:
            await self.clock.sleep(SCRUB_RETRY_MS)
            for runner in list(self.runners):
                damage = runner.kept_damage
                if damage is not None and await self.giver.give_up(runner, damage):
                    runner.kept_damage = None
            self._count_kept()
            for runner, offset in list(self._doubts.items()):
                try:
                    await self._settle(runner, offset)
                finally:
                    # Removed only after the check, because readers continue to report the damage during it.
                    del self._doubts[runner]

    async def _settle(self, runner: PartitionRunner, offset: int | None) -> None:
        if offset is None:
            await self._scrub(runner)
        elif not await self._find(runner, offset, is_near=True):
            # The reported offset may be inexact.
            await self._find(runner, offset, is_near=False)

    async def _find(self, runner: PartitionRunner, offset: int, *, is_near: bool) -> bool:
        """Check the segment that holds ``offset``, or only near it; return False if everything checked is sound."""
        found_before = self.counts.damages
        if await self._scrub_segment(runner, offset, is_near=is_near) is not None:
            return self.counts.damages > found_before
        if runner.is_closed or runner.kept_damage is not None:
            return True
        look = runner.log.begin_look(offset, is_near=is_near)
        if look is not None and await self._check(look) is not None:
            # The scrub gives up copies only for damage in a closed segment, which does not change any more.
            await runner.upkeep.close_segment(offset)
            await self._scrub_segment(runner, offset, is_near=is_near)
            return True
        return False

    async def run(self) -> None:
        """Run one pass after the other, until cancelled."""
        # Before the node has opened its replicas, a pass would find none, and the next pass may be days away.
        await self.settled()
        while self.bytes_per_s:
            began_ms = self.clock.now_ms()
            await self.look()
            left_ms = began_ms + self.interval_ms - self.clock.now_ms()
            await self.clock.sleep(max(0, left_ms))

    async def look(self) -> None:
        """Run one pass through all replicas that are stored now."""
        began_ms = self.clock.now_ms()
        runners = list(self.runners)
        first = self.rng.randrange(len(runners)) if runners else 0
        for runner in (*runners[first:], *runners[:first]):
            await self._scrub(runner)
        self.counts.passes += 1
        self.counts.last_pass_ms = self.clock.wall_ms()
        logger.debug("scrubbed replicas=%d ms=%d", len(runners), self.clock.now_ms() - began_ms)

    async def _scrub(self, runner: PartitionRunner) -> None:
        offset: int | None = runner.log.log_start_offset
        while offset is not None:
            offset = await self._scrub_segment(runner, offset)

    async def _scrub_segment(
        self, runner: PartitionRunner, offset: int, *, is_near: bool = False
    ) -> int | None:
        """Check the closed segment that holds ``offset``; return its end, or None if there is no such segment."""
        if runner.is_closed or runner.kept_damage is not None:
            return None
        scrub = runner.log.begin_scrub(offset, is_near=is_near)
        if scrub is None:
            return None
        damage = await self._check(scrub)
        if damage is not None and await self._is_still_there(runner, damage):
            await self._on_damage(runner, damage)
        return scrub.summary.next_offset

    async def _check(self, scrub: SegmentScrub) -> Damage | None:
        loop = asyncio.get_running_loop()
        try:
            while not scrub.is_done:
                began_ms = self.clock.now_ms()
                checked = await loop.run_in_executor(self.pool, scrub.step)
                self.counts.checked_bytes += checked
                now_ms = self.clock.now_ms()
                # A step holds the interpreter's lock; see ``REST_SHARE`` of the compactor.
                pause_ms = self._throttle.pause_ms(checked, now_ms)
                await self.clock.sleep(max(REST_SHARE * (now_ms - began_ms), pause_ms))
        finally:
            scrub.close()
        return scrub.damage

    async def _is_still_there(self, runner: PartitionRunner, damage: Damage) -> bool:
        """Check the damage a second time: while it was read, the segment may have been truncated and written again."""
        if runner.is_closed or not runner.log.is_current(damage):
            return False
        scrub = runner.log.begin_scrub(damage.segment.base_offset, again=damage)
        found = None if scrub is None else await self._check(scrub)
        return (
            found is not None
            and found.segment is damage.segment
            and found.position == damage.position
            and runner.log.is_current(found)
        )

    async def _on_damage(self, runner: PartitionRunner, damage: Damage) -> None:
        if runner.kept_damage is not None or runner.damage is not None:
            return  # found twice, by a pass and by a report
        self.counts.damages += 1
        logger.error(
            "damage found partition=%s segment=%s offset=%d byte=%d reason=%s",
            runner.name,
            damage.path,
            damage.offset,
            damage.position,
            damage.reason,
        )
        if not await self.giver.give_up(runner, damage):
            logger.warning("damaged copy kept partition=%s: no other one is in sync", runner.name)
            runner.kept_damage = damage
        self._count_kept()

    def _count_kept(self) -> None:
        self.counts.held = sum(runner.kept_damage is not None for runner in self.runners)
