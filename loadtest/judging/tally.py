"""Count the written records, and compare them with the records that were read back (pure).

A value is remembered by a 64-bit hash, whose key is new in each process. Two different values of a record key collide
once in 10^19. Records with a key must come back in the order of that key, and from one partition. For records without a
key, only the number of copies is compared.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TallyVerdict:
    """The faults in the records that were read back; counts of records, or of keys."""

    written: int
    read: int
    missing: int
    doubled: int
    foreign: int
    """Records that no writer wrote, including damaged ones."""
    keys_out_of_order: int
    keys_in_two_partitions: int
    offset_gaps: int
    """Offsets of a partition that do not follow their predecessor."""

    @property
    def is_good(self) -> bool:
        """Return whether exactly the written records came back."""
        return self.read == self.written and not list(self.problems())

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each kind of fault."""
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
    """Counts of written records and of records that were read back.

    ``wrote`` must be called in the order of each key, ``read`` in the order of each partition's offsets.
    """

    def __init__(self) -> None:
        self._written: defaultdict[bytes | None, list[int]] = defaultdict(list)
        self._read: defaultdict[bytes | None, list[int]] = defaultdict(list)
        self._homes: defaultdict[bytes, set[int]] = defaultdict(set)
        self._next_offsets: dict[int, int] = {}
        self._offset_gaps = 0

    def wrote(self, key: bytes | None, value: bytes) -> None:
        """Note that a record was passed to the writer, after all earlier records of its key."""
        self._written[key].append(hash(value))

    def read(self, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Note that a record was read back."""
        if offset != self._next_offsets.get(partition, 0):
            self._offset_gaps += 1
        self._next_offsets[partition] = offset + 1
        self._read[key].append(hash(value))
        if key is not None:
            self._homes[key].add(partition)

    def verdict(self) -> TallyVerdict:
        """Compare the records read back with the written ones."""
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
