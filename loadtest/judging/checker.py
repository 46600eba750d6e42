"""Compare ledgers with the contents of the topic: all acknowledged records must be there, and no others (pure).

The checker gets its input in three steps. First the ledger's writes (``note_write``). Then all records of the topic
(``read``, in the order of each partition, then ``end_partition``). Then the ledger's pages, which are what readers saw
during the load (``note_poll``). The records of the topic are the reference for acknowledgements and pages.

With ``acks`` 1 or 0, an acknowledged record may be lost or get another offset. With 0 it may also be out of order,
because the writer does not wait until the record has an offset. Such records are counted and are no faults. A record
that a reader saw must stay in any case. A write of unknown fate may be in the topic or not; if it is, it is checked
like any other.

Each record takes about 35 bytes of memory, in arrays.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat

from loadtest.judging.ledger import Event, LedgerError, Opened, Polled, Sent, Settled
from loadtest.judging.verdict import Anomaly, Findings, Verdict
from loadtest.records.fingerprints import FINGERPRINT_BYTES, fingerprint
from loadtest.records.receipts import Fate
from loadtest.records.workload import DamagedValueError, ForeignValueError, RecordId, identify

OFFSET_BITS = 44
NOWHERE = -1
ABSENT = 0
"""The mark of an offset without a record. A record's fingerprint has this value once in 10^19."""


@dataclass(slots=True)
class _WriterRecords:
    """The records of one writer, by sequence. A place is a partition and an offset in one number."""

    fingerprints: "array[int]" = field(default_factory=lambda: array("Q"))
    fates: bytearray = field(default_factory=bytearray)
    acknowledged: "array[int]" = field(default_factory=lambda: array("q"))
    found: "array[int]" = field(default_factory=lambda: array("q"))
    last_in: dict[int, int] = field(default_factory=dict)
    """The highest acknowledged sequence that was read so far, by partition."""


@dataclass(slots=True)
class _Log:
    """The records read from a partition: their fingerprints by offset, from ``start`` on."""

    start: int
    records: "array[int]" = field(default_factory=lambda: array("Q"))
    is_complete: bool = False

    @property
    def end(self) -> int:
        """Return the offset after the last record."""
        return self.start + len(self.records)

    def at(self, offset: int) -> int:
        """Return the fingerprint at an offset; ``ABSENT`` if there is no record."""
        index = offset - self.start
        return self.records[index] if 0 <= index < len(self.records) else ABSENT


