"""The log of a replica that another one leads: adopts what the leader says, and ends where it must not be kept.

Three things cut it or replace it, and each tells those who wait for what is gone that nobody knows its fate:

    truncate        the logs part: end where they may agree, but never below what is committed
    restart         the leader deleted what would come next, or what it follows on: go on where its log starts
    give up, begin  the copy is damaged, or lacks a part that compaction may have changed: the leader restores it, and
    anew            nobody counts on it meanwhile

The runner owns it, says whether the replica follows at all, and appends and syncs.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from milena.model.errors import CorruptLogError, FateUnknownError
from milena.model.types import ReplicaHealth
from node.metrics.counts import NodeCounts
from node.replica.acknowledgements import Acknowledgements
from node.replica.follower import plan_truncation
from node.replica.log_changes import changes_replica
from raft_meta.machine.image import Partition
from storage.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from storage.segments.scrub import Damage

logger = logging.getLogger(__name__)


class FollowerLog:
    """Changes of a log that follow from another's leadership.

    Invariants:
        All methods run on the data loop. high_watermark lies in the log, and falls only with the log's end.
    """

    def __init__(
        self,
        log: PartitionLog,
        *,
        name: str,
        broker_id: int,
        acknowledgements: Acknowledgements,
        counts: NodeCounts,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.is_stuck = False
        """The leader wants committed records gone: this replica refuses and waits for an operator."""
        # What was deleted was committed. A log that recovery cut short has less than it knew to be committed.
        known = max(log.high_watermark_checkpoint, log.log_start_offset)
        self.high_watermark = min(known, log.log_end_offset)
        """First offset not known to be committed; while this replica leads: as it was before."""
        self.agreed_epoch = -1
        """The leader epoch in which its leader accepted a position of this log last."""
        self._log = log
        self._name = name
        self._broker_id = broker_id
        self._acknowledgements = acknowledgements
        self._counts = counts
        self._on_fatal = on_fatal

    # -- what the leader says --------------------------------------------------------------------

    def advance(self, high_watermark: int) -> bool:
        """Adopt the leader's high watermark, as far as the log reaches; whether ours moved."""
        reached = min(high_watermark, self._log.log_end_offset)
        if reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        return True

    def maybe_adopt_start(self, log_start: int) -> bool:
        """Delete what the leader has deleted, once that is committed here; whether anything was."""
        if not self._log.log_start_offset < log_start <= self.high_watermark:
            return False
        with changes_replica(self._on_fatal):
            self._log.advance_log_start(log_start)
        return True

    def truncate(self, state: Partition, *, epoch: int, end_offset: int) -> None:
        """The leader's records of ``epoch`` end at ``end_offset``, ours do not: cut to where the logs may agree.

        Raises:
            CorruptLogError: the leader wants committed records gone; this replica stops following.
        """
        log = self._log
        truncation = plan_truncation(
            diverging_epoch=epoch,
            diverging_end=end_offset,
            epoch_end=log.epoch_end,
            log_start=log.log_start_offset,
            log_end=log.log_end_offset,
            high_watermark=self.high_watermark,
            last_epoch=log.last_epoch,
            partition=state,
        )
        if not truncation.is_allowed:
            self.is_stuck = True
            raise CorruptLogError(
                f"{self._name}: leader {state.leader} of epoch {state.leader_epoch} has no record of offsets "
                f"{truncation.offset} to {self.high_watermark - 1}, which are committed here; not truncating"
            )
        logger.info(
            "truncate partition=%s from=%d to=%d leader_epoch=%d high_watermark=%d",
            self._name,
            log.log_end_offset,
            truncation.offset,
            state.leader_epoch,
            self.high_watermark,
        )
        self._counts.truncations += 1
        with changes_replica(self._on_fatal):
            log.truncate_to(truncation.offset)
        self.high_watermark = min(self.high_watermark, log.log_end_offset)
        cut = FateUnknownError(
            f"{self._name}: another leader took over before the record was on every in-sync replica"
        )
        self._acknowledgements.fail_above(truncation.offset, cut)

    def restart(self, *, leader_epoch: int, log_start: int, producers: bytes) -> None:
        """Go on at the leader's start, with its writers' state: ours cannot be held against its log any more."""
        logger.warning(
            "restart partition=%s log_end=%d at=%d leader_epoch=%d",
            self._name,
            self._log.log_end_offset,
            log_start,
            leader_epoch,
        )
        with changes_replica(self._on_fatal):
            self._log.restart_at(log_start, producers)
        self.high_watermark = log_start
        # Whether what was written here is what was committed cannot be told any more.
        lost = FateUnknownError(f"{self._name}: the log was restarted at offset {log_start}")
        self._acknowledgements.fail_above(-1, lost)

    # -- what the image says ---------------------------------------------------------------------

    def maybe_give_up(self, damage: "Damage", state: Partition) -> bool:
        """End before the damage that was found, once nobody counts on this copy any more; False: somebody does.

        At the beginning of a leader epoch, before anything was told to its leader: a position that this copy is about
        to lose must not bring it back into the ISR.
        """
        if self._counts_in(state):
            return False
        if not self._log.is_current(damage):
            return True
        logger.warning(
            "given up partition=%s log_end=%d from=%d leader_epoch=%d",
            self._name,
            self._log.log_end_offset,
            damage.offset,
            state.leader_epoch,
        )
        with changes_replica(self._on_fatal):
            self._log.give_up_from(damage)
        self.high_watermark = min(self.high_watermark, damage.offset)
        lost = FateUnknownError(f"{self._name}: the copy that took the record is damaged")
        self._acknowledgements.fail_above(damage.offset, lost)
        return True

    def maybe_begin_anew(self, state: Partition) -> None:
        """Copy a compacted log as a whole where a part of it is another one's: recovery cut it, or a move is adding it.

        Each replica drops tombstones and markers of transactions by itself once all have them. Behind our part those
        that speak of it may be gone from the log of whoever leads now: what a tombstone deleted would be here for ever,
        and a transaction would never end. Nobody counts on a copy that is not in sync.

        At the beginning of a leader epoch, as with ``maybe_give_up``. Within one all comes from the same log; while a
        copy is not in sync, none of these is dropped there, nor where a topic becomes compacted meanwhile.

        It begins at 0, wherever our log started: who asks for what is deleted is sent what is known of its writers,
        and their retries would be taken for new ones otherwise.
        """
        log = self._log
        is_patched = log.health is not ReplicaHealth.SOUND or self._is_being_added(state)
        if not is_patched or not log.log_end_offset or self._counts_in(state):
            return
        reason = log.recovery.reason or "another leader"
        logger.warning("copied anew partition=%s: %s", self._name, reason)
        with changes_replica(self._on_fatal):
            self._log.restart_at(0)
        self.high_watermark = 0
        lost = FateUnknownError(f"{self._name}: the copy that took the record is made anew")
        self._acknowledgements.fail_above(-1, lost)

    def _is_being_added(self, state: Partition) -> bool:
        return self._broker_id not in state.settled

    def _counts_in(self, state: Partition) -> bool:
        """Whether this copy is one of those that hold what is committed."""
        return self._broker_id in state.isr or self._broker_id in state.eligible
