"""Every record that was written, and the judgement of what was read back (pure).

Values are remembered by a hash of 64 bits with a new key in each process. Two different values of a key collide once
in 10^19.
A keyed record must come back in the order of its key and from one partition; of a record without a key only the
number of copies is known.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TallyVerdict:
    """Faults of what was read back, in records or keys."""

    written: int
    read: int
    missing: int
    doubled: int
    foreign: int
    """Records that no writer wrote, including damaged ones."""
    keys_out_of_order: int
    keys_in_two_partitions: int
    offset_gaps: int
    """Places where offsets within a partition do not follow each other."""

    @property
    def is_good(self) -> bool:
        """Return whether exactly the written records came back."""
        return self.read == self.written and not (
            self.missing
            or self.doubled
            or self.foreign
            or self.keys_out_of_order
            or self.keys_in_two_partitions
            or self.offset_gaps
        )

    def problems(self) -> Iterator[str]:
        """A sentence for each."""
        for count, text in (
            (self.missing, "records are missing"),
            (self.doubled, "records came back more often than they were written"),
            (self.foreign, "records came back that were never written"),
            (self.keys_out_of_order, "keys came back in another order"),
            (self.keys_in_two_partitions, "keys are spread over partitions"),
            (self.offset_gaps, "gaps or repeats in offsets"),
        ):
            if count:
                yield f"{count} {text}"


class Tally:
    """Counts of what was written and of what was read back.

    ``wrote`` is called in the order of each key, ``read`` in the order of each partition's offsets.
    """

    def __init__(self) -> None:
        self._written: defaultdict[bytes | None, list[int]] = defaultdict(list)
        self._read: defaultdict[bytes | None, list[int]] = defaultdict(list)
        self._homes: defaultdict[bytes, set[int]] = defaultdict(set)
        self._next_offsets: dict[int, int] = {}
        self._offset_gaps = 0

    def wrote(self, key: bytes | None, value: bytes) -> None:
        """A record was handed to the writer, after all earlier ones of its key."""
        self._written[key].append(hash(value))

    def read(self, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        """A record was read back."""
        if offset != self._next_offsets.get(partition, 0):
            self._offset_gaps += 1
        self._next_offsets[partition] = offset + 1
        self._read[key].append(hash(value))
        if key is not None:
            self._homes[key].add(partition)

    def verdict(self) -> TallyVerdict:
        """Compare the two."""
        missing = doubled = foreign = out_of_order = 0
        for key in self._written.keys() | self._read.keys():
            written, read = self._written.get(key, []), self._read.get(key, [])
            if written == read:
                continue
            wanted, found = Counter(written), Counter(read)
            if wanted == found:
                out_of_order += key is not None
                continue
            missing += (wanted - found).total()
            for value, extra in (found - wanted).items():
                if value in wanted:
                    doubled += extra
                else:
                    foreign += extra
        return TallyVerdict(
            written=sum(map(len, self._written.values())),
            read=sum(map(len, self._read.values())),
            missing=missing,
            doubled=doubled,
            foreign=foreign,
            keys_out_of_order=out_of_order,
            keys_in_two_partitions=sum(len(homes) > 1 for homes in self._homes.values()),
            offset_gaps=self._offset_gaps,
        )
