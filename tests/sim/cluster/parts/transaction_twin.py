"""What images and logs say of transactions, told again in the simplest way: the twin that nodes are held against.

``Decisions`` follows the images in their order, ``Chronicle`` the committed batches of one partition. Both refuse what
contradicts what they have seen before.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from immutables import Map

from milena.model.batch.header import BatchHeader, Marker
from raft_meta.machine.image import AllocatedProducer, Ending, Image, PartitionKey
from raft_meta.machine.transactions import COMMITTED
from tests.sim.cluster.invariants import ViolationError

Identity = tuple[int, int]
"""(producer id, producer epoch)"""
_NONE: Map[Identity, Ending] = Map()


@dataclass(frozen=True, slots=True)
class Decision:
    """How a transaction ended. ``index``: of the first image that says so. ``ends``: where it is committed: partition →
    end (exclusive); None: it is aborted."""

    index: int
    ends: Mapping[PartitionKey, int] | None

    def commits(self, key: PartitionKey, offset: int) -> bool:
        """Whether a record of it counts."""
        return self.ends is not None and offset < self.ends.get(key, 0)


def _is_set_back(known: AllocatedProducer, producer: AllocatedProducer) -> bool:
    """Whether only the time of its last use was corrected (``CorrectTime``)."""
    return producer.used_ms < known.used_ms and replace(producer, used_ms=known.used_ms) == known


class Decisions:
    """What the state machine has decided.

    Invariants:
        - whatever raises a producer's epoch decides its transaction, and nothing else does, nor ever again.
    """

    def __init__(self) -> None:
        self.by_identity: dict[Identity, Decision] = {}
        self._image = Image()

    def take(self, image: Image) -> list[tuple[PartitionKey, Identity]]:
        """The next image; returns of which transactions it says that a partition's log has their marker.

        Raises:
            ViolationError: it contradicts those before it.
        """
        before, self._image = self._image, image
        if image.producers is before.producers and image.ending is before.ending:
            return []
        begun: dict[Identity, dict[PartitionKey, int]] = {}
        finished: list[tuple[PartitionKey, Identity]] = []
        for key in {**before.ending, **image.ending}:
            former = before.ending.get(key, _NONE)
            present = image.ending.get(key, _NONE)
            finished += [(key, identity) for identity in former if identity not in present]
            for identity, ending in present.items():
                if identity not in former:
                    begun.setdefault(identity, {})[key] = ending.end_offset
                elif former[identity] != ending:
                    raise ViolationError(f"the commit of {identity} in {key} became {ending}")
        for producer_id, producer in image.producers.items():
            known = before.producers.get(producer_id)
            if known is not None and known != producer and not _is_set_back(known, producer):
                self._decide(image.index, known, producer, begun)
        if begun:
            raise ViolationError(f"{begun} are committed in the image {image.index}, once more")
        return finished

    def _decide(
        self,
        index: int,
        known: AllocatedProducer,
        producer: AllocatedProducer,
        begun: dict[Identity, dict[PartitionKey, int]],
    ) -> None:
        if producer.producer_epoch <= known.producer_epoch:
            raise ViolationError(f"{known} became {producer}")
        for epoch in range(known.producer_epoch, producer.producer_epoch):
            identity = (producer.producer_id, epoch)
            ends = begun.pop(identity, None)
            if epoch + 1 == producer.producer_epoch and producer.last == COMMITTED:
                ends = ends or {}
            elif ends is not None and epoch + 1 == producer.producer_epoch:
                raise ViolationError(f"{identity} is committed, and {producer} says otherwise")
            self.by_identity[identity] = Decision(index, ends)


@dataclass(slots=True)
class Chronicle:
    """The committed batches of a partition, from its first one to ``end`` (exclusive).

    ``owners``: offset → transaction, of records that belong to one. ``controls``: offsets that hold no record.
    ``firsts``: where each transaction begins; ``markers``: where it ends, and how.
    """

    key: PartitionKey
    end: int = 0
    owners: dict[int, Identity] = field(default_factory=dict)
    controls: set[int] = field(default_factory=set)
    firsts: dict[Identity, int] = field(default_factory=dict)
    markers: dict[Identity, tuple[int, Marker]] = field(default_factory=dict)
    _stable_ends: dict[int, int] = field(default_factory=dict)

    def extend(
        self, headers: Iterable[BatchHeader], decisions: Mapping[Identity, Decision]
    ) -> None:
        """Take the next batches.

        Raises:
            ViolationError: no leader may have written this.
        """
        for header in headers:
            if header.next_offset <= self.end:
                continue
            if header.base_offset > self.end:
                raise ViolationError(f"{self.key}: the judge has not seen what is at {self.end}")
            self.end = header.next_offset
            if header.is_transactional:
                self._take(header, decisions)
            if header.is_control:
                self.controls.update(range(header.base_offset, header.next_offset))

    def _take(self, header: BatchHeader, decisions: Mapping[Identity, Decision]) -> None:
        identity = (header.producer_id, header.producer_epoch)
        where = f"{self.key} at {header.base_offset}: transaction {identity}"
        if identity in self.markers:
            raise ViolationError(f"{where} goes on behind its end at {self.markers[identity]}")
        if header.marker is None:
            self.firsts.setdefault(identity, header.base_offset)
            self.owners.update(
                dict.fromkeys(range(header.base_offset, header.next_offset), identity)
            )
            return
        decision, marker = decisions.get(identity), header.marker
        if identity not in self.firsts or decision is None:
            raise ViolationError(
                f"{where} ends as {marker}, and began at {self.firsts}: {decision}"
            )
        end_offset = None if decision.ends is None else decision.ends.get(self.key)
        if end_offset != (marker.end_offset if marker.is_commit else None):
            raise ViolationError(f"{where} ends as {marker}, and is decided as {decision}")
        self.markers[identity] = (header.base_offset, marker)

    def stable_end(self, high_watermark: int) -> int:
        """The last stable offset at a high watermark that is not above ``end``."""
        known = self._stable_ends.get(high_watermark)
        if known is None:
            known = min(
                (
                    first
                    for identity, first in self.firsts.items()
                    if first < high_watermark and not self._is_over(identity, high_watermark)
                ),
                default=high_watermark,
            )
            self._stable_ends[high_watermark] = known
        return known

    def _is_over(self, identity: Identity, high_watermark: int) -> bool:
        return identity in self.markers and self.markers[identity][0] < high_watermark

    def is_decided(self, offset: int) -> bool:
        """Whether the log says how the transaction of a record ended."""
        return self.owners.get(offset) in self.markers

    def is_committed(self, offset: int) -> bool:
        """Whether a record below the last stable offset counts, as the log itself says."""
        owner = self.owners.get(offset)
        if owner is None:
            return offset not in self.controls
        marker = self.markers[owner][1]
        return marker.is_commit and offset < marker.end_offset
