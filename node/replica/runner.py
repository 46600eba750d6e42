"""The shell around one local replica: its log, its role, and all callers that wait for it.

Owned by the data loop. Appends that arrive in one turn of the loop become one write. One sync at a time runs on a
worker thread. What is written meanwhile is covered by the next sync (group commit). A leader works in this order:

    find duplicates → write → send to waiting followers → sync (thread) → move the high watermark → answer producers

So followers sync at the same time as the leader. If a writer waits for the leader's sync alone (acks=1), this sync
starts before the records are sent.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum, unique
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from milena.disk.files import Buffer
from milena.model.batch.encode import encode_marker
from milena.model.batch.header import BatchHeader, Extent, Marker, decode_header
from milena.model.errors import (
    CorruptLogError,
    DiskFullError,
    FateUnknownError,
    MilenaError,
    NotEnoughReplicasError,
    NotLeaderError,
    NotReadyError,
    OffsetOutOfRangeError,
    ReplicaDamagedError,
)
from milena.model.pending import Pending, Taker
from milena.model.requests import Acks, BatchReceipt
from milena.model.types import NO_OFFSET, MonotonicMs, ReplicaHealth
from node.metadata.topic_settings import log_config
from node.metrics.counts import PartitionCounts
from node.replica.acknowledgements import Acknowledgements
from node.replica.append_queue import AppendQueue
from node.replica.deletions import Deletions
from node.replica.follower_log import FollowerLog
from node.replica.group_commit import GroupSync
from node.replica.leader import FetchVerdict, IsrProposal, PartitionLeader
from node.replica.log_changes import changes_replica, is_fatal
from node.replica.log_upkeep import LogUpkeep
from node.replica.runner_context import RunnerContext
from raft_meta.machine.image import Broker, Ending, Partition
from raft_meta.machine.topics.configs import TopicSettings
from storage.log.partition_log import PartitionLog
from storage.state.transactions import Identity

if TYPE_CHECKING:
    from storage.segments.scrub import Damage

T = TypeVar("T")

logger = logging.getLogger(__name__)

Brokers = Mapping[int, Broker]


@unique
class ReplicaRole(StrEnum):
    """This node's role in the partition. OFFLINE: the partition has no leader, or the replica is new or closed."""

    LEADER = "leader"
    FOLLOWER = "follower"
    OFFLINE = "offline"


class ReplicaWatcher(Protocol):
    """An object that is called when a replica changes, for example a follower's fetch session."""

    def on_news(self, runner: "PartitionRunner") -> None:
        """Note that the log grew, the log start or the high watermark moved, or the role changed."""


