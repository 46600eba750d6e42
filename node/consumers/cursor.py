"""Positions of a REST consumer in each of its partitions. Pure: no clock, no I/O.

Three offsets of a partition matter. ``position`` is the next to deliver. ``delivered`` is what a commit says: where an
answer ended, behind the markers and gaps that follow its last record, or where the client asked to go. ``arrived`` is
as much of that as the client has shown to have by calling again: a consumer that loses a partition, or expires, commits
no more, so that an answer that got lost is delivered to its successor.

A client may give each records call a token of its own. Then the token alone tells whether an answer has arrived: the
same one again asks for the same records, another one says that they are there. What nodes see of connections counts no
more, since behind a proxy these need not be the client's.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from node.consumers.answer_cutting import CutRecords
from raft_meta.machine.image import PartitionKey

AUTO_COMMIT_MS = 5_000
"""As Kafka's ``auto.commit.interval.ms``."""


@dataclass(slots=True)
class ReadState:
    """Offsets of one partition. ``epoch`` is the leader epoch of the record before ``delivered``, -1: not known."""

    position: int | None
    """None: to be found by the reset policy."""
    committed: int | None
    """The group's commits when we last looked, or wrote."""
    delivered: int | None = None
    epoch: int = -1
    arrived: int | None = None
    arrived_epoch: int = -1
    tried: int | None = None
    """The last offset that we wanted committed: it may yet be."""


@dataclass(frozen=True, slots=True)
class OffsetAndEpoch:
    """An offset to commit."""

    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class GivenExtent:
    """Offsets [start_offset, end_offset) of a partition that were put into an answer."""

    key: PartitionKey
    start_offset: int
    end_offset: int


_Before = tuple[int | None, int | None, int]
"""Position, delivered and epoch of a partition before a call."""


class Cursor:
    """The positions of one consumer.

    Invariants:
        ``arrived`` <= ``delivered`` <= ``position`` where they are set. Records are delivered in order, each once as
        long as nobody seeks or takes an answer back. A commit is never above what was delivered.
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
        """Of the last records call; a repeated one takes the answer back that the first one made."""
        self.token = ""
        """Of the last records call; empty: it had none."""
        self._commit_ms = now_ms
        self._extents: Sequence[GivenExtent] | None = None
        """What the last answer gave, if that was under a token and may be asked for again."""
        self._states: dict[PartitionKey, ReadState] = {}
        """In fair order: what was delivered last comes last."""
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
        """Stand in exactly these. A new one begins at its commit, or nowhere until ``put``.

        ``is_exclusive``: nobody else of the group reads them while we do, so that a commit that we did not make means
        that another member had the partition since, and we go on from there.
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
        """Those without a position."""
        return [key for key, state in self._states.items() if state.position is None]

    def put(self, key: PartitionKey, offset: int | None) -> None:
        """Begin here, by the reset policy (None: nowhere, to be found again); there is nothing to commit of it."""
        state = self._states.get(key)
        if state is not None:
            state.position = offset

    def position(self, key: PartitionKey) -> int | None:
        """The next offset to deliver; None: not assigned, or not known yet."""
        state = self._states.get(key)
        return None if state is None else state.position

    def seek(self, key: PartitionKey, offset: int) -> None:
        """Deliver from here next; a commit says so too."""
        state = self._states[key]
        state.position = state.delivered = state.arrived = offset
        state.epoch = state.arrived_epoch = -1
        self._before.pop(key, None)
        # Its client wants other records now than those of the last answer.
        self._extents = None

    # -- delivering ------------------------------------------------------------------------------

    def begin(self, call_id: str, token: str = "") -> None:
        """A records call begins: the answer to the one before has arrived, unless this one repeats it."""
        if call_id and call_id == self.call_id:
            self.take_back(call_id)
        self.prove()
        self.call_id, self.token, self._extents = call_id, token, None

    def on_answered(self, extents: Sequence[GivenExtent]) -> None:
        """The call that began last has its answer."""
        self._extents = extents if self.token else None

    def again(self, token: str) -> Sequence[GivenExtent] | None:
        """What the last answer gave, if it was given under this token; None: another call begins.

        Partitions that were taken away since are left out: whoever has them now is given those records.
        """
        if not token or token != self.token or self._extents is None:
            return None
        return [extent for extent in self._extents if self.has_open(extent.key)]

    def has_open(self, key: PartitionKey) -> bool:
        """Whether the last answer, not known to have arrived, has records of a partition that is ours ever since."""
        return key in self._before

    def acknowledge(self, token: str) -> None:
        """The client says that it has the answer to this token; nothing is said of another one's."""
        if self.again(token) is not None:
            self.prove()

    @property
    def unproven(self) -> str:
        """The last call, if its answer had something that is not known to have arrived; else empty.

        Of an answer under a token that is the client's to tell.
        """
        return self.call_id if self._before and self._extents is None else ""

    def prove(self) -> None:
        """The last answer has arrived."""
        for key in self._before:
            state = self._states[key]
            state.arrived, state.arrived_epoch = state.delivered, state.epoch
        self._before.clear()

    def deliver(self, key: PartitionKey, cut: CutRecords) -> bool:
        """Take a cut into the answer; False when the consumer does not stand at its beginning any more."""
        state = self._states.get(key)
        if state is None or state.position != cut.start_offset:
            return False
        self._before.setdefault(key, (state.position, state.delivered, state.epoch))
        # As Kafka's position does, it passes what no reader sees: else a group that has read all would be behind.
        state.position = state.delivered = cut.next_offset
        if cut.record_count:
            state.epoch = cut.leader_epoch
            # Behind all others, for the sake of fairness.
            self._states[key] = self._states.pop(key)
        return True

    def take_back(self, call_id: str, *, is_refused: bool = False) -> bool:
        """Nobody got the answer to this call: deliver it again. False when another call has begun since.

        Nor is an answer under a token taken back: its client asks for it again, or says that it has it. Unless the
        client was refused it (``is_refused``), which is no answer that it could have.
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
        """Whether it is time to commit by itself; the next time comes an interval later."""
        if not self.is_auto_commit or now_ms - self._commit_ms < AUTO_COMMIT_MS:
            return False
        self._commit_ms = now_ms
        return True

    def delivered(self) -> dict[PartitionKey, OffsetAndEpoch]:
        """Offsets that a commit would say, where that is news.

        Where nothing was delivered and nothing is committed, a commit says where the consumer stands. Otherwise it
        would not be known how far the group is behind in a partition that was empty.
        """
        found: dict[PartitionKey, OffsetAndEpoch] = {}
        for key, state in self._states.items():
            if state.delivered is not None and state.delivered != state.committed:
                found[key] = OffsetAndEpoch(state.delivered, state.epoch)
            elif state.delivered is None and state.committed is None and state.position is not None:
                found[key] = OffsetAndEpoch(state.position, -1)
        return found

    def arrived(self) -> dict[PartitionKey, OffsetAndEpoch]:
        """Offsets of what has certainly arrived, where that is not committed."""
        return {
            key: OffsetAndEpoch(state.arrived, state.arrived_epoch)
            for key, state in self._states.items()
            if state.arrived is not None and state.arrived != state.committed
        }

    def on_committing(self, key: PartitionKey, offset: int) -> None:
        """This offset is on its way."""
        state = self._states.get(key)
        if state is not None:
            state.tried = offset

    def on_committed(self, key: PartitionKey, offset: int) -> None:
        """The group has committed this offset."""
        state = self._states.get(key)
        if state is not None:
            state.committed = state.tried = offset
