"""Decisions of the leader of one partition: the high watermark, and which replicas join or leave the ISR.

Pure: it gets all input as arguments and returns decisions. ``node.replica.runner`` calls it and carries out its
decisions. One object serves one leader epoch and is discarded with it.

The protocol in short (Kafka's sources: KIP-101, KIP-279, KIP-595, KIP-966):

- A follower's fetch acknowledges what the follower has *stored*. The fetch must name this leader epoch and the
  follower's live broker epoch, and its (offset, last epoch) must lie on the leader's log. Before a follower's first
  such fetch, a new leader does not know the follower's end.
- The high watermark is the least stored end of all replicas in the committed ISR and in all outstanding ISR proposals.
  A proposal is outstanding until the image's partition epoch has moved, or until the quorum definitely refused it. A
  timeout does not end it, because the quorum may still commit it. With this union, the high watermark is right whether
  a proposal is committed or not.
- The high watermark advances only while the *committed* ISR has ``min.insync.replicas`` members, and never falls.
- A deletion of records by a client is final once every member of the same union has deleted them, because the next
  leader is one of these. A replica that has not deleted them may not join (``deleted_below``).
- The high watermark is *established* once it has reached the log end with which this epoch started. Before that, an
  earlier leader may have acknowledged records above it. So whether an offset is out of range, and which is the latest,
  is decided only after that.

A move of a replica to another broker follows the same rules. When a replica is removed, the leader epoch rises. So a
later leader counts nothing that the removed replica acknowledged.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from milena.model.types import MonotonicMs
from raft_meta.machine.image import Broker, Partition

UNKNOWN_OFFSET = -1

REJOIN_PAUSE_MS = 1_000
"""The pause before this leader proposes a member again that the controller has removed from the ISR.

The controller's reason may still hold. Without a pause, leader and controller would undo each other's changes as fast
as the quorum commits them.
"""


class FetchVerdict(Enum):
    """The leader's decision about a follower's fetch. The position is the fetch's (offset, last epoch)."""

    ACCEPTED = auto()
    """The position lies on the leader's log. The fetch acknowledges the records below it and gets those that follow."""
    DIVERGING = auto()
    """The position is not on the leader's log. The follower must truncate its log and fetch again."""
    BELOW_LOG_START = auto()
    """The leader has deleted the next records, or the record to compare with the follower's last one.

    The follower must restart its log.
    """
    STALE_LEADER_EPOCH = auto()
    """The fetch names an earlier leader epoch. The follower's image will tell it the present one."""
    UNKNOWN_LEADER_EPOCH = auto()
    """The fetch names a later leader epoch than this node knows."""
    STALE_BROKER_EPOCH = auto()
    """The broker epoch is of an earlier process of the broker, or of a new one that this image does not have yet."""
    NOT_A_REPLICA = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrProposal:
    """A change of the ISR that the leader proposes to the quorum. It is valid only for ``partition_epoch``.

    ``members``: pairs of broker id and the broker epoch under which the member caught up.
    """

    leader_epoch: int
    partition_epoch: int
    members: tuple[tuple[int, int], ...]

    @property
    def broker_ids(self) -> frozenset[int]:
        """Ids of the members."""
        return frozenset(broker_id for broker_id, _ in self.members)


@dataclass(slots=True, kw_only=True)
class FollowerProgress:
    """The leader's knowledge of one follower. Times are monotonic ms."""

    broker_epoch: int
    stored_end: int
    """The end (exclusive) that it acknowledged in this epoch; UNKNOWN_OFFSET before its first fetch."""
    caught_up_ms: MonotonicMs
    """The last time at which it had every record that the leader had written by then."""
    last_fetch_ms: MonotonicMs
    log_end_at_last_fetch: int
    log_start: int = UNKNOWN_OFFSET
    """The log start that it sent last; UNKNOWN_OFFSET if its release sends none."""


