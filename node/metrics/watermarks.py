"""The last hour of high watermarks, which tells when a partition's log passed an offset. Pure.

While groups have committed offsets in a partition, its leader notes the high watermark every ten seconds. Between two
notes, the log counts as growing evenly. So the age of the first record that a group has not read can be computed
without reading the record.
"""

from array import array
from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass, field

from milena.model.types import MonotonicMs
from node.metrics.series import POINTS, STEP_MS
from raft_meta.machine.image import PartitionKey

SPAN_MS = POINTS * STEP_MS
"""One hour, in ms. Older notes are removed."""
NOTES_MAX = 1 << 19
"""Largest number of notes of all partitions together, of 16 bytes each. With more partitions, each keeps fewer notes,
with longer times between them."""
NOTES_LEAST = 8
"""Number of notes that each partition may keep in any case."""


@dataclass(slots=True)
class _Curve:
    """The notes of a partition under one leader epoch. ``offsets`` does not fall."""

    leader_epoch: int
    times: "array[int]" = field(default_factory=lambda: array("q"))
    offsets: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, offset: int, now_ms: MonotonicMs, notes_max: int) -> None:
        times, offsets = self.times, self.offsets
        # While a log does not grow, two notes suffice: the first and the last time at this offset.
        if len(offsets) > 1 and offsets[-2] == offset:
            times[-1] = now_ms
            return
        times.append(now_ms)
        offsets.append(offset)
        # Keep one note from before the hour. It is needed for offsets that were passed at the start of the hour.
        expired = bisect_right(times, now_ms - SPAN_MS) - 1
        if expired > 0:
            del times[:expired], offsets[:expired]
        if len(times) > notes_max:
            del times[1:-1:2], offsets[1:-1:2]

    def passed_ms(self, offset: int) -> float | None:
        at = bisect_right(self.offsets, offset)
        if at == 0:
            return None
        if at == len(self.offsets):
            return self.times[-1]
        before, after = self.offsets[at - 1], self.offsets[at]
        start_ms, end_ms = self.times[at - 1], self.times[at]
        return start_ms + (end_ms - start_ms) * (offset - before) / (after - before)


class Watermarks:
    """The notes of the partitions that this node leads and that groups read."""

    def __init__(self) -> None:
        self._curves: dict[PartitionKey, _Curve] = {}

    @property
    def note_count(self) -> int:
        """Number of notes of all partitions."""
        return sum(len(curve.times) for curve in self._curves.values())

    def note(
        self, key: PartitionKey, leader_epoch: int, high_watermark: int, now_ms: MonotonicMs
    ) -> None:
        """Note the present high watermark of a partition. Under another leader epoch, the notes start again."""
        curve = self._curves.get(key)
        # In another epoch, offsets may belong to other records. Within an epoch, the high watermark never falls.
        if curve is None or curve.leader_epoch != leader_epoch:
            curve = self._curves[key] = _Curve(leader_epoch)
        share = NOTES_MAX // len(self._curves)
        curve.add(high_watermark, now_ms, min(max(share, NOTES_LEAST), POINTS + 2))

    def keep(self, keys: Collection[PartitionKey]) -> None:
        """Remove the notes of all other partitions."""
        for key in self._curves.keys() - keys:
            del self._curves[key]

    def passed_ms(self, key: PartitionKey, offset: int) -> float | None:
        """Return the monotonic time in ms at which the high watermark passed ``offset``; None if before all notes.

        If no note has passed the offset, it was passed after the last note, and the time of this note is returned.
        """
        curve = self._curves.get(key)
        return None if curve is None else curve.passed_ms(offset)
