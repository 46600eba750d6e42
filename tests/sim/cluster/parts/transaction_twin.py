"""A second, simplest interpretation of transactions in images and logs, with which the nodes are compared.

``Decisions`` follows the images in order, ``Chronicle`` the committed batches of one partition. Both raise an error if
new data contradict earlier data.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from immutables import Map

from milena.model.batch.header import BatchHeader, Marker
from raft_meta.machine.image import AllocatedProducer, Ending, Image, PartitionKey
from raft_meta.machine.producers import COMMITTED
from tests.sim.cluster.invariants import ViolationError

Identity = tuple[int, int]
"""The identity of a transaction: (producer id, producer epoch)."""
_NONE: Map[Identity, Ending] = Map()


@dataclass(frozen=True, slots=True)
class Decision:
    """How a transaction ended. ``index`` is that of the first image with the decision.

    ``ends`` has the end (exclusive) of the committed records by partition; None means that the transaction is aborted.
    """

    index: int
    ends: Mapping[PartitionKey, int] | None

    def commits(self, key: PartitionKey, offset: int) -> bool:
        """Return whether a record of the transaction is committed."""
        return self.ends is not None and offset < self.ends.get(key, 0)


def _is_set_back(known: AllocatedProducer, producer: AllocatedProducer) -> bool:
    """Return whether only the time of its last use was corrected (``CorrectTime``)."""
    return producer.used_ms < known.used_ms and replace(producer, used_ms=known.used_ms) == known


class Decisions:
    """The decisions of the state machine about transactions.

    Invariants:
        - a change that raises a producer's epoch decides its transaction, finally; no other change does.
    """

    def __init__(self) -> None:
        self.by_identity: dict[Identity, Decision] = {}
        self._image = Image()

    def take(self, image: Image) -> list[tuple[PartitionKey, Identity]]:
        """Process the next image; return the (partition, transaction) pairs whose log must have the marker by now.

        Raises:
            ViolationError: the image contradicts earlier ones.
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

    ``owners`` has the transaction of each transactional record, by offset; ``controls`` has the offsets without a
    record. ``firsts`` has the first offset of each transaction, ``markers`` the offset and the kind of its end.
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
        """Process the next batches.

        Raises:
            ViolationError: a correct leader would not have written this.
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
        """Return the last stable offset for a high watermark that is not above ``end``."""
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
        """Return whether the log has the end of a record's transaction."""
        return self.owners.get(offset) in self.markers

    def is_committed(self, offset: int) -> bool:
        """Return whether a record below the last stable offset is committed, by the log alone."""
        owner = self.owners.get(offset)
        if owner is None:
            return offset not in self.controls
        marker = self.markers[owner][1]
        return marker.is_commit and offset < marker.end_offset
