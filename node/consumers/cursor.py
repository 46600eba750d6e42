"""Positions of a REST consumer in each of its partitions. Pure: no clock, no I/O.

A partition has three offsets:

- ``position`` is the next offset to deliver.
- ``delivered`` is what a commit says: the end of a response, behind the markers and gaps that follow its last record;
  or the offset that the client sought.
- ``arrived`` is how much of that has reached the client, as its next call shows. A consumer that loses a partition or
  expires commits only this much. So a lost response is delivered to its successor.

A client may give each records call a token of its own. Then the token alone tells whether a response has arrived. The
same token asks for the same records again; another token says that they have arrived. What nodes see of connections no
longer counts, because behind a proxy these need not be the client's.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from node.consumers.answer_cutting import CutRecords
from raft_meta.machine.image import PartitionKey

AUTO_COMMIT_MS = 5_000
"""Kafka's default of ``auto.commit.interval.ms``."""


@dataclass(slots=True)
class ReadState:
    """Offsets of one partition. ``epoch`` is the leader epoch of the record before ``delivered``; -1: not known."""

    position: int | None
    """None: the reset policy must find it."""
    committed: int | None
    """The group's committed offset when it was last read or written here."""
    delivered: int | None = None
    epoch: int = -1
    arrived: int | None = None
    arrived_epoch: int = -1
    tried: int | None = None
    """The offset of the last commit that was tried here: it may still take effect."""


@dataclass(frozen=True, slots=True)
class OffsetAndEpoch:
    """An offset to commit, and the leader epoch of the record before it; -1: not known."""

    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class GivenExtent:
    """Offsets [start_offset, end_offset) of a partition that went into a response."""

    key: PartitionKey
    start_offset: int
    end_offset: int


_Before = tuple[int | None, int | None, int]
"""Position, delivered offset and epoch of a partition before a call."""


class Cursor:
    """The positions of one consumer.

    Invariants:
        ``arrived`` <= ``delivered`` <= ``position`` where they are set. Records are delivered in order. Each is
        delivered once, unless a seek or a take-back intervenes. A commit is never above what was delivered.
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
        """The id of the last records call. A repeat takes back the response of the first attempt."""
        self.token = ""
        """The token of the last records call; empty: it had none."""
        self._commit_ms = now_ms
        self._extents: Sequence[GivenExtent] | None = None
        """The extents of the last response, if it was under a token and may be asked for again."""
        self._states: dict[PartitionKey, ReadState] = {}
        """In fair order: the partition that delivered last comes last."""
        self._before: dict[PartitionKey, _Before] = {}
        """Positions that the last records call moved."""

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._states

    def __iter__(self) -> Iterator[PartitionKey]:
        return iter(self._states)

    # -- what is assigned ------------------------------------------------------------------------

    def assign(
        self,
        partitions: Iterable[PartitionKey],
        committed: Callable[[PartitionKey], int | None],
        *,
        is_exclusive: bool,
    ) -> None:
        """Take exactly these partitions. A new one starts at its commit, or has no position until ``put``.

        ``is_exclusive``: no other member of the group reads them at the same time. Then a commit that was not made here
        means that another member had the partition since, and reading continues from that commit.
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
        """Return the partitions without a position."""
        return [key for key, state in self._states.items() if state.position is None]

    def put(self, key: PartitionKey, offset: int | None) -> None:
        """Start at an offset of the reset policy (None: nowhere, to be found again). There is nothing to commit yet."""
        state = self._states.get(key)
        if state is not None:
            state.position = offset

    def position(self, key: PartitionKey) -> int | None:
        """Return the next offset to deliver; None: not assigned, or not known yet."""
        state = self._states.get(key)
        return None if state is None else state.position

    def seek(self, key: PartitionKey, offset: int) -> None:
        """Deliver from this offset next, and commit it."""
        state = self._states[key]
        state.position = state.delivered = state.arrived = offset
        state.epoch = state.arrived_epoch = -1
        self._before.pop(key, None)
        # The client now wants other records than those of the last response.
        self._extents = None

    # -- delivering ------------------------------------------------------------------------------

    def begin(self, call_id: str, token: str = "") -> None:
        """Start a records call. The previous response has arrived, unless this call repeats the previous one."""
        if call_id and call_id == self.call_id:
            self.take_back(call_id)
        self.prove()
        self.call_id, self.token, self._extents = call_id, token, None

    def on_answered(self, extents: Sequence[GivenExtent]) -> None:
        """Note that the last call has its response."""
        self._extents = extents if self.token else None

    def again(self, token: str) -> Sequence[GivenExtent] | None:
        """Return the extents of the last response, if it was given under this token; None: this is a new call.

        Partitions that were taken away since are left out: their new member gets those records.
        """
        if not token or token != self.token or self._extents is None:
            return None
        return [extent for extent in self._extents if self.has_open(extent.key)]

    def has_open(self, key: PartitionKey) -> bool:
        """Return whether the last response may not have arrived and has records of this partition, held ever since."""
        return key in self._before

    def acknowledge(self, token: str) -> None:
        """Note that the client has the response to this token. Nothing is said about another token's."""
        if self.again(token) is not None:
            self.prove()

    @property
    def unproven(self) -> str:
        """The last call, if its response had something that is not known to have arrived; else empty.

        For a response under a token it is empty, too: the client itself tells.
        """
        return self.call_id if self._before and self._extents is None else ""

    def prove(self) -> None:
        """Note that the last response has arrived."""
        for key in self._before:
            state = self._states[key]
            state.arrived, state.arrived_epoch = state.delivered, state.epoch
        self._before.clear()

    def deliver(self, key: PartitionKey, cut: CutRecords) -> bool:
        """Take a cut into the response; return False if the consumer's position is no longer at its start."""
        state = self._states.get(key)
        if state is None or state.position != cut.start_offset:
            return False
        self._before.setdefault(key, (state.position, state.delivered, state.epoch))
        # Like Kafka's position, it passes offsets that no reader sees. Else a group that has read all would have a lag.
        state.position = state.delivered = cut.next_offset
        if cut.record_count:
            state.epoch = cut.leader_epoch
            # The partition moves behind all others, for fairness.
            self._states[key] = self._states.pop(key)
        return True

    def take_back(self, call_id: str, *, is_refused: bool = False) -> bool:
        """Take back the response to this call, which reached no client. Return False if another call has started since.

        A response under a token is not taken back: the client asks for it again, or says that it has it. If the client
        was refused the response (``is_refused``), the client cannot have it, and it is taken back.
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
        """Return whether an automatic commit is due; the next one is due an interval later."""
        if not self.is_auto_commit or now_ms - self._commit_ms < AUTO_COMMIT_MS:
            return False
        self._commit_ms = now_ms
        return True

    def delivered(self) -> dict[PartitionKey, OffsetAndEpoch]:
        """Return the offsets that a commit would say, if they are new.

        If nothing was delivered and nothing is committed, a commit says the consumer's position. Otherwise the group's
        lag in a partition that was empty would not be known.
        """
        found: dict[PartitionKey, OffsetAndEpoch] = {}
        for key, state in self._states.items():
            if state.delivered is not None and state.delivered != state.committed:
                found[key] = OffsetAndEpoch(state.delivered, state.epoch)
            elif state.delivered is None and state.committed is None and state.position is not None:
                found[key] = OffsetAndEpoch(state.position, -1)
        return found

    def arrived(self) -> dict[PartitionKey, OffsetAndEpoch]:
        """Return the offsets of what has certainly arrived and is not committed."""
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
