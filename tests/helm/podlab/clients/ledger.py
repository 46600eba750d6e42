"""What was acknowledged against what is there. Pure.

The producer numbers its records; a value is its number as text. Only acknowledged records are promised. One whose
fate is unknown may be there once or not at all.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Stored:
    """A record at its place."""

    partition: int
    offset: int
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of the records. ``moved`` are acknowledged at a place where another value is."""

    acknowledged: int
    read: int
    lost: tuple[str, ...]
    doubled: tuple[str, ...]
    moved: tuple[str, ...]
    foreign: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Nothing lost, doubled, moved or foreign."""
        return not (self.lost or self.doubled or self.moved or self.foreign)


def encode(record: Stored) -> str:
    """One line of a ledger."""
    return json.dumps([record.partition, record.offset, record.value])


def decode(lines: Iterable[str]) -> list[Stored]:
    """The records of a ledger; lines that are no records are left out."""
    found = []
    for line in lines:
        if line.startswith("[") and line.rstrip().endswith("]"):
            partition, offset, value = json.loads(line)
            found.append(Stored(int(partition), int(offset), str(value)))
    return found


def judge(sent: int, acknowledged: Sequence[Stored], read: Sequence[Stored]) -> Verdict:
    """Compare; ``sent`` is how many numbers the producer has used, from 0."""
    at_place = {(record.partition, record.offset): record.value for record in read}
    counts = Counter(record.value for record in read)
    values = {str(number) for number in range(sent)}
    return Verdict(
        acknowledged=len(acknowledged),
        read=len(read),
        lost=tuple(record.value for record in acknowledged if not counts[record.value]),
        doubled=tuple(value for value, count in counts.items() if count > 1),
        moved=tuple(
            record.value
            for record in acknowledged
            if counts[record.value]
            and at_place.get((record.partition, record.offset)) != record.value
        ),
        foreign=tuple(value for value in counts if value not in values),
    )
