"""Decisions of the leader of one partition: who is in sync, how far the log is committed, who may join or must go.

Pure: memory and arguments in, decisions out. ``node.replica.runner`` feeds it and carries out what it returns. One
object serves one leader epoch and is thrown away with it.

The protocol, in short (KIP-101, KIP-279, KIP-595, KIP-966 in Kafka's terms):

- A follower's fetch acknowledges what the follower has *stored*, provided that it names this leader epoch and the
  follower's live broker epoch, and that its (offset, last epoch) lies on our log. A new leader knows nobody's end
  before that.
- The high watermark is the least stored end over the committed ISR and every outstanding ISR proposal. A proposal is
  outstanding until the image's partition epoch has moved or it was definitely refused; a timeout is not an answer.
  Counting the union is what makes a change of the ISR safe while nobody knows whether it has been committed.
- It advances only while the *committed* ISR has ``min.insync.replicas`` members, and never falls.
- Records that a client deletes are gone for good once no member of that same union still starts below them: whoever
  leads next has deleted them, too. Who does not know it yet may not join (``deleted_below``).
- It is *established* once it has reached the log end that this epoch began with: only then is everything that an
  earlier leader acknowledged known to lie below it, so only then may "out of range" and "latest" be judged.

Moving replicas between brokers adds and drops them through the same rules. Dropping one raises the leader epoch, which
voids what it acknowledged.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from milena.model.types import MonotonicMs
from raft_meta.machine.image import Broker, Partition

UNKNOWN_OFFSET = -1

REJOIN_PAUSE_MS = 1_000
"""Between the controller's taking a member out and the leader's wish to have it back: its reason may still stand, and
the two of them would undo each other's changes as fast as the quorum takes them."""


class FetchVerdict(Enum):
    """The leader's judgement of a follower's fetch."""

    ACCEPTED = auto()
    """It lies on our log: it acknowledges, and gets what follows."""
    DIVERGING = auto()
    """Its (offset, last epoch) is not on our log: it must truncate and ask again."""
    BELOW_LOG_START = auto()
    """What it asks for is deleted here, or what its last record would be held against: it must start anew."""
    STALE_LEADER_EPOCH = auto()
    """It follows an earlier leadership; it will learn of this one."""
    UNKNOWN_LEADER_EPOCH = auto()
    """It knows of a later leadership than we do."""
    STALE_BROKER_EPOCH = auto()
    """An earlier life of the broker, or one that our image has not seen yet."""
    NOT_A_REPLICA = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrProposal:
    """A change of the ISR for the quorum to compare and set. Members come with the epochs they caught up under."""

    leader_epoch: int
    partition_epoch: int
    members: tuple[tuple[int, int], ...]

    @property
    def broker_ids(self) -> frozenset[int]:
        """Ids of the members."""
        return frozenset(broker_id for broker_id, _ in self.members)


@dataclass(slots=True, kw_only=True)
class FollowerProgress:
    """One follower, as the leader knows it. Times are monotonic ms."""

    broker_epoch: int
    stored_end: int
    """The offset it acknowledged in this epoch, exclusive; UNKNOWN_OFFSET until its first fetch."""
    caught_up_ms: MonotonicMs
    """Last time at which it had everything that had been written by then."""
    last_fetch_ms: MonotonicMs
    log_end_at_last_fetch: int
    log_start: int = UNKNOWN_OFFSET
    """Where its log starts, as it said last; UNKNOWN_OFFSET: its release does not say."""


