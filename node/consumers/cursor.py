"""Positions of a REST consumer in each of its partitions. Pure: no clock, no I/O.

A partition has three offsets:

- ``position`` is the next offset to deliver.
- ``delivered`` is the offset that a commit would store. It is the end of the last response, after the markers and gaps
  that follow the last record; or the offset to which the client sought.
- ``arrived`` is the part of ``delivered`` that has certainly reached the client, because the client made another call.
  When a consumer loses a partition or expires, it commits only this. So if a response was lost, the partition's next
  reader gets its records.

A client may give each records call a token. Then only the token tells whether a response has arrived: with the same
token, the client asks for the same records again; with another token, it says that they have arrived. What nodes see of
connections does not count then. Behind a proxy, the connections need not be the client's.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from node.consumers.answer_cutting import CutRecords
from raft_meta.machine.image import PartitionKey

AUTO_COMMIT_MS = 5_000
"""Interval of automatic commits in ms. Kafka's default of ``auto.commit.interval.ms``."""


@dataclass(slots=True)
class ReadState:
    """Offsets of one partition. ``epoch``: the leader epoch of the record before ``delivered``; -1 if unknown."""

    position: int | None
    """None: the reset policy must find the position."""
    committed: int | None
    """The group's committed offset when this node last read or wrote it."""
    delivered: int | None = None
    epoch: int = -1
    arrived: int | None = None
    arrived_epoch: int = -1
    tried: int | None = None
    """The offset of the last commit that was tried here. It may still take effect."""


@dataclass(frozen=True, slots=True)
class OffsetAndEpoch:
    """An offset to commit, and the leader epoch of the record before it; -1 if unknown."""

    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class GivenExtent:
    """The offsets [start_offset, end_offset) of a partition that are in a response."""

    key: PartitionKey
    start_offset: int
    end_offset: int


_Before = tuple[int | None, int | None, int]
"""Position, delivered offset and epoch of a partition before the last call."""