class Checker:
    """Judges one run. Call ``note_write``, ``read`` and ``note_poll`` in this order, then ``verdict``."""

    def __init__(self) -> None:
        self.topic = ""
        """The topic that was written to, according to the ledgers."""
        self._writers: defaultdict[int, _WriterRecords] = defaultdict(_WriterRecords)
        self._logs: dict[int, _Log] = {}
        self._positions: dict[tuple[int, int], int] = {}
        self._starts: dict[int, int] = {}
        self._is_safe = True
        self._is_ordered = True
        self._findings = Findings()
        self._unread: list[str] = []
        self._read = 0
        self._polled = 0

    @property
    def starts(self) -> Mapping[int, int]:
        """Return the first offset to read back, by partition."""
        return self._starts

    # -- the ledger's writes -----------------------------------------------------------------------

    def note_write(self, event: Event) -> None:
        """Note a write event of the ledger; other events are ignored.

        Raises:
            LedgerError: the event contradicts earlier ones.
        """
        match event:
            case Opened():
                self._note_opened(event)
            case Sent():
                self._note_sent(event)
            case Settled():
                self._note_settled(event)
            case _:
                pass

    def _note_opened(self, event: Opened) -> None:
        if self.topic not in ("", event.topic):
            raise LedgerError(f"the run wrote to two topics: {self.topic} and {event.topic}")
        self.topic = event.topic
        self._is_safe = self._is_safe and event.acks == "all"
        self._is_ordered = self._is_ordered and event.acks != "0"
        for partition, start in event.starts.items():
            self._starts[partition] = min(start, self._starts.get(partition, start))

    def _note_sent(self, event: Sent) -> None:
        writer = self._writers[event.writer]
        if event.first != len(writer.fates):
            raise LedgerError(
                f"writer {event.writer:x} sent record {event.first} after {len(writer.fates)}"
            )
        marks = _numbers(event.fingerprints)
        writer.fingerprints.extend(marks)
        writer.fates.extend(repeat(Fate.UNKNOWN, len(marks)))
        writer.acknowledged.extend(repeat(NOWHERE, len(marks)))
        writer.found.extend(repeat(NOWHERE, len(marks)))

    def _note_settled(self, event: Settled) -> None:
        writer = self._writers[event.writer]
        end = event.first + event.count
        if end > len(writer.fates):
            raise LedgerError(
                f"writer {event.writer:x} settled record {end - 1} before it was sent"
            )
        writer.fates[event.first : end] = bytes([event.fate]) * event.count
        for sequence, partition, offset in zip(
            range(event.first, end), event.partitions, event.offsets, strict=False
        ):
            writer.acknowledged[sequence] = NOWHERE if offset < 0 else _place(partition, offset)

    # -- what the cluster holds --------------------------------------------------------------------

    def read(self, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Check a record of the topic; call this in the order of each partition's offsets."""
        mark = _number(fingerprint(key, value or b""))
        if not self._append(partition, offset, mark):
            return
        self._read += 1
        try:
            record = identify(key, value)
        except ForeignValueError as error:
            self._findings.add(Anomaly.FOREIGN_RECORD, f"{_at(partition, offset)}: {error}")
        except DamagedValueError as error:
            self._findings.add(Anomaly.CORRUPT_RECORD, f"{_at(partition, offset)}: {error}")
        else:
            self._judge_record(record, partition, offset, mark)

    def cannot_read(self, partition: int, reason: str) -> None:
        """Note that a partition cannot be read further; its remaining records are not judged."""
        self._unread.append(f"partition {partition}: {reason}")

    def found_corrupt(self, partition: int, reason: str) -> None:
        """Note that the cluster returned bytes that are no records."""
        self._findings.add(Anomaly.CORRUPT_RECORD, f"partition {partition}: {reason}")
        self.cannot_read(partition, reason)

    def end_partition(self, partition: int) -> None:
        """Note that the partition was read to its end."""
        self._log(partition).is_complete = True

    def _log(self, partition: int) -> _Log:
        return self._logs.setdefault(partition, _Log(self._starts.get(partition, 0)))

    def _append(self, partition: int, offset: int, mark: int) -> bool:
        """Add a record to its log; return False if its offset already has a record."""
        log = self._log(partition)
        if offset < log.end:
            if log.at(offset) != mark:
                text = f"{_at(partition, offset)}: two records were read back"
                self._findings.add(Anomaly.INCONSISTENT_OFFSETS, text)
            else:
                self._findings.add(Anomaly.OFFSET_GAP, f"{_at(partition, offset)}: read back twice")
            return False
        if offset > log.end:
            text = f"{_at(partition, log.end)}: {offset} follows {log.end - 1}"
            self._findings.add(Anomaly.OFFSET_GAP, text)
            log.records.extend(repeat(ABSENT, offset - log.end))
        log.records.append(mark)
        return True

    def _judge_record(self, record: RecordId, partition: int, offset: int, mark: int) -> None:
        where = _at(partition, offset)
        writer = self._writers.get(record.writer)
        if writer is None or record.sequence >= len(writer.fates):
            self._findings.add(
                Anomaly.FOREIGN_RECORD, f"{where}: {_name(record)}, which was never sent"
            )
            return
        if writer.fingerprints[record.sequence] != mark:
            self._findings.add(
                Anomaly.CORRUPT_RECORD, f"{where}: {_name(record)} is not what was sent"
            )
        place, first = _place(partition, offset), writer.found[record.sequence]
        if first != NOWHERE:
            text = f"{_name(record)} at {_at(*_split(first))} and {where}"
            self._findings.add(Anomaly.DUPLICATE, text)
            return
        writer.found[record.sequence] = place
        self._judge_fate(writer, record, partition, offset)

    def _judge_fate(
        self, writer: _WriterRecords, record: RecordId, partition: int, offset: int
    ) -> None:
        where = _at(partition, offset)
        match Fate(writer.fates[record.sequence]):
            case Fate.REFUSED:
                self._findings.add(Anomaly.ABORTED_READ, f"{where}: {_name(record)} was refused")
            case Fate.ACKNOWLEDGED:
                told = writer.acknowledged[record.sequence]
                if told not in (NOWHERE, _place(partition, offset)):
                    anomaly = Anomaly.INCONSISTENT_OFFSETS if self._is_safe else Anomaly.LOST_UNSAFE
                    text = f"{_name(record)}, acknowledged at {_at(*_split(told))}, is at {where}"
                    self._findings.add(anomaly, text)
                self._judge_order(writer, record, partition, where)
            case Fate.UNKNOWN:
                # The write may have taken effect late, so the order of this record proves nothing.
                pass

    def _judge_order(
        self, writer: _WriterRecords, record: RecordId, partition: int, where: str
    ) -> None:
        last = writer.last_in.get(partition, NOWHERE)
        if record.sequence < last:
            anomaly = Anomaly.NONMONOTONIC_SEND if self._is_ordered else Anomaly.REORDERED_UNSAFE
            self._findings.add(anomaly, f"{where}: {_name(record)} stands after {last}")
        else:
            writer.last_in[partition] = record.sequence

    # -- the ledger's pages ------------------------------------------------------------------------

    def note_poll(self, event: Event) -> None:
        """Compare a page of a reader with the topic; other events are ignored."""
        if not isinstance(event, Polled):
            return
        log = self._log(event.partition)
        reader = (event.reader, event.partition)
        expected = event.asked if event.is_seek else self._positions.get(reader, event.asked)
        for offset, mark in zip(event.offsets, _numbers(event.fingerprints), strict=True):
            self._polled += 1
            self._judge_poll(log, event, expected, offset, mark)
            expected = max(expected, offset + 1)
        self._positions[reader] = expected

    def _judge_poll(self, log: _Log, event: Polled, expected: int, offset: int, mark: int) -> None:
        where = _at(event.partition, offset)
        who = f"reader {event.reader:x}"
        if offset < expected:
            text = f"{where}: {who} expected {expected}"
            self._findings.add(Anomaly.NONMONOTONIC_POLL, text)
        elif any(log.at(skipped) != ABSENT for skipped in range(expected, offset)):
            self._findings.add(Anomaly.POLL_SKIP, f"{where}: {who} expected {expected}")
        if offset < log.start or (offset >= log.end and not log.is_complete):
            return
        truth = log.at(offset)
        if truth == ABSENT:
            self._findings.add(Anomaly.READ_THEN_LOST, f"{where}: {who} saw a record that is gone")
        elif truth != mark:
            self._findings.add(Anomaly.INCONSISTENT_OFFSETS, f"{where}: {who} saw another record")

    # -- the judgement -----------------------------------------------------------------------------

    def verdict(self) -> Verdict:
        """Return the verdict; call this once, after all three steps."""
        fates: Counter[int] = Counter()
        unknown_found = 0
        for number, writer in self._writers.items():
            fates.update(writer.fates)
            for sequence, fate in enumerate(writer.fates):
                if fate == Fate.ACKNOWLEDGED:
                    self._judge_loss(RecordId(number, sequence), writer)
                elif fate == Fate.UNKNOWN:
                    unknown_found += writer.found[sequence] != NOWHERE
        return Verdict(
            sent=fates.total(),
            acknowledged=fates[Fate.ACKNOWLEDGED],
            refused=fates[Fate.REFUSED],
            unknown=fates[Fate.UNKNOWN],
            unknown_found=unknown_found,
            read=self._read,
            polled=self._polled,
            found=dict(self._findings.counts),
            examples=self._findings.examples(),
            unread=(*self._unread, *self._never_read()),
        )

    def _judge_loss(self, record: RecordId, writer: _WriterRecords) -> None:
        if writer.found[record.sequence] != NOWHERE:
            return
        told = writer.acknowledged[record.sequence]
        if not self._is_safe:
            self._findings.add(Anomaly.LOST_UNSAFE, f"{_name(record)} is not there")
            return
        partition, offset = _split(told)
        if told == NOWHERE or self._is_judged(partition, offset):
            where = _at(partition, offset)
            self._findings.add(
                Anomaly.LOST_WRITE, f"{_name(record)}, acknowledged at {where}, is not there"
            )

    def _is_judged(self, partition: int, offset: int) -> bool:
        """Return whether this offset was read, or would have been if it had a record."""
        log = self._logs.get(partition)
        return log is not None and (log.is_complete or log.start <= offset < log.end)

    def _never_read(self) -> Iterator[str]:
        told = {reason.split(":")[0] for reason in self._unread}
        for partition in sorted(self._starts):
            log = self._logs.get(partition)
            name = f"partition {partition}"
            if (log is None or not log.is_complete) and name not in told:
                yield f"{name}: not read to its end"


def _numbers(joined: bytes) -> "array[int]":
    """Return joined fingerprints as numbers, in this machine's byte order."""
    numbers = array("Q")
    numbers.frombytes(joined)
    return numbers


def _number(mark: bytes) -> int:
    assert len(mark) == FINGERPRINT_BYTES, f"fingerprint of {len(mark)} bytes"
    return _numbers(mark)[0]


def _place(partition: int, offset: int) -> int:
    return partition << OFFSET_BITS | offset


def _split(place: int) -> tuple[int, int]:
    return place >> OFFSET_BITS, place & ((1 << OFFSET_BITS) - 1)


def _at(partition: int, offset: int) -> str:
    return f"p{partition}@{offset}"


def _name(record: RecordId) -> str:
    return f"{record.writer:x}:{record.sequence}"