@dataclass(slots=True, kw_only=True)
class PartitionLeader:
    """Leadership of one partition in one epoch.

    Invariants:
        high_watermark never falls and never exceeds stored_end or any in-sync member's stored end.
        At most one proposal is in flight (sent and unanswered); several may be outstanding.
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
    """Log end when this leadership began."""
    log_end: int
    stored_end: int
    high_watermark: int
    started_ms: MonotonicMs
    followers: dict[int, FollowerProgress] = field(default_factory=dict)
    outstanding: list[IsrProposal] = field(default_factory=list)
    """Distinct ones: a leader that is cut off repeats the same wish for as long as that lasts."""
    in_flight: IsrProposal | None = None
    is_in_flight_again: bool = False
    """Whether an earlier copy of the one in flight is of unknown fate: no refusal of this copy settles that one."""
    without_room: set[int] = field(default_factory=set)
    """Followers whose disk is full: the controller took them out, and would again if they were let in."""
    taken_out: dict[int, MonotonicMs | None] = field(default_factory=dict)
    """Former members that the controller took out, and when this was first looked at."""
    deleted_below: int = 0
    """Records below were deleted at a client's request, in this leadership or an earlier one."""
    expelled: set[int] = field(default_factory=set)
    """Members that fetched below the high watermark: their acknowledged end was lost, out they go."""

    @property
    def is_established(self) -> bool:
        """Whether everything acknowledged by earlier leaders is known to lie below the high watermark."""
        return self.high_watermark >= self.epoch_start_offset

    @property
    def has_enough_in_sync(self) -> bool:
        """Whether an append with acks=all may be taken at all."""
        return len(self.isr) >= self.min_insync

    @property
    def has_heirs(self) -> bool:
        """Whether the controller may let another one lead without this one's doing.

        It elects from the committed ISR, which nobody enters unless this leader proposes it, and from the eligible, of
        whom the runner knows. An election of any other one waits until this leader's lease is over.
        """
        proposals = [*self.outstanding, *([] if self.in_flight is None else [self.in_flight])]
        return any(
            members - {self.broker_id}
            for members in (self.isr, *(proposal.broker_ids for proposal in proposals))
        )

    @property
    def is_resting(self) -> bool:
        """Whether nothing can come due by time alone: all is committed, everybody in sync, no proposal open."""
        return (
            self.high_watermark == self.log_end
            and self.in_flight is None
            and not self.outstanding
            and len(self.isr) == len(self.replicas)
        )

    # -- what happens ----------------------------------------------------------------------------

    def on_image(self, partition: Partition, *, min_insync: int) -> bool:
        """Take over committed state of this leader epoch; returns whether the high watermark moved."""
        assert partition.leader_epoch == self.leader_epoch, (
            partition.leader_epoch,
            self.leader_epoch,
        )
        self.min_insync = min_insync
        self.replicas = partition.replicas
        if partition.partition_epoch > self.partition_epoch:
            self.partition_epoch = partition.partition_epoch
            isr = frozenset(partition.isr)
            if all(proposal.broker_ids != isr for proposal in self.outstanding):
                self.taken_out |= dict.fromkeys(self.isr - isr)
            for member in isr:
                self.taken_out.pop(member, None)
            self.isr = isr
            # The compare-and-set of every older proposal is decided, one way or the other.
            self.outstanding = [
                p for p in self.outstanding if p.partition_epoch >= partition.partition_epoch
            ]
            self.expelled &= self.isr
        return self._maybe_advance()

    def on_appended(self, log_end: int, *, now_ms: MonotonicMs) -> None:
        """The log grew to ``log_end`` (written, not yet stored)."""
        assert log_end >= self.log_end, (log_end, self.log_end)
        before = self.log_end
        for progress in self.followers.values():
            if progress.stored_end >= before:
                # It had everything until now. On a quiet log it repeats no position, so this is where its lag begins.
                progress.caught_up_ms = now_ms
        self.log_end = log_end

    def on_stored(self, stored_end: int) -> bool:
        """Our own stored end moved; returns whether the high watermark did."""
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
        """Whether a fetch may count; changes nothing.

        ``epoch_end``: our (epoch, end offset) for the greatest epoch <= ``last_epoch``; negative: we know of none.
        """
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
            # An empty log: nothing in it can differ from ours. What lies below its start was committed and
            # deleted where it copied from, though we may still have it, and not know yet that it was committed.
            return FetchVerdict.ACCEPTED
        epoch, end = epoch_end
        if epoch < 0 and offset == log_start:
            # Its last record is not the one that was deleted here. It may have told no reader of it, but it knows
            # whoever wrote it, and would answer a retry by it if it led.
            return FetchVerdict.BELOW_LOG_START
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
        """Count an accepted fetch as an acknowledgement; returns whether the high watermark moved.

        ``log_start``: where the follower's log starts, if it said so with this position.
        """
        progress = self.followers.get(follower)
        if progress is None or progress.broker_epoch != broker_epoch:
            progress = FollowerProgress(
                broker_epoch=broker_epoch,
                stored_end=UNKNOWN_OFFSET,
                caught_up_ms=self.started_ms,
                last_fetch_ms=now_ms,
                log_end_at_last_fetch=self.log_end,
            )
            self.followers[follower] = progress
        if follower in self.isr and offset < self.high_watermark:
            # What it once acknowledged is gone. It counts with what it has now, and leaves.
            self.expelled.add(follower)
        progress.stored_end = offset
        if log_start is not None:
            progress.log_start = log_start
        if offset >= self.log_end:
            progress.caught_up_ms = now_ms
        elif offset >= progress.log_end_at_last_fetch:
            progress.caught_up_ms = max(progress.caught_up_ms, progress.last_fetch_ms)
        progress.last_fetch_ms = now_ms
        progress.log_end_at_last_fetch = self.log_end
        return self._maybe_advance()

    def on_deleted(self, offset: int) -> None:
        """A client had everything below ``offset`` deleted; our own log start is there, or beyond."""
        self.deleted_below = max(self.deleted_below, offset)

    @property
    def silent_members(self) -> tuple[int, ...]:
        """Members whose release does not say where their logs start, so that no deletion could be confirmed."""
        return tuple(
            member
            for member in sorted(self._counted - {self.broker_id})
            if (progress := self.followers.get(member)) is not None
            and progress.log_start == UNKNOWN_OFFSET
        )

    def has_adopted(self, offset: int) -> bool:
        """Whether every replica that may lead next is known to start at ``offset`` or beyond."""
        return self.has_enough_in_sync and all(
            (progress := self.followers.get(member)) is not None and progress.log_start >= offset
            for member in self._counted
            if member != self.broker_id
        )

    def on_follower_room(self, follower: int, *, has_room: bool) -> None:
        """The follower says whether its disk takes more; without, it may stay but not join."""
        if has_room:
            self.without_room.discard(follower)
        else:
            self.without_room.add(follower)

    # -- the ISR ---------------------------------------------------------------------------------

    def next_proposal(
        self, *, now_ms: MonotonicMs, brokers: Mapping[int, Broker]
    ) -> IsrProposal | None:
        """The ISR change to send now, if any; it counts as outstanding and in flight from here on."""
        if self.in_flight is not None:
            return None
        for broker_id, since_ms in self.taken_out.items():
            self.taken_out[broker_id] = now_ms if since_ms is None else since_ms
        wanted = {b for b in self.isr if b == self.broker_id or self._may_stay(b, now_ms, brokers)}
        wanted |= {
            b for b in self.followers if b not in self.isr and self._may_join(b, now_ms, brokers)
        }
        # A proposal of unknown fate is settled by another one, even if that changes nothing.
        if wanted == self.isr and not self.outstanding:
            return None
        proposal = IsrProposal(
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            members=tuple((b, self._epoch_of(b, brokers)) for b in sorted(wanted)),
        )
        self.in_flight = proposal
        self.is_in_flight_again = proposal in self.outstanding
        if not self.is_in_flight_again:
            self.outstanding.append(proposal)
        return proposal

    def on_proposal_done(self, proposal: IsrProposal, *, is_definite_refusal: bool) -> bool:
        """The quorum answered or did not; only a definite refusal stops counting. Returns whether hw moved."""
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
            progress = None  # it restarted: a fresh lag allowance from when this epoch or its fetches began
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
        return (
            broker is not None
            and not broker.is_fenced
            and not broker.is_draining
            and broker_id in self.replicas
            and broker_id not in self.without_room
            and progress.broker_epoch == broker.broker_epoch
            and progress.stored_end >= max(self.high_watermark, self.epoch_start_offset)
            and (progress.log_start == UNKNOWN_OFFSET or progress.log_start >= self.deleted_below)
        )

    def _epoch_of(self, broker_id: int, brokers: Mapping[int, Broker]) -> int:
        # A member that stays is in the committed ISR whatever its present life; one that joins has
        # acknowledged under its live epoch (_may_join). The compare-and-set wants live epochs of all.
        return self.broker_epoch if broker_id == self.broker_id else brokers[broker_id].broker_epoch

    # -- the high watermark ----------------------------------------------------------------------

    @property
    def _counted(self) -> frozenset[int]:
        """The committed ISR and whoever an outstanding proposal may have made a member."""
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
                return False
            reached = min(reached, progress.stored_end)
        if reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        return True
