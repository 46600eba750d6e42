"""Plant faults into the records that the judge gets, to show that the judge finds them (pure)."""

from collections.abc import Sequence
from enum import StrEnum, unique

from loadtest.records.pages import StoredRecord
from loadtest.records.workload import DamagedValueError, ForeignValueError, RecordId, identify


@unique
class Plant(StrEnum):
    """The kinds of faults; one fault is planted per run."""

    LOSS = "loss"
    """A record is missing."""
    DUPLICATE = "duplicate"
    """A fault: a record is duplicated at the end of its partition."""
    CORRUPT = "corrupt"
    """A bit of a record is flipped."""
    REORDER = "reorder"
    """Two records of one writer are swapped."""


class Planter:
    """Alters the read-back records at the first suitable place."""

    def __init__(self, plant: Plant | None) -> None:
        self._plant = plant
        self._copied: tuple[int, StoredRecord] | None = None
        self.planted = ""
        """The planted fault; empty if there is none."""

    @property
    def is_missing(self) -> bool:
        """Return whether a fault was requested and not planted, so that the run proves nothing."""
        return self._plant is not None and not self.planted

    def alter(self, partition: int, records: Sequence[StoredRecord]) -> Sequence[StoredRecord]:
        """Return the records of a page, altered if the fault is planted here."""
        if self._plant is None or self.planted or self._copied or not records:
            return records
        middle = len(records) // 2
        match self._plant:
            case Plant.LOSS:
                self._note(partition, records[middle], "was taken away")
                return (*records[:middle], *records[middle + 1 :])
            case Plant.DUPLICATE:
                self._copied = (partition, records[middle])
                return records
            case Plant.CORRUPT:
                self._note(partition, records[middle], "was damaged")
                return (*records[:middle], _flipped(records[middle]), *records[middle + 1 :])
            case Plant.REORDER:
                return self._reorder(partition, records)

    def at_end(self, partition: int, end_offset: int) -> Sequence[StoredRecord]:
        """Return the records to add after the end of the partition: the duplicate, if it belongs here."""
        if self.planted or self._copied is None or self._copied[0] != partition:
            return ()
        record = self._copied[1]
        self._note(partition, record, f"was copied to offset {end_offset}")
        return (record._replace(offset=end_offset),)

    def _reorder(self, partition: int, records: Sequence[StoredRecord]) -> Sequence[StoredRecord]:
        seen: dict[int, int] = {}
        for at, record in enumerate(records):
            owner = _owner(record)
            if owner is None:
                continue
            if owner.writer not in seen:
                seen[owner.writer] = at
                continue
            first = seen[owner.writer]
            altered = list(records)
            altered[first] = record._replace(offset=records[first].offset)
            altered[at] = records[first]._replace(offset=record.offset)
            self._note(partition, record, f"changed places with offset {records[first].offset}")
            return altered
        return records

    def _note(self, partition: int, record: StoredRecord, done: str) -> None:
        self.planted = f"the record at p{partition}@{record.offset} {done}"


def _flipped(record: StoredRecord) -> StoredRecord:
    value = bytearray(record.value or b"\0")
    value[-3 if len(value) > 3 else 0] ^= 1
    return record._replace(value=bytes(value))


def _owner(record: StoredRecord) -> RecordId | None:
    try:
        return identify(record.key, record.value)
    except (ForeignValueError, DamagedValueError):
        return None