class Cursor:
    """The positions of one consumer.

    Invariants:
        ``arrived`` <= ``delivered`` <= ``position``, where they are set. Records are delivered in order. Each is
        delivered once, except after a seek or a take-back. A commit is never above what was delivered.
    """

    __slots__ = (
        "_before",
        "_commit_ms",
        "_extents",
        "_states",
        "call_id",
        "is_auto_commit",
        "token",
    )

    def __init__(self, *, is_auto_commit: bool, now_ms: int) -> None:
        self.is_auto_commit = is_auto_commit
        self.call_id = ""
        """The id of the last records call. If the call is repeated, its first response is taken back."""
        self.token = ""
        """The token of the last records call; empty if it had none."""
        self._commit_ms = now_ms
        self._extents: Sequence[GivenExtent] | None = None
        """The extents of the last response, if it had a token, so that the client may ask for it again."""
        self._states: dict[PartitionKey, ReadState] = {}
        """Partition → offsets, in fair order: the partition that delivered last comes last."""
        self._before: dict[PartitionKey, _Before] = {}
        """Partition → its state before the last records call, for the partitions that this call moved."""

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._states

    def __iter__(self) -> Iterator[PartitionKey]:
        return iter(self._states)

    # -- assignments -----------------------------------------------------------------------------

    def assign(
        self,
        partitions: Iterable[PartitionKey],
        committed: Callable[[PartitionKey], int | None],
        *,
        is_exclusive: bool,
    ) -> None:
        """Take exactly these partitions. A new one starts at its commit; without a commit, it has no position.

        ``is_exclusive``: no other member of the group reads them at the same time. If there is a commit then that was
        not made here, another member has had the partition since, and reading continues at that commit.
        """
        wanted = dict.fromkeys(partitions)
        for key in [key for key in self._states if key not in wanted]:
            self._forget(key)
        for key in wanted:
            state, found = self._states.get(key), committed(key)
            if state is None:
                self._states[key] = ReadState(found, found)
            elif found is not None and found != state.committed:
                self._see_commit(key, state, found, is_exclusive=is_exclusive)
            elif state.position is None:
                state.position = found

    def _see_commit(
        self, key: PartitionKey, state: ReadState, found: int, *, is_exclusive: bool
    ) -> None:
        if is_exclusive and found != state.tried:
            self._forget(key)
            self._states[key] = ReadState(found, found)
            return
        state.committed = found
        if state.position is None:
            state.position = found

    def _forget(self, key: PartitionKey) -> None:
        del self._states[key]
        self._before.pop(key, None)

    def without_position(self) -> list[PartitionKey]:
        """Return the partitions that have no position yet."""
        return [key for key, state in self._states.items() if state.position is None]

    def put(self, key: PartitionKey, offset: int | None) -> None:
        """Start at an offset that the reset policy gave (None: find it again). There is nothing to commit yet."""
        state = self._states.get(key)
        if state is not None:
            state.position = offset

    def position(self, key: PartitionKey) -> int | None:
        """Return the next offset to deliver; None if the partition is not assigned or has no position."""
        state = self._states.get(key)
        return None if state is None else state.position

    def seek(self, key: PartitionKey, offset: int) -> None:
        """Deliver from this offset next. A commit stores this offset, too."""
        state = self._states[key]
        state.position = state.delivered = state.arrived = offset
        state.epoch = state.arrived_epoch = -1
        self._before.pop(key, None)
        # After a seek, the client does not want the records of the last response again.
        self._extents = None

    # -- delivering ------------------------------------------------------------------------------

    def begin(self, call_id: str, token: str = "") -> None:
        """Start a records call. Unless the call is a repeat, the previous response has arrived."""
        if call_id and call_id == self.call_id:
            self.take_back(call_id)
        self.prove()
        self.call_id, self.token, self._extents = call_id, token, None

    def on_answered(self, extents: Sequence[GivenExtent]) -> None:
        """Note the extents of the last call's response."""
        self._extents = extents if self.token else None

    def again(self, token: str) -> Sequence[GivenExtent] | None:
        """Return the extents of the last response, if it had this token; None: this is a new call.

        Partitions that the consumer does not hold any more are left out: another member gets their records.
        """
        if not token or token != self.token or self._extents is None:
            return None
        return [extent for extent in self._extents if self.has_open(extent.key)]

    def has_open(self, key: PartitionKey) -> bool:
        """Return whether the last response has records of this partition, which is held since, and may be lost."""
        return key in self._before

    def acknowledge(self, token: str) -> None:
        """Note that the client has the response with this token. Responses with other tokens are not affected."""
        if self.again(token) is not None:
            self.prove()

    @property
    def unproven(self) -> str:
        """The id of the last call, if its response has records that may not have arrived; else empty.

        Also empty for a response with a token: the client itself tells whether it has arrived.
        """
        return self.call_id if self._before and self._extents is None else ""

    def prove(self) -> None:
        """Note that the last response has arrived."""
        for key in self._before:
            state = self._states[key]
            state.arrived, state.arrived_epoch = state.delivered, state.epoch
        self._before.clear()

    def deliver(self, key: PartitionKey, cut: CutRecords) -> bool:
        """Take records into the response; return False if they do not start at the consumer's position any more."""
        state = self._states.get(key)
        if state is None or state.position != cut.start_offset:
            return False
        self._before.setdefault(key, (state.position, state.delivered, state.epoch))
        # As in Kafka, the position passes offsets that no reader sees. Otherwise a group that has read all would have
        # a lag.
        state.position = state.delivered = cut.next_offset
        if cut.record_count:
            state.epoch = cut.leader_epoch
            # Move the partition behind all others, so that all get their turn.
            self._states[key] = self._states.pop(key)
        return True

    def take_back(self, call_id: str, *, is_refused: bool = False) -> bool:
        """Take back the response to this call: it did not reach the client. Return False if another call has started.

        A response with a token is not taken back, because the client asks for it again or says that it has it. But if
        the client got an error instead (``is_refused``), it cannot have the response, so it is taken back.
        """
        if call_id != self.call_id or (self._extents is not None and not is_refused):
            return False
        self._extents = None
        for key, (position, delivered, epoch) in self._before.items():
            state = self._states[key]
            state.position, state.delivered, state.epoch = position, delivered, epoch
        self._before.clear()
        return True

    # -- committing ------------------------------------------------------------------------------

    def is_commit_due(self, now_ms: int) -> bool:
        """Return whether an automatic commit is due. If so, the next one is due an interval later."""
        if not self.is_auto_commit or now_ms - self._commit_ms < AUTO_COMMIT_MS:
            return False
        self._commit_ms = now_ms
        return True

    def delivered(self) -> dict[PartitionKey, OffsetAndEpoch]:
        """Return the offsets that a commit would store, if they differ from the committed ones.

        For a partition without deliveries and without a commit, this is the consumer's position. Otherwise the group's
        lag in an empty partition would be unknown.
        """
        found: dict[PartitionKey, OffsetAndEpoch] = {}
        for key, state in self._states.items():
            if state.delivered is not None and state.delivered != state.committed:
                found[key] = OffsetAndEpoch(state.delivered, state.epoch)
            elif state.delivered is None and state.committed is None and state.position is not None:
                found[key] = OffsetAndEpoch(state.position, -1)
        return found

    def arrived(self) -> dict[PartitionKey, OffsetAndEpoch]:
        """Return the offsets of records that have certainly arrived and are not committed."""
        return {
            key: OffsetAndEpoch(state.arrived, state.arrived_epoch)
            for key, state in self._states.items()
            if state.arrived is not None and state.arrived != state.committed
        }

    def on_committing(self, key: PartitionKey, offset: int) -> None:
        """Note that a commit of this offset is in flight."""
        state = self._states.get(key)
        if state is not None:
            state.tried = offset

    def on_committed(self, key: PartitionKey, offset: int) -> None:
        """Note that the group has committed this offset."""
        state = self._states.get(key)
        if state is not None:
            state.committed = state.tried = offset
