"""The log of a follower: adopt the leader's ends, and cut or replace the log where it differs from the leader's.

Four operations cut or replace the log. Each fails the waiters for the lost records with ``FateUnknownError``:

    truncate      The logs diverge: cut this log to where they may agree, but never below the committed records.
    restart       The leader has deleted the next records, or the record to compare: continue at its log start.
    give up       The copy is damaged: cut it before the damage. The leader restores the rest.
    copy again    The leader may have dropped tombstones or markers that refer to records of this copy: start at 0.

The last two are done only with copies that are neither in the ISR nor eligible. The runner owns this object. It decides
whether the replica follows a leader, and it appends and syncs.
"""

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from milena.model.errors import CorruptLogError, FateUnknownError, ReplicaDamagedError
from milena.model.types import ReplicaHealth
from node.replica.acknowledgements import Acknowledgements
from node.replica.follower import plan_truncation
from node.replica.log_changes import changes_replica
from node.replica.runner_context import RunnerContext
from raft_meta.machine.image import Partition
from storage.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from storage.segments.scrub import Damage

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, kw_only=True)
class FollowerLog:
    """The changes of a log that follow from the leadership of another replica.

    Invariants:
        All methods run on the data loop. ``high_watermark`` is an offset of the log, and falls only with the log's end.
    """

    log: PartitionLog
    acknowledgements: Acknowledgements
    context: RunnerContext
    name: str
    """The name of the partition, for log lines and messages."""
    is_stuck: bool = field(default=False, init=False)
    """Whether the leader demands to cut committed records. This replica refuses, and waits for an operator."""
    agreed_epoch: int = field(default=-1, init=False)
    """The last leader epoch in which the leader accepted a position of this log."""
    high_watermark: int = field(init=False)
    """The first offset that is not known to be committed. While this replica leads: the value before that."""

    def __post_init__(self) -> None:
        # Deleted records were committed, so the high watermark is at least the log start. If recovery cut the log, the
        # stored high watermark may be above the log's end.
        known = max(self.log.replica.checkpoint.high_watermark, self.log.log_start_offset)
        self.high_watermark = min(known, self.log.log_end_offset)

    # -- messages of the leader ------------------------------------------------------------------

    def advance(self, high_watermark: int) -> bool:
        """Adopt the leader's high watermark, but at most the end of this log; return whether this replica's moved."""
        reached = min(high_watermark, self.log.log_end_offset)
        if reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        return True

    def maybe_adopt_start(self, log_start: int) -> bool:
        """Delete the records that the leader has deleted, if they are committed here; return whether it deleted any.

        Raises:
            ReplicaDamagedError: the log was damaged in several places. It is empty now, and begins at 0.
        """
        if not self.log.log_start_offset < log_start <= self.high_watermark:
            return False
        try:
            with changes_replica(self.context.on_fatal):
                self.log.start.advance(log_start)
        except ReplicaDamagedError:
            self.note_emptied()
            raise
        return True

    def truncate(self, state: Partition, *, epoch: int, end_offset: int) -> None:
        """Cut the log to where it may agree with the leader's. There, the records of ``epoch`` end at ``end_offset``.

        Raises:
            CorruptLogError: the leader demands to cut committed records. This replica stops following it.
        """
        log = self.log
        truncation = plan_truncation(
            diverging_epoch=epoch,
            diverging_end=end_offset,
            epoch_end=log.state.epoch_end,
            log_start=log.log_start_offset,
            log_end=log.log_end_offset,
            high_watermark=self.high_watermark,
            last_epoch=log.state.epochs.last_epoch,
            partition=state,
        )
        if not truncation.is_allowed:
            self.is_stuck = True
            raise CorruptLogError(
                f"{self.name}: leader {state.leader} of epoch {state.leader_epoch} has no record of offsets "
                f"{truncation.offset} to {self.high_watermark - 1}, which are committed here; not truncating"
            )
        logger.info(
            "truncate partition=%s from=%d to=%d leader_epoch=%d high_watermark=%d",
            self.name,
            log.log_end_offset,
            truncation.offset,
            state.leader_epoch,
            self.high_watermark,
        )
        self.context.counts.truncations += 1
        with changes_replica(self.context.on_fatal):
            log.cutting.truncate_to(truncation.offset)
        self.high_watermark = min(self.high_watermark, log.log_end_offset)
        cut = FateUnknownError(
            f"{self.name}: another leader took over before the record was on every in-sync replica"
        )
        self.acknowledgements.fail_above(truncation.offset, cut)

    def restart(self, *, leader_epoch: int, log_start: int, producers: bytes) -> None:
        """Empty the log and continue at the leader's log start, with the leader's producer state.

        For a log that cannot be compared with the leader's any more.
        """
        logger.warning(
            "restart partition=%s log_end=%d at=%d leader_epoch=%d",
            self.name,
            self.log.log_end_offset,
            log_start,
            leader_epoch,
        )
        with changes_replica(self.context.on_fatal):
            self.log.cutting.restart_at(log_start, producers)
        self.high_watermark = log_start
        # The log had records above the leader's log start. It is unknown now whether the same records were committed.
        lost = FateUnknownError(f"{self.name}: the log was restarted at offset {log_start}")
        self.acknowledgements.fail_above(-1, lost)

    def note_emptied(self) -> None:
        """Follow the log, which emptied itself: it could not be cut before its damage, because of other damage."""
        logger.warning("copied again partition=%s: damaged in several places", self.name)
        self._begin_at_0()

    def _begin_at_0(self) -> None:
        self.high_watermark = 0
        lost = FateUnknownError(f"{self.name}: the copy that took the record is made again")
        self.acknowledgements.fail_above(-1, lost)

    # -- changes of the image --------------------------------------------------------------------

    def maybe_give_up(self, damage: "Damage", state: Partition) -> bool:
        """Cut the log before the damage; return False, and keep the log, if this copy is in the ISR or eligible.

        Call this when a leader epoch starts, before this replica sends a position to the leader. Otherwise it could
        send a position above the damage, join the ISR with it, and then lose the records below this position.
        """
        if self._counts_in(state):
            return False
        if not self.log.is_current(damage):
            return True
        logger.warning(
            "given up partition=%s log_end=%d from=%d leader_epoch=%d",
            self.name,
            self.log.log_end_offset,
            damage.offset,
            state.leader_epoch,
        )
        with changes_replica(self.context.on_fatal):
            self.log.give_up_from(damage)
        self.high_watermark = min(self.high_watermark, damage.offset)
        lost = FateUnknownError(f"{self.name}: the copy that took the record is damaged")
        self.acknowledgements.fail_above(damage.offset, lost)
        return True

    def maybe_begin_anew(self, state: Partition) -> None:
        """Empty a compacted log if parts of it may come from the logs of two replicas, so that it is copied as a whole.

        Parts may differ if recovery cut the log, or if a move of replicas is filling it. A copy in the ISR, or an
        eligible one, is kept.

        Each replica drops tombstones and markers by itself, once all replicas have them. This copy may have a record
        whose tombstone the present leader has dropped already. If it kept the record and fetched the rest, the deleted
        record would stay for ever. In the same way, a transaction without its marker would never end.

        Call this when a leader epoch starts, as ``maybe_give_up``. Within an epoch everything comes from one leader,
        and a leader drops no tombstones or markers while a copy is not in sync. This holds even if the topic becomes
        compacted during the epoch.

        The log restarts at 0, not at its former start. When it then fetches records that the leader has deleted, it
        gets the leader's producer state with them. Without that state, retries of these producers would count as new
        records.
        """
        log = self.log
        is_patched = log.health is not ReplicaHealth.SOUND or self._is_being_added(state)
        if not is_patched or not log.log_end_offset or self._counts_in(state):
            return
        reason = log.recovery.reason or "another leader"
        logger.warning("copied again partition=%s: %s", self.name, reason)
        with changes_replica(self.context.on_fatal):
            self.log.cutting.restart_at(0)
        self._begin_at_0()

    def _is_being_added(self, state: Partition) -> bool:
        return self.context.broker_id not in state.settled

    def _counts_in(self, state: Partition) -> bool:
        """Return whether this copy counts as one that has all committed records."""
        return self.context.broker_id in state.isr or self.context.broker_id in state.eligible