class PartitionRunner:
    """One local replica.

    Invariants:
        All methods run on the data loop. Only this object and its parts use the log, except for syncs and disk reads
        on worker threads. ``high_watermark`` falls only with the log's end: after an unclean election, or when the copy
        is given up or restarted.
    """

    def __init__(
        self,
        log: PartitionLog,
        *,
        topic_id: str,
        topic: str,
        partition: int,
        settings: TopicSettings,
        context: RunnerContext,
    ) -> None:
        self.log = log
        self.topic_id = topic_id
        self.topic = topic
        self.partition = partition
        self.settings = settings
        self.role = ReplicaRole.OFFLINE
        self.leader: PartitionLeader | None = None
        self.leader_id: int | None = None
        self.leader_epoch = -1
        self.state: Partition | None = None
        self.watchers: dict[ReplicaWatcher, None] = {}
        """The watchers, in order of arrival, so that a simulated run repeats."""
        self.is_disk_full = False
        self.is_closed = False
        self.damage: Damage | None = None
        """Damage for which this copy is about to be given up. Until then, it appends no record as leader."""
        self.kept_damage: Damage | None = None
        """Damage of this copy, which stays in service because no other replica in sync can restore it."""
        self._no_source_at: tuple[int, int] | None = None
        """Leader epoch and end of the log for which the leader said that no live replica has the next records."""
        self.records_end: tuple[tuple[int, ...], int] | None = None
        """The ends of the log, and the offset after the last record that a reader of committed records sees then."""
        self.counts = PartitionCounts()
        self._context = context
        self._on_write = context.on_write
        self._acknowledgements = Acknowledgements(
            self.name, clock=context.clock, counts=context.counts
        )
        self._queue = AppendQueue(
            log=log,
            acknowledgements=self._acknowledgements,
            context=context,
            topic=topic,
            partition=partition,
            leader_epoch=self._epoch_for,
            reached=self._reached,
            on_appended=self._on_appended,
            on_disk_full=self._on_disk_full,
            on_transaction=self._on_transaction,
            counts=self.counts,
        )
        self._following = FollowerLog(
            log=log, acknowledgements=self._acknowledgements, context=context, name=self.name
        )
        self._deletions = Deletions(
            log=log, context=context, name=self.name, on_log_start=self._notify_watchers
        )
        self.upkeep = LogUpkeep(
            log=log,
            context=context,
            high_watermark=lambda: self.high_watermark,
            stable_end=lambda: self.stable_end,
            on_log_start=self._notify_watchers,
            on_checkpoint=self._on_stored,
        )
        self._syncs = GroupSync(log=log, context=context, on_synced=self._on_stored)

    # -- state -----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """``topic-partition``, for log lines and messages."""
        return f"{self.topic}-{self.partition}"

    @property
    def high_watermark(self) -> int:
        """The first offset that this replica does not know to be committed."""
        return self._following.high_watermark if self.leader is None else self.leader.high_watermark

    @property
    def stable_end(self) -> int:
        """The last stable offset: below it every record is committed, and every transaction is decided.

        It is never below the log start. If the leader deleted records of a transaction, the transaction is decided,
        even if its marker has not arrived here yet.
        """
        high_watermark, transactions = self.high_watermark, self.log.writers.transactions
        if not transactions:
            return high_watermark
        return max(self.log.log_start_offset, transactions.stable_end(high_watermark))

    def readable_end(self, *, is_uncommitted: bool) -> int:
        """Return the offset at which reading ends: the last stable offset, or the high watermark if uncommitted."""
        return self.high_watermark if is_uncommitted else self.stable_end

    @property
    def is_damaged(self) -> bool:
        """Whether recovery found this copy lost, or damaged below the recovery point."""
        return self.log.health is ReplicaHealth.DAMAGED

    @property
    def is_stuck(self) -> bool:
        """Whether the leader demands to cut committed records, so that this replica waits for an operator."""
        return self._following.is_stuck

    @property
    def has_no_source(self) -> bool:
        """Whether this follower cannot catch up: no live replica has sound records from the end of its log on."""
        return self._no_source_at == (self.leader_epoch, self.log.log_end_offset)

    @property
    def is_in_sync(self) -> bool:
        """Whether this copy is in the ISR, so that writers wait for its acknowledgement."""
        return self.state is not None and self._context.broker_id in self.state.isr

    @property
    def has_heirs(self) -> bool:
        """Whether another replica may take over while this leader has a lease.

        Members of the ISR, proposed members, and eligible replicas may. Eligible replicas left the ISR when it was too
        small to commit more records.
        """
        if self.leader is None or self.leader.has_heirs or self.state is None:
            return True
        return any(broker_id != self._context.broker_id for broker_id in self.state.eligible)

    # -- roles -----------------------------------------------------------------------------------

    def on_image(
        self, state: Partition, *, settings: TopicSettings, broker_epoch: int, brokers: Brokers
    ) -> None:
        """Take the role that the image gives to this replica."""
        self._syncs.take_end()
        self.settings = settings
        self._count_isr(state)
        self.state = state
        self.log.config = log_config(settings)
        if not state.is_complete:
            self.log.compaction.void_dropping()
        if state.leader_epoch == self.leader_epoch and self.leader is not None:
            if self.leader.on_image(state, min_insync=settings.min_insync_replicas):
                self._on_high_watermark()
            self._deletions.look()
            self._maybe_mark_sound(state)
            self.maybe_propose(brokers)
            return
        if state.leader_epoch != self.leader_epoch or state.leader != self.leader_id:
            is_later = state.leader_epoch > self.leader_epoch
            # This copy may have been restored, joined the ISR and been elected before this node saw any of it. It must
            # then count as sound before it takes its role, because no other replica leads in this epoch.
            self._maybe_mark_sound(state)
            self._change_role(state, broker_epoch)
            damage = self.damage
            if is_later and damage is not None and self._following.maybe_give_up(damage, state):
                self.damage = None
            if self.role is ReplicaRole.FOLLOWER and self.settings.is_compacted:
                self._following.maybe_begin_anew(state)
        self._maybe_mark_sound(state)

    def _maybe_mark_sound(self, state: Partition) -> None:
        """Mark the copy sound if it is in the ISR under a leader: it was restored, or elected as the last known one."""
        me = self._context.broker_id
        if self.log.health is ReplicaHealth.SOUND or state.leader is None or me not in state.isr:
            return
        if me not in state.damaged and all(s.broker_id != me for s in state.suspects):
            logger.info("sound again partition=%s leader_epoch=%d", self.name, state.leader_epoch)
            with changes_replica(self._context.on_fatal):
                self.log.cutting.mark_sound()

    def _count_isr(self, state: Partition) -> None:
        if self.leader is not None and state.leader_epoch == self.leader_epoch:
            before, after = self.leader.isr, frozenset(state.isr)
            self._context.counts.isr_shrinks += len(before - after)
            self._context.counts.isr_expands += len(after - before)

    def _change_role(self, state: Partition, broker_epoch: int) -> None:
        context = self._context
        self._following.high_watermark = self.high_watermark
        self.leader = None
        self.leader_epoch, self.leader_id = state.leader_epoch, state.leader
        self._following.is_stuck = False
        if state.leader == context.broker_id and not self.is_damaged:
            self.role = ReplicaRole.LEADER
            context.counts.leaders_taken += 1
            self.leader = PartitionLeader(
                broker_id=context.broker_id,
                broker_epoch=broker_epoch,
                leader_epoch=state.leader_epoch,
                partition_epoch=state.partition_epoch,
                replicas=state.replicas,
                isr=frozenset(state.isr),
                min_insync=self.settings.min_insync_replicas,
                lag_ms_max=context.lag_ms_max,
                epoch_start_offset=self.log.log_end_offset,
                log_end=self.log.log_end_offset,
                stored_end=self.log.stored_end_offset,
                high_watermark=min(self._following.high_watermark, self.log.log_end_offset),
                started_ms=context.clock.now_ms(),
                deleted_below=self.log.log_start_offset,
            )
            if self.leader.on_stored(self.log.stored_end_offset):
                self._on_high_watermark()
            self._syncs.maybe_begin()
        else:
            self.role = ReplicaRole.OFFLINE if state.leader is None else ReplicaRole.FOLLOWER
            self.log.state.uncommitted.forget()
        logger.info(
            "replica role=%s partition=%s log_end=%d high_watermark=%d leader_epoch=%d leader=%s isr=%s",
            self.role,
            self.name,
            self.log.log_end_offset,
            self.high_watermark,
            self.leader_epoch,
            self.leader_id,
            state.isr,
        )
        self._queue.refuse_all(self._not_leader())
        self._deletions.change_leader(self.leader)
        if self.leader is not None and self.log.writers.transactions.open:
            self._on_transaction()
        self._notify_watchers()
        # Waiting writers are not failed. A record of an earlier leadership is committed as soon as this replica's high
        # watermark passes it, under any leader, unless it is truncated. Waiting readers look again by themselves.

    def _not_leader(self) -> NotLeaderError:
        return NotLeaderError(
            f"node {self._context.broker_id} does not lead {self.name}; nothing was written",
            leader=self.leader_id,
        )

    # -- appending as leader ---------------------------------------------------------------------

    def append(
        self,
        batch: bytes,
        header: BatchHeader,
        *,
        acks: Acks,
        timeout_ms: int,
        at_once: bool = False,
        expected_end: int | None = None,
    ) -> Pending[BatchReceipt]:
        """Append one checked batch; return its receipt, which is ready once the batch is stored as ``acks`` requires.

        The batch is written together with all others that arrive in this turn of the loop. ``at_once``: write it now,
        because the caller has gathered batches already. ``expected_end``: write it only if it gets this offset.

        Raises (by the returned ``Pending``, which may be done already):
            PreconditionFailedError: the log ends elsewhere, and that end is committed. Another replica may lead now.
            NotLeaderError, NotEnoughReplicasError, DiskFullError, ...: nothing was appended.
            FateUnknownError: the batch was appended, but within ``timeout_ms`` this node did not see it committed.
        """
        return self._queue.submit(
            batch,
            header,
            acks=acks,
            timeout_ms=timeout_ms,
            at_once=at_once,
            expected_end=expected_end,
        )

    def append_marker(self, identity: Identity, ending: Ending | None) -> None:
        """End a transaction that is open in this leader's log. ``ending``: of a commit; None aborts it."""
        found = self.log.writers.transactions.open[identity]
        marker = Marker(
            is_commit=ending is not None,
            first_offset=found.first_offset,
            end_offset=0 if ending is None else ending.end_offset,
            extents=()
            if ending is None
            else tuple(
                Extent(row.topic_id, row.partition, row.base_offset, row.end_offset)
                for row in ending.extents
            ),
        )
        batch = encode_marker(
            marker,
            producer_id=identity[0],
            producer_epoch=identity[1],
            timestamp_ms=self._context.clock.wall_ms(),
        )
        # No caller waits for the marker. If it cannot be written, the transaction stays open and is tried again.
        self._queue.submit(
            batch,
            decode_header(batch),
            acks=Acks.NONE,
            timeout_ms=0,
            at_once=False,
            expected_end=None,
        )

    def may_append(self, acks: Acks) -> bool:
        """Return whether a batch with ``acks`` may be appended, as far as is known before the append."""
        try:
            self._epoch_for(acks)
        except MilenaError:
            return False
        return True

    def _reached(self, acks: Acks) -> int:
        """Return the offset below which batches with ``acks`` are answered."""
        if acks is Acks.LEADER:
            # A batch above that offset waits for the present sync, even if it is a duplicate and starts none.
            self._syncs.await_end()
        return self.high_watermark if acks is Acks.ALL else self.log.stored_end_offset

    def _epoch_for(self, acks: Acks) -> int:
        """Return the leader epoch under which a batch may be appended now.

        Raises:
            NotLeaderError, NotEnoughReplicasError: no batch may be appended.
        """
        if self.leader is None or self.is_closed or self.damage is not None:
            raise self._not_leader()
        if acks is Acks.ALL and not self.leader.has_enough_in_sync:
            raise NotEnoughReplicasError(
                f"{self.name} has {len(self.leader.isr)} in-sync replicas, min.insync.replicas is "
                f"{self.leader.min_insync}; nothing was written"
            )
        return self.leader_epoch

    def _on_appended(self, *, is_own_sync_awaited: bool) -> None:
        """After the log has grown under this leader: tell followers, start a sync and move the ends.

        ``is_own_sync_awaited``: some writer waits for the sync of this replica and for no other.
        """
        assert self.leader is not None
        if self._on_write is not None:
            self._on_write()
        self.is_disk_full = False
        self.leader.on_appended(self.log.log_end_offset, now_ms=self._context.clock.now_ms())
        self._notify_watchers()
        if is_own_sync_awaited or len(self.leader.isr) == 1:
            self._syncs.maybe_begin()
        else:
            # The followers' syncs decide when these writers are answered. So send the records first, which the watchers
            # do in the next turn: handing over a sync takes time, and its thread then competes for the interpreter.
            self._syncs.begin_soon()
        self._on_stored()

    def _on_transaction(self) -> None:
        self._context.on_transaction(self)

    def _on_disk_full(self) -> None:
        self.is_disk_full = True
        self._context.on_disk_full(self)

    # -- stored and committed ends ---------------------------------------------------------------

    def _on_stored(self) -> None:
        stored_end = self.log.stored_end_offset
        self._acknowledgements.on_stored(stored_end)
        if self.leader is not None and self.leader.on_stored(stored_end):
            self._on_high_watermark()

    def _on_high_watermark(self) -> None:
        self.log.state.uncommitted.forget_below(self.high_watermark)
        self._acknowledgements.on_committed(self.high_watermark, self.stable_end)
        self._notify_watchers()

    def _notify_watchers(self) -> None:
        for watcher in self.watchers:
            watcher.on_news(self)

    def on_lease_lost(self) -> None:
        """Fail all waiters for commits with ``FateUnknownError``, because another replica may lead now."""
        if self.leader is not None:
            self._acknowledgements.fail_uncommitted(
                self.high_watermark,
                FateUnknownError(
                    f"{self.name}: node {self._context.broker_id} is cut off from the metadata quorum; "
                    "the records may or may not have been written"
                ),
            )

    # -- serving followers -----------------------------------------------------------------------

    def lost_from(self, follower: int, brokers: Brokers) -> int:
        """Return the offset of damage in this leader's copy that no live replica can restore; NO_OFFSET without any.

        The follower itself does not count: it asks for these records.
        """
        damage, leader = self.kept_damage, self.leader
        if damage is None or leader is None or leader.may_restore(damage.offset, follower, brokers):
            return NO_OFFSET
        return damage.offset

    def on_replica_fetch(
        self,
        *,
        follower: int,
        broker_epoch: int,
        leader_epoch: int,
        offset: int,
        last_epoch: int,
        brokers: Brokers,
        log_start: int | None = None,
    ) -> FetchVerdict:
        """Decide about a follower's position. If it lies on this leader's log, count it as an acknowledgement.

        Raises:
            NotLeaderError: this node does not lead the partition.
        """
        leader = self.leader
        if leader is None:
            raise self._not_leader()
        # If followers have the records before this replica has stored them, writers wait for the end of its sync.
        self._syncs.take_end()
        verdict = leader.judge_fetch(
            follower=follower,
            broker_epoch=broker_epoch,
            leader_epoch=leader_epoch,
            offset=offset,
            last_epoch=last_epoch,
            log_start=self.log.log_start_offset,
            epoch_end=self.log.state.epoch_end(last_epoch),
            brokers=brokers,
        )
        if verdict is not FetchVerdict.ACCEPTED:
            return verdict
        try:
            if leader.on_accepted_fetch(
                follower=follower,
                broker_epoch=broker_epoch,
                offset=offset,
                now_ms=self._context.clock.now_ms(),
                log_start=log_start,
            ):
                self._on_high_watermark()
            if log_start is not None:
                self._deletions.look()
            if follower not in leader.isr or follower in leader.expelled:
                self.maybe_propose(brokers)
        except Exception as error:
            # This is what ``changes_replica`` does. A context manager would cost too much for each fetch.
            if is_fatal(error):
                self._context.on_fatal(error)
            raise
        return verdict

    def on_follower_room(self, follower: int, *, has_room: bool) -> None:
        """Note that a follower's disk is full, or has room again."""
        if self.leader is not None:
            self.leader.on_follower_room(follower, has_room=has_room)

    def agreed_end(self, epoch: int) -> tuple[int, int]:
        """Return the greatest epoch <= ``epoch`` that this log knows, and its end (exclusive).

        If the log knows no such epoch, return ``epoch`` with the log start. The log then has no record of that epoch
        above its start. So it shares no record there with a follower whose last record is of that epoch.
        """
        found, end = self.log.state.epoch_end(epoch)
        if found < 0 <= epoch:
            return epoch, self.log.log_start_offset
        return found, end

    def maybe_propose(self, brokers: Brokers) -> None:
        """Send an ISR change to the quorum, if one is due."""
        if self.leader is None:
            return
        proposal = self.leader.next_proposal(now_ms=self._context.clock.now_ms(), brokers=brokers)
        if proposal is not None:
            logger.info(
                "isr proposed partition=%s leader_epoch=%d from=%s to=%s",
                self.name,
                self.leader_epoch,
                sorted(self.leader.isr),
                sorted(proposal.broker_ids),
            )
            self._context.on_proposal(self, proposal)

    def on_proposal_done(self, proposal: IsrProposal, *, is_definite_refusal: bool) -> None:
        """Note the outcome of an ISR proposal: committed (the image shows it), refused, or unknown."""
        self._syncs.take_end()
        leader = self.leader
        if leader is None or leader.leader_epoch != proposal.leader_epoch:
            return
        with changes_replica(self._context.on_fatal):
            if leader.on_proposal_done(proposal, is_definite_refusal=is_definite_refusal):
                self._on_high_watermark()
            self._deletions.look()

    # -- following -------------------------------------------------------------------------------

    def append_as_follower(self, batches: bytes, *, leader_epoch: int) -> None:
        """Append the leader's batches unchanged. They are not stored yet; see ``call_when_stored``.

        Raises:
            NotLeaderError: the leader changed while the batches were in flight.
            DiskFullError, CorruptLogError: nothing was appended.
            ReplicaDamagedError: the log was damaged in several places. It is empty now, and begins at 0.
        """
        self._check_follows(leader_epoch)
        if self._on_write is not None:
            self._on_write()
        try:
            self.log.append_as_follower(batches)
        except DiskFullError:
            # The leader's writers wait for this replica until the controller removes it from the ISR.
            self._on_disk_full()
            raise
        except ReplicaDamagedError:
            self._following.note_emptied()
            raise
        except Exception as error:
            if is_fatal(error):
                self._context.on_fatal(error)
            raise
        self.is_disk_full = False
        self.counts.replicated_bytes_in += len(batches)
        self._syncs.maybe_begin()
        self._on_stored()

    def on_no_records(self, *, has_source: bool) -> None:
        """Note that the leader did not send sound records for the end of this log."""
        if has_source:
            self._no_source_at = None
        elif not self.has_no_source:
            self._no_source_at = self.leader_epoch, self.log.log_end_offset
            logger.warning(
                "cannot catch up partition=%s log_end=%d: the leader's copy is damaged, and no live replica has these "
                "records",
                self.name,
                self.log.log_end_offset,
            )

    def call_when_stored(self, taker: Taker[None]) -> None:
        """Complete ``taker`` once everything written so far is stored, as the topic's flushing requires.

        Call this only if something is not stored yet. If some of it is cut off, ``taker`` fails. A ``Pending`` is
        completed in the turn of the loop in which the sync ends.
        """
        self._acknowledgements.call_when_stored(self.log.log_end_offset, taker)
        self._syncs.maybe_begin()

    def advance_as_follower(
        self, *, leader_epoch: int, high_watermark: int, log_start: int
    ) -> bool:
        """Adopt the leader's high watermark (at most this log's end) and log start; return whether the start moved."""
        self._check_follows(leader_epoch)
        self._following.agreed_epoch = leader_epoch
        with changes_replica(self._context.on_fatal):
            if self._following.advance(high_watermark):
                self._on_high_watermark()
            return self._following.maybe_adopt_start(log_start)

    def adopt_leader_end(self, *, leader_epoch: int, high_watermark: int) -> None:
        """Adopt a high watermark that the leader sent outside of a fetch, but at most this log's end.

        It is ignored until the leader has accepted a position of this log in the present epoch. Before that, the log
        may have records that the leader does not have, and they must not count as committed.
        """
        is_followed = self.role is ReplicaRole.FOLLOWER and not self.is_closed
        is_agreed = self._following.agreed_epoch == leader_epoch == self.leader_epoch
        if is_followed and is_agreed:
            with changes_replica(self._context.on_fatal):
                if self._following.advance(high_watermark):
                    self._on_high_watermark()

    def truncate_as_follower(self, *, leader_epoch: int, epoch: int, end_offset: int) -> None:
        """Cut this log, which diverges from the leader's, to where the two may agree.

        Raises:
            CorruptLogError: the leader demands to cut committed records. This replica stops following it.
        """
        state = self._check_follows(leader_epoch)
        self._following.truncate(state, epoch=epoch, end_offset=end_offset)

    def restart_as_follower(self, *, leader_epoch: int, log_start: int, producers: bytes) -> None:
        """Restart this log at the leader's log start, with its producer state. For logs that cannot be compared."""
        self._check_follows(leader_epoch)
        self._following.restart(leader_epoch=leader_epoch, log_start=log_start, producers=producers)

    def _check_follows(self, leader_epoch: int) -> Partition:
        if self.role is not ReplicaRole.FOLLOWER or leader_epoch != self.leader_epoch:
            raise self._not_leader()
        if self.is_closed:
            raise NotReadyError(f"{self.name} is closing")
        assert self.state is not None
        return self.state

    # -- reading ---------------------------------------------------------------------------------

    def check_readable(self) -> None:
        """Raise if this copy is damaged and must not serve records.

        Raises:
            ReplicaDamagedError: this copy is damaged.
        """
        if self.is_damaged:
            raise ReplicaDamagedError(
                f"{self.name}: this copy is damaged; it is restored from its leader"
            )

    def check_offset(self, offset: int, *, has_lease: bool) -> None:
        """Raise if a reader's offset is out of range. Only an established leader with a lease can say that it is above.

        Raises:
            OffsetOutOfRangeError: the offset is below the log start, or above the end that the leader knows.
            NotReadyError: this leader does not know its end yet, or has no lease: another leader may have written more.
        """
        start, end = self.log.log_start_offset, self.high_watermark
        if start <= offset <= end:
            return
        leader = self.leader
        if offset < start:
            raise OffsetOutOfRangeError(
                f"offset {offset} of {self.name} is deleted; the first one is {start}"
            )
        if offset > self.log.log_end_offset and leader is not None:
            if not leader.is_established:
                raise NotReadyError(f"{self.name}: the new leader does not know its log end yet")
            if not has_lease:
                raise NotReadyError(f"{self.name}: this leader is cut off from the metadata quorum")
            raise OffsetOutOfRangeError(
                f"offset {offset} of {self.name} is above its end, {end}: give an offset from {start} to {end}"
            )

    async def wait_readable(
        self, offset: int, timeout_ms: int, *, is_uncommitted: bool = False
    ) -> None:
        """Wait until ``offset`` is readable here, but at most ``timeout_ms``."""
        if self.readable_end(is_uncommitted=is_uncommitted) > offset or timeout_ms <= 0:
            return
        await self._acknowledgements.readable(offset + 1, timeout_ms, is_uncommitted=is_uncommitted)

    def read_cached(self, offset: int, *, max_bytes: int, end_offset: int) -> bytes | None:
        """Read as ``read`` does, but from memory only. Return None if the read would have to wait for the disk."""
        try:
            return self.log.read_span_cached(offset, max_bytes=max_bytes, end_offset=end_offset)
        except CorruptLogError:
            self.on_doubt(offset)
            raise

    def read_for_replica(
        self, offset: int, *, max_bytes: int, end_offset: int
    ) -> Sequence[Buffer] | None:
        """Read as ``read_cached`` does. The result is in pieces: the last appends are returned without a copy."""
        chunks = self.log.read_uncommitted(offset, max_bytes=max_bytes, end_offset=end_offset)
        if chunks:
            return chunks
        found = self.read_cached(offset, max_bytes=max_bytes, end_offset=end_offset)
        return None if found is None else (found,)

    async def read(self, offset: int, *, max_bytes: int, end_offset: int) -> bytes:
        """Return whole batches, from the batch that holds ``offset`` on, below ``end_offset``.

        Raises:
            CorruptLogError: the stored records are damaged.
        """
        found = self.read_cached(offset, max_bytes=max_bytes, end_offset=end_offset)
        if found is not None:
            return found
        # Some page is not in the page cache. A read from the disk must not block the loop.
        return await self._in_pool(
            lambda: self.log.read_span(offset, max_bytes=max_bytes, end_offset=end_offset), offset
        )

    async def record_at_time(
        self, timestamp_ms: int, *, is_uncommitted: bool
    ) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record that is not older than ``timestamp_ms``; None without one."""
        return await self._in_pool(
            lambda: self.log.offset_for_timestamp(timestamp_ms, is_uncommitted=is_uncommitted), None
        )

    async def record_at_greatest_time(self, *, is_uncommitted: bool) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record with the greatest timestamp; None without records."""
        return await self._in_pool(
            lambda: self.log.greatest_timestamp(is_uncommitted=is_uncommitted), None
        )

    async def _in_pool(self, read: Callable[[], T], offset: int | None) -> T:
        """Read the log on a worker thread. ``offset``: where damage is reported; None: where the search met it."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._context.pool, read)
        except CorruptLogError as error:
            self.on_doubt(error.offset if offset is None else offset)
            raise

    def on_doubt(self, offset: int | None) -> None:
        """Have the log checked: a reader found damage at ``offset`` (None: at an unknown place)."""
        self.log.state.uncommitted.forget()
        self._context.on_doubt(self, offset)

    # -- housekeeping ----------------------------------------------------------------------------

    @property
    def is_resting(self) -> bool:
        """Whether ``tick`` has nothing to do. On a node with many replicas, this is so for nearly all of them."""
        log, leader = self.log, self.leader
        if log.flushing.synced_end < log.log_end_offset:
            return False
        return leader is None or leader.is_resting

    def tick(self, now_ms: MonotonicMs, brokers: Brokers) -> None:
        """Check followers' lag and start time-based syncs. Called a few times a second."""
        del now_ms
        self._syncs.take_end()
        self.maybe_propose(brokers)
        self._syncs.maybe_begin()

    async def delete_records(
        self, before: int | None, *, has_lease: bool, timeout_ms: float
    ) -> int:
        """Delete the records below ``before`` permanently; return the log start.

        ``before`` None: all records below the last stable offset. When this returns, the deletion is durable here and
        on every replica that may lead next. A repeated deletion changes nothing.

        Raises:
            NotLeaderError, NotEnoughReplicasError, NotReadyError, OffsetOutOfRangeError: nothing was deleted.
            FeatureLevelError: nothing was deleted, because a follower's release could not confirm the deletion.
            FateUnknownError: the records are deleted here. But within ``timeout_ms`` it did not become known that every
                replica that may lead next has deleted them, too.
        """
        self._epoch_for(Acks.ALL)
        return await self._deletions.delete(
            before, partial(self.established_end, has_lease=has_lease), timeout_ms=timeout_ms
        )

    def established_end(self, *, has_lease: bool, is_uncommitted: bool = False) -> int:
        """Return the offset at which reading ends, if this replica knows where the log ends.

        Raises:
            NotReadyError: this leader does not know its end yet, or has no lease: another one may have taken over.
        """
        leader = self.leader
        if leader is not None and not leader.is_established:
            raise NotReadyError(f"{self.name}: the new leader does not know its log end yet")
        if leader is not None and not has_lease:
            raise NotReadyError(f"{self.name}: this leader is cut off, another may have taken over")
        return self.readable_end(is_uncommitted=is_uncommitted)

    async def close(self, *, is_clean: bool) -> None:
        """Stop taking appends, sync what is written, store a checkpoint if ``is_clean``, and close the files."""
        self.is_closed = True
        self.upkeep.stop()
        self._queue.refuse_all(self._not_leader())
        await self._syncs.close()
        if is_clean:
            await asyncio.get_running_loop().run_in_executor(
                self._context.pool, self.log.checkpointing.run, self.high_watermark
            )
        self.leader = None
        self.role = ReplicaRole.OFFLINE
        self._deletions.change_leader(None)
        self._notify_watchers()
        self.watchers.clear()
        self.log.close(is_clean=is_clean)
        # Fail the waiting writers. This node cannot see their records committed any more, so it must not acknowledge
        # them.
        closed = FateUnknownError(
            f"{self.name}: the replica was closed before the record was committed"
        )
        self._acknowledgements.fail_above(-1, closed)
        self._acknowledgements.close()
