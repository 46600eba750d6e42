"""Numbers of many subjects (topics, groups) over the last hour, within a limit of bytes. Pure: uses no clocks.

Time is divided into slots of ``STEP_MS`` of the wall clock, so that the numbers of several nodes can be combined. A
subject without numbers costs nothing: a missing number is 0, and after an hour without numbers the subject is removed.
If there is no room for a new subject, the subject without numbers for the longest time is removed. If all subjects
have recent numbers, the new one is left out and counted.
"""

import sys
from array import array
from collections.abc import Sequence
from typing import TypeAlias

Floats: TypeAlias = "array[float]"

STEP_MS = 10_000
POINTS = 360
"""Number of slots in an hour."""
_ENTRY_BYTES = 300
"""Bytes for a subject in addition to its name and numbers: its objects, and its entry in the dictionary."""


class Ring:
    """``width`` numbers for each of the last ``POINTS`` slots, as floats of 4 bytes (seven digits). Slots only grow."""

    __slots__ = ("_values", "last_slot", "width")

    def __init__(self, width: int, slot: int, *, absent: float = 0.0) -> None:
        self.last_slot = slot
        self.width = width
        self._values = array("f", (absent,)) * (POINTS * width)

    def put(self, slot: int, values: Sequence[float], *, absent: float = 0.0) -> None:
        """Store the numbers of a slot. Slots that were skipped since the last one get ``absent``."""
        assert slot >= self.last_slot, (slot, self.last_slot)
        nothing = array("f", (absent,)) * self.width
        for missed in range(max(self.last_slot + 1, slot - POINTS + 1), slot):
            self._set(missed, nothing)
        self._set(slot, array("f", values))
        self.last_slot = slot

    def column(self, index: int, end_slot: int, *, absent: float = 0.0) -> Floats:
        """Return one of the numbers for each slot of the hour that ends with ``end_slot`` (inclusive)."""
        found = array("f", (absent,)) * POINTS
        first = end_slot - POINTS + 1
        for slot in range(
            max(first, self.last_slot - POINTS + 1), min(end_slot, self.last_slot) + 1
        ):
            found[slot - first] = self._values[slot % POINTS * self.width + index]
        return found

    def _set(self, slot: int, values: Floats) -> None:
        at = slot % POINTS * self.width
        self._values[at : at + self.width] = values


class SeriesStore:
    """Rings by subject, at most ``bytes_max`` in total (estimated). The subject updated longest ago comes first."""

    def __init__(self, bytes_max: int) -> None:
        self.left_out = 0
        """Number of subjects for which there was no room in the present slot."""
        self.size_bytes = 0
        self._bytes_max = bytes_max
        self._rings: dict[tuple[str, str], Ring] = {}

    def __len__(self) -> int:
        return len(self._rings)

    def begin(self, slot: int) -> None:
        """Start a slot: remove the subjects that have had no numbers for an hour."""
        self.left_out = 0
        while self._rings:
            subject, ring = next(iter(self._rings.items()))
            if ring.last_slot > slot - POINTS:
                break
            self._drop(subject, ring)

    def put(self, slot: int, subject: tuple[str, str], values: Sequence[float]) -> None:
        """Store the numbers of a subject that are not all 0."""
        ring = self._rings.pop(subject, None)
        if ring is None:
            cost = _cost(subject, len(values))
            if not self._make_room(cost, slot):
                self.left_out += 1
                return
            ring = Ring(len(values), slot)
            self.size_bytes += cost
        ring.put(slot, values)
        self._rings[subject] = ring

    def find(self, subject: tuple[str, str]) -> Ring | None:
        """Return the subject's ring; None if it has had no numbers for an hour, or was left out."""
        return self._rings.get(subject)

    def _make_room(self, wanted: int, slot: int) -> bool:
        while self.size_bytes + wanted > self._bytes_max:
            if not self._rings:
                return False
            subject, ring = next(iter(self._rings.items()))
            if ring.last_slot >= slot - 1:
                return False
            self._drop(subject, ring)
        return True

    def _drop(self, subject: tuple[str, str], ring: Ring) -> None:
        del self._rings[subject]
        self.size_bytes -= _cost(subject, ring.width)


def _cost(subject: tuple[str, str], width: int) -> int:
    return 4 * POINTS * width + sys.getsizeof(subject[1]) + _ENTRY_BYTES