@dataclass(slots=True, kw_only=True)
class PartitionLeader:
    """Leadership of one partition in one epoch.

    Invariants:
        ``high_watermark`` never falls. It never advances beyond ``stored_end`` or any in-sync member's stored end.
        At most one proposal is in flight (sent and unanswered). Several may be outstanding (of unknown fate).
        Offsets are exclusive ends.
    """

    broker_id: int
    broker_epoch: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: frozenset[int]
    min_insync: int
    lag_ms_max: int
    epoch_start_offset: int
    """The log end at the start of this leadership."""
    log_end: int
    stored_end: int
    high_watermark: int
    started_ms: MonotonicMs
    followers: dict[int, FollowerProgress] = field(default_factory=dict)
    outstanding: list[IsrProposal] = field(default_factory=list)
    """Proposals whose fate is unknown, without duplicates: a leader that is cut off repeats the same proposal."""
    in_flight: IsrProposal | None = None
    is_in_flight_again: bool = False
    """Whether the proposal in flight was sent before, and the fate of that first copy is unknown. If the quorum refuses
    the present copy, the first copy may still have been committed."""
    without_room: set[int] = field(default_factory=set)
    """Followers whose disk is full. If one of them joined the ISR, the controller would remove it again."""
    taken_out: dict[int, MonotonicMs | None] = field(default_factory=dict)
    """Members that the controller removed → the time when ``next_proposal`` first saw this; None before that."""
    deleted_below: int = 0
    """Records below this offset were deleted for a client, in this leadership or an earlier one."""
    expelled: set[int] = field(default_factory=set)
    """Members whose fetch is below the high watermark: they lost acknowledged records, and must leave the ISR."""

    @property
    def is_established(self) -> bool:
        """Whether every record that earlier leaders acknowledged is known to lie below the high watermark."""
        return self.high_watermark >= self.epoch_start_offset

    @property
    def has_enough_in_sync(self) -> bool:
        """Whether the committed ISR is large enough to append batches with acks=all."""
        return len(self.isr) >= self.min_insync

    @property
    def has_heirs(self) -> bool:
        """Whether the controller may elect another replica while this leader has a lease.

        It may elect members of the committed ISR, which only this leader's proposals extend. It may also elect eligible
        replicas, which the runner checks. Before it elects any other replica, it waits for the end of the lease.
        """
        proposals = [*self.outstanding, *([] if self.in_flight is None else [self.in_flight])]
        return any(
            members - {self.broker_id}
            for members in (self.isr, *(proposal.broker_ids for proposal in proposals))
        )

    @property
    def is_resting(self) -> bool:
        """Whether no passing of time makes work due: all records committed, all replicas in sync, no proposal open."""
        return (
            self.high_watermark == self.log_end
            and self.in_flight is None
            and not self.outstanding
            and len(self.isr) == len(self.replicas)
        )

    # -- events ----------------------------------------------------------------------------------

    def on_image(self, partition: Partition, *, min_insync: int) -> bool:
        """Adopt the committed state of this leader epoch; return whether the high watermark moved."""
        assert partition.leader_epoch == self.leader_epoch, (
            partition.leader_epoch,
            self.leader_epoch,
        )
        self.min_insync = min_insync
        self.replicas = partition.replicas
        if partition.partition_epoch > self.partition_epoch:
            self.partition_epoch = partition.partition_epoch
            isr = frozenset(partition.isr)
            # If this leader did not propose the new ISR, the controller set it. ``next_proposal`` adds the time later,
            # because this method has no clock.
            if all(proposal.broker_ids != isr for proposal in self.outstanding):
                self.taken_out |= dict.fromkeys(self.isr - isr)
            for member in isr:
                self.taken_out.pop(member, None)
            self.isr = isr
            # A proposal is valid for one partition epoch. The epoch has moved, so older proposals are decided.
            self.outstanding = [
                p for p in self.outstanding if p.partition_epoch >= partition.partition_epoch
            ]
            self.expelled &= self.isr
        return self._maybe_advance()

    def on_appended(self, log_end: int, *, now_ms: MonotonicMs) -> None:
        """Note that the log grew to ``log_end``. The new records are written, but not yet stored."""
        assert log_end >= self.log_end, (log_end, self.log_end)
        before = self.log_end
        for progress in self.followers.values():
            if progress.stored_end >= before:
                # The follower had everything until now, so its lag starts now. Otherwise, after a quiet time, it would
                # seem to lag since its last fetch: a follower does not repeat an unchanged position.
                progress.caught_up_ms = now_ms
        self.log_end = log_end

    def on_stored(self, stored_end: int) -> bool:
        """Note the leader's own stored end; return whether the high watermark moved."""
        self.stored_end = max(self.stored_end, stored_end)
        return self._maybe_advance()

    def judge_fetch(  # noqa: PLR0911 - a verdict each, in the order that they must be judged
        self,
        *,
        follower: int,
        broker_epoch: int,
        leader_epoch: int,
        offset: int,
        last_epoch: int,
        log_start: int,
        epoch_end: tuple[int, int],
        brokers: Mapping[int, Broker],
    ) -> FetchVerdict:
        """Return whether a fetch counts as an acknowledgement. This changes nothing.

        ``epoch_end``: (epoch, end offset) of the leader's greatest epoch <= ``last_epoch``. The epoch is negative if
        the leader's log has no such epoch.
        """
        # Compare epochs first: a fetch under another leadership, or of an earlier process, says nothing about this log.
        if leader_epoch != self.leader_epoch:
            is_old = leader_epoch < self.leader_epoch
            return FetchVerdict.STALE_LEADER_EPOCH if is_old else FetchVerdict.UNKNOWN_LEADER_EPOCH
        broker = brokers.get(follower)
        if broker is None or broker.broker_epoch != broker_epoch:
            return FetchVerdict.STALE_BROKER_EPOCH
        if follower not in self.replicas:
            return FetchVerdict.NOT_A_REPLICA
        if offset < log_start:
            return FetchVerdict.BELOW_LOG_START
        if last_epoch < 0 and offset <= self.log_end:
            # The follower's log is empty, so no record in it can differ. Its offset may lie above this leader's high
            # watermark: another leader had committed and deleted the records below it, and this one does not know yet.
            return FetchVerdict.ACCEPTED
        epoch, end = epoch_end
        if epoch < 0 and offset == log_start:
            # The follower's log ends at the log start, with a last record that this log never had. No reader may have
            # seen that record, but the follower's producer state contains it. As leader, the follower would then take
            # the retry of this record for a duplicate.
            return FetchVerdict.BELOW_LOG_START
        # KIP-595: the position is on this log only if this log has the follower's last epoch up to the offset.
        if epoch != last_epoch or offset > end:
            return FetchVerdict.DIVERGING
        return FetchVerdict.ACCEPTED

    def on_accepted_fetch(
        self,
        *,
        follower: int,
        broker_epoch: int,
        offset: int,
        now_ms: MonotonicMs,
        log_start: int | None = None,
    ) -> bool:
        """Count an accepted fetch as an acknowledgement; return whether the high watermark moved.

        ``log_start``: the start of the follower's log, if the follower sent it with this position.
        """
        progress = self.followers.get(follower)
        if progress is None or progress.broker_epoch != broker_epoch:
            # Another broker epoch means another process. What the former one acknowledged may be lost with its disk.
            progress = FollowerProgress(
                broker_epoch=broker_epoch,
                stored_end=UNKNOWN_OFFSET,
                caught_up_ms=self.started_ms,
                last_fetch_ms=now_ms,
                log_end_at_last_fetch=self.log_end,
            )
            self.followers[follower] = progress
        if follower in self.isr and offset < self.high_watermark:
            # The follower lost records that it had acknowledged. From now on, its present end counts. It must leave the
            # ISR, because each member must have all records below the high watermark.
            self.expelled.add(follower)
        progress.stored_end = offset
        if log_start is not None:
            progress.log_start = log_start
        if offset >= self.log_end:
            progress.caught_up_ms = now_ms
        elif offset >= progress.log_end_at_last_fetch:
            # On a busy log a follower may never reach the end. It counts as caught up if it has reached the end that
            # the log had at its previous fetch.
            progress.caught_up_ms = max(progress.caught_up_ms, progress.last_fetch_ms)
        progress.last_fetch_ms = now_ms
        progress.log_end_at_last_fetch = self.log_end
        return self._maybe_advance()

    def on_deleted(self, offset: int) -> None:
        """Note that a client deleted everything below ``offset``. This log starts there, or above."""
        self.deleted_below = max(self.deleted_below, offset)

    @property
    def silent_members(self) -> tuple[int, ...]:
        """Members whose release does not send their log start. With such a member, no deletion can be confirmed."""
        return tuple(
            member
            for member in sorted(self._counted - {self.broker_id})
            if (progress := self.followers.get(member)) is not None
            and progress.log_start == UNKNOWN_OFFSET
        )

    def has_adopted(self, offset: int) -> bool:
        """Return whether every replica that may lead next is known to have a log start of ``offset`` or more."""
        return self.has_enough_in_sync and all(
            (progress := self.followers.get(member)) is not None and progress.log_start >= offset
            for member in self._counted
            if member != self.broker_id
        )

    def on_follower_room(self, follower: int, *, has_room: bool) -> None:
        """Note whether the follower's disk has room. Without room it may stay in the ISR, but not join it."""
        if has_room:
            self.without_room.discard(follower)
        else:
            self.without_room.add(follower)

    # -- the ISR ---------------------------------------------------------------------------------

    def next_proposal(
        self, *, now_ms: MonotonicMs, brokers: Mapping[int, Broker]
    ) -> IsrProposal | None:
        """Return the ISR change to send now, or None. The returned proposal counts as outstanding and in flight."""
        if self.in_flight is not None:
            return None
        for broker_id, since_ms in self.taken_out.items():
            self.taken_out[broker_id] = now_ms if since_ms is None else since_ms
        wanted = {b for b in self.isr if b == self.broker_id or self._may_stay(b, now_ms, brokers)}
        wanted |= {
            b for b in self.followers if b not in self.isr and self._may_join(b, now_ms, brokers)
        }
        # If an outstanding proposal has an unknown fate, propose even without a change. Once the new proposal is
        # committed, the partition epoch has moved, and the old one cannot be committed any more.
        if wanted == self.isr and not self.outstanding:
            return None
        proposal = IsrProposal(
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            members=tuple((b, self._epoch_of(b, brokers)) for b in sorted(wanted)),
        )
        self.in_flight = proposal
        self.is_in_flight_again = proposal in self.outstanding
        # Count it before it is sent: the quorum may commit it, and elect its members, before the response arrives.
        if not self.is_in_flight_again:
            self.outstanding.append(proposal)
        return proposal

    def on_proposal_done(self, proposal: IsrProposal, *, is_definite_refusal: bool) -> bool:
        """Note that a proposal is not in flight any more; return whether the high watermark moved.

        After a definite refusal, its members no longer count for the high watermark. If it was committed, or its fate
        is unknown, it stays outstanding until an image decides it.
        """
        if self.in_flight is proposal:
            self.in_flight = None
            if is_definite_refusal and not self.is_in_flight_again:
                self.outstanding = [p for p in self.outstanding if p != proposal]
        return self._maybe_advance()

    def _may_stay(self, broker_id: int, now_ms: MonotonicMs, brokers: Mapping[int, Broker]) -> bool:
        if broker_id in self.expelled:
            return False
        broker = brokers.get(broker_id)
        if broker is None:
            return False
        progress = self.followers.get(broker_id)
        if progress is not None and progress.broker_epoch != broker.broker_epoch:
            progress = None  # it restarted: its lag counts from the start of this epoch until its first fetch
        if progress is None:
            return now_ms - self.started_ms <= self.lag_ms_max
        has_everything = progress.stored_end >= self.log_end
        return has_everything or now_ms - progress.caught_up_ms <= self.lag_ms_max

    def _may_join(self, broker_id: int, now_ms: MonotonicMs, brokers: Mapping[int, Broker]) -> bool:
        since_ms = self.taken_out.get(broker_id)
        if since_ms is not None and now_ms - since_ms < REJOIN_PAUSE_MS:
            return False
        progress = self.followers[broker_id]
        broker = brokers.get(broker_id)
        # The replica must also have reached the start of this epoch. Records below that start may be committed. While
        # the high watermark is not established, this leader does not know whether they are.
        return (
            broker is not None
            and not broker.is_fenced
            and not broker.is_draining
            and broker_id in self.replicas
            and broker_id not in self.without_room
            and progress.broker_epoch == broker.broker_epoch
            and progress.stored_end >= max(self.high_watermark, self.epoch_start_offset)
            and (progress.log_start == UNKNOWN_OFFSET or progress.log_start >= self.deleted_below)
            # If the leader's disk is slow, its high watermark lags behind its log end. A replica at the high watermark
            # that was not at the log end for too long would be taken out again at once, and join again, in turns.
            and self._may_stay(broker_id, now_ms, brokers)
        )

    def _epoch_of(self, broker_id: int, brokers: Mapping[int, Broker]) -> int:
        # The quorum accepts a proposal only with the live epoch of every member. A member of the committed ISR is one
        # under any of its epochs. A member that joins has acknowledged under its live epoch (``_may_join``).
        return self.broker_epoch if broker_id == self.broker_id else brokers[broker_id].broker_epoch

    def may_restore(self, offset: int, follower: int, brokers: Mapping[int, Broker]) -> bool:
        """Return whether a live replica besides this one and ``follower`` may have the records above ``offset``.

        Such a replica joins the ISR, or is in it. It may then lead in place of this copy, which is damaged at
        ``offset``.
        """
        return any(
            broker_id in self.isr
            or (progress := self.followers.get(broker_id)) is None
            # It restarted, and did not fetch since.
            or progress.broker_epoch != brokers[broker_id].broker_epoch
            or progress.stored_end > offset
            for broker_id in self.replicas
            if broker_id not in {self.broker_id, follower}
            and broker_id in brokers
            and not brokers[broker_id].is_fenced
        )

    # -- the high watermark ----------------------------------------------------------------------

    @property
    def _counted(self) -> frozenset[int]:
        """The replicas that may lead next: the committed ISR, and the members of all outstanding proposals."""
        if not self.outstanding:
            return self.isr
        return self.isr.union(*(p.broker_ids for p in self.outstanding))

    def _maybe_advance(self) -> bool:
        if not self.has_enough_in_sync:
            return False
        reached = self.stored_end
        for broker_id in self._counted:
            if broker_id == self.broker_id:
                continue
            progress = self.followers.get(broker_id)
            if progress is None:
                # The replica has not fetched in this epoch. What it acknowledged to an earlier leader does not count,
                # because it may have truncated its log since.
                return False
            reached = min(reached, progress.stored_end)
        if reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        return True
