"""Where a REST consumer stands in each of its partitions. Pure: no clock, no I/O.

Three offsets of a partition matter. ``position`` is the next to deliver. ``delivered`` is what a commit says: one above
the last record that was put into an answer, or where the client asked to go. ``arrived`` is as much of that as the
client has shown to have by calling again: a consumer that loses a partition, or expires, commits no more, so that an
answer that got lost is delivered to its successor.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from node.consumers.delivery import Cut
from raft_meta.machine.image import PartitionKey

AUTO_COMMIT_MS = 5_000
"""As Kafka's ``auto.commit.interval.ms``."""


@dataclass(slots=True)
class Place:
    """One partition. ``epoch`` is the leader epoch of the record before ``delivered``, -1: not known."""

    position: int | None
    """None: to be found by the reset policy."""
    committed: int | None
    """What the group had committed when we last looked, or wrote."""
    delivered: int | None = None
    epoch: int = -1
    arrived: int | None = None
    arrived_epoch: int = -1
    tried: int | None = None
    """The last offset that we wanted committed: it may yet be."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An offset to commit."""

    offset: int
    leader_epoch: int


_Before = tuple[int | None, int | None, int]
"""Position, delivered and epoch of a place before a call."""


class Cursor:
    """The places of one consumer.

    Invariants:
        ``arrived`` <= ``delivered`` <= ``position`` where they are set. Records are delivered in order, each once as
        long as nobody seeks or takes an answer back. A commit is never above what was delivered.
    """

    __slots__ = ("_before", "_commit_ms", "_places", "call_id", "is_auto_commit")

    def __init__(self, *, is_auto_commit: bool, now_ms: int) -> None:
        self.is_auto_commit = is_auto_commit
        self.call_id = ""
        """Of the last records call; a repeated one takes the answer back that the first one made."""
        self._commit_ms = now_ms
        self._places: dict[PartitionKey, Place] = {}
        """In fair order: what was delivered last comes last."""
        self._before: dict[PartitionKey, _Before] = {}
        """What the last records call moved."""

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[PartitionKey]:
        return iter(self._places)

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
        for key in [key for key in self._places if key not in wanted]:
            self._forget(key)
        for key in wanted:
            place, found = self._places.get(key), committed(key)
            if place is None:
                self._places[key] = Place(found, found)
            elif found is not None and found != place.committed:
                self._see_commit(key, place, found, is_exclusive=is_exclusive)
            elif place.position is None:
                place.position = found

    def _see_commit(
        self, key: PartitionKey, place: Place, found: int, *, is_exclusive: bool
    ) -> None:
        if is_exclusive and found != place.tried:
            self._forget(key)
            self._places[key] = Place(found, found)
            return
        place.committed = found
        if place.position is None:
            place.position = found

    def _forget(self, key: PartitionKey) -> None:
        del self._places[key]
        self._before.pop(key, None)

    def unplaced(self) -> list[PartitionKey]:
        """Those without a position."""
        return [key for key, place in self._places.items() if place.position is None]

    def put(self, key: PartitionKey, offset: int | None) -> None:
        """Begin here, by the reset policy (None: nowhere, to be found again); there is nothing to commit of it."""
        place = self._places.get(key)
        if place is not None:
            place.position = offset

    def position(self, key: PartitionKey) -> int | None:
        """The next offset to deliver; None: not assigned, or not known yet."""
        place = self._places.get(key)
        return None if place is None else place.position

    def seek(self, key: PartitionKey, offset: int) -> None:
        """Deliver from here next; a commit says so too."""
        place = self._places[key]
        place.position = place.delivered = place.arrived = offset
        place.epoch = place.arrived_epoch = -1
        self._before.pop(key, None)

    # -- delivering ------------------------------------------------------------------------------

    def begin(self, call_id: str) -> None:
        """A records call begins: the answer to the one before has arrived, unless this one repeats it."""
        if call_id and call_id == self.call_id:
            self.take_back(call_id)
        self.prove()
        self.call_id = call_id

    @property
    def unproven(self) -> str:
        """The last call, if its answer had something that is not known to have arrived; else empty."""
        return self.call_id if self._before else ""

    def prove(self) -> None:
        """The last answer has arrived."""
        for key in self._before:
            place = self._places[key]
            place.arrived, place.arrived_epoch = place.delivered, place.epoch
        self._before.clear()

    def deliver(self, key: PartitionKey, cut: Cut) -> bool:
        """Take a cut into the answer; False when the consumer does not stand at its beginning any more."""
        place = self._places.get(key)
        if place is None or place.position != cut.start_offset:
            return False
        self._before.setdefault(key, (place.position, place.delivered, place.epoch))
        place.position = cut.next_offset
        if cut.record_count:
            place.delivered, place.epoch = cut.end_offset, cut.leader_epoch
            # Behind all others, for the sake of fairness.
            self._places[key] = self._places.pop(key)
        return True

    def take_back(self, call_id: str) -> bool:
        """Nobody got the answer to this call: deliver it again. False when another call has begun since."""
        if call_id != self.call_id:
            return False
        for key, (position, delivered, epoch) in self._before.items():
            place = self._places[key]
            place.position, place.delivered, place.epoch = position, delivered, epoch
        self._before.clear()
        return True

    # -- committing ------------------------------------------------------------------------------

    def is_commit_due(self, now_ms: int) -> bool:
        """Whether it is time to commit by itself; the next time comes an interval later."""
        if not self.is_auto_commit or now_ms - self._commit_ms < AUTO_COMMIT_MS:
            return False
        self._commit_ms = now_ms
        return True

    def delivered(self) -> dict[PartitionKey, Mark]:
        """What a commit would say, where that is news."""
        return {
            key: Mark(place.delivered, place.epoch)
            for key, place in self._places.items()
            if place.delivered is not None and place.delivered != place.committed
        }

    def arrived(self) -> dict[PartitionKey, Mark]:
        """The same of what has certainly arrived."""
        return {
            key: Mark(place.arrived, place.arrived_epoch)
            for key, place in self._places.items()
            if place.arrived is not None and place.arrived != place.committed
        }

    def on_committing(self, key: PartitionKey, offset: int) -> None:
        """This offset is on its way."""
        place = self._places.get(key)
        if place is not None:
            place.tried = offset

    def on_committed(self, key: PartitionKey, offset: int) -> None:
        """The group has committed this offset."""
        place = self._places.get(key)
        if place is not None:
            place.committed = place.tried = offset
