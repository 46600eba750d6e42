"""The last hour of high watermarks: when a partition's log passed an offset (pure).

The leader of a partition notes its high watermark every ten seconds, while groups have committed offsets there. Between
two notes, the log counts as growing evenly. So the age of the first record that a group has not read is known without
reading that record.
"""

from array import array
from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass, field

from milena.model.types import MonotonicMs
from node.metrics.series import POINTS, STEP_MS
from raft_meta.machine.image import PartitionKey

SPAN_MS = POINTS * STEP_MS
"""An hour. Older notes are forgotten."""
NOTES_MAX = 1 << 19
"""Notes of all partitions together, of 16 bytes each. If there are more, each partition keeps fewer, further apart."""
NOTES_LEAST = 8
"""Notes that each partition may keep, however many partitions there are."""


@dataclass(slots=True)
class _Curve:
    """The notes of a partition while one leader epoch lasts. ``offsets`` does not fall."""

    leader_epoch: int
    times: "array[int]" = field(default_factory=lambda: array("q"))
    offsets: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, offset: int, now_ms: MonotonicMs, notes_max: int) -> None:
        times, offsets = self.times, self.offsets
        # A log that does not grow needs two notes: the first and the last time at this offset.
        if len(offsets) > 1 and offsets[-2] == offset:
            times[-1] = now_ms
            return
        times.append(now_ms)
        offsets.append(offset)
        # Keep one note from before the hour. Offsets passed at the hour's start lie between it and the next one.
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
    """The notes of the partitions that this node leads and groups read."""

    def __init__(self) -> None:
        self._curves: dict[PartitionKey, _Curve] = {}

    @property
    def note_count(self) -> int:
        """The notes of all partitions."""
        return sum(len(curve.times) for curve in self._curves.values())

    def note(
        self, key: PartitionKey, leader_epoch: int, high_watermark: int, now_ms: MonotonicMs
    ) -> None:
        """Note where a partition stands now. Under another leader epoch, its notes start again."""
        curve = self._curves.get(key)
        # Offsets of another epoch may be of other records. Within an epoch the high watermark never falls.
        if curve is None or curve.leader_epoch != leader_epoch:
            curve = self._curves[key] = _Curve(leader_epoch)
        share = NOTES_MAX // len(self._curves)
        curve.add(high_watermark, now_ms, min(max(share, NOTES_LEAST), POINTS + 2))

    def keep(self, keys: Collection[PartitionKey]) -> None:
        """Forget all other partitions."""
        for key in self._curves.keys() - keys:
            del self._curves[key]

    def passed_ms(self, key: PartitionKey, offset: int) -> float | None:
        """Return the monotonic time at which the high watermark passed ``offset``; None if that was before the notes.

        An offset that no note has passed was passed after the last one, whose time is returned.
        """
        curve = self._curves.get(key)
        return None if curve is None else curve.passed_ms(offset)
