"""Count the outcomes of the lines that were sent (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from milena.commands.output import named
from milena.errors import ClientError
from milena.fields import Json
from milena.producing.deliveries import DeliveryRun


def counted(count: int, thing: str) -> str:
    """Return ``1 line``, ``2 lines``."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


@dataclass(slots=True)
class PartitionTally:
    """Acknowledged records of one partition; the offsets are None under ``acks=0``."""

    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no record; lines count from 1."""

    line: int
    reason: str


@dataclass(slots=True)
class ProduceTally:
    """The counts of one run.

    Invariants:
        - every line that was read was sent or is bad;
        - at the end, every record that was sent was acknowledged or failed.
    """

    lines: int = 0
    sent_bytes: int = 0
    """The bytes of keys and values."""
    acknowledged: int = 0
    failed: int = 0
    skipped: int = 0
    """Bad lines that were skipped."""
    left_out: int = 0
    """Records that a former run under the same name has written."""
    first_failure: tuple[int, ClientError] | None = None
    unsent_line: int | None = None
    """The line whose record the producer refused. All lines before it were sent, and none behind it."""
    bad_line: BadLine | None = None
    """The first bad line."""
    is_interrupted: bool = False
    is_aborted: bool = False
    """True if the records were part of a transaction that was aborted."""
    partitions: dict[int, PartitionTally] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """True if every line is an acknowledged record, except those that were to be skipped."""
        has_stopped = self.is_interrupted or (self.bad_line is not None and not self.skipped)
        return not (has_stopped or self.failed)

    @property
    def written(self) -> int:
        """The number of records that count."""
        return 0 if self.is_aborted else self.acknowledged

    def on_run(self, run: DeliveryRun, lines: Sequence[int]) -> None:
        """Count records with one outcome; ``lines`` are the line numbers of all records that were sent together."""
        if run.error is not None:
            self.on_failure(lines[run.places[0]], run.error, len(run.places))
            return
        count, first = len(run.places), run.base_offset
        self.acknowledged += count
        tally = self.partitions.setdefault(run.partition, PartitionTally())
        tally.records += count
        if first is not None:
            if tally.first_offset is None or first < tally.first_offset:
                tally.first_offset = first
            if tally.last_offset is None or first + count - 1 > tally.last_offset:
                tally.last_offset = first + count - 1

    def on_failure(self, line: int, error: ClientError, records: int = 1) -> None:
        """Count this line's record, and others of later lines, as not acknowledged."""
        self.failed += records
        if self.first_failure is None or line < self.first_failure[0]:
            self.first_failure = line, error

    def summary_text(self, elapsed_ms: float) -> str:
        """Return one line for people."""
        seconds = elapsed_ms / 1000
        rate = self.written / seconds if seconds > 0 else 0.0
        text = (
            f"{counted(self.written, 'record')}, {self.sent_bytes} bytes in {seconds:.2f} s "
            f"({rate:.0f} records/s)"
        )
        if self.failed:
            text += f", {self.failed} not acknowledged"
        if self.left_out:
            text += f", {self.left_out} written before"
        if self.skipped:
            text += f", {counted(self.skipped, 'bad line')} skipped"
        if self.is_aborted:
            text += ", transaction aborted"
        return text

    def summary_json(self, elapsed_ms: float) -> Json:
        """Return the same for programs, with more details."""
        return {
            "lines": self.lines,
            "records": self.written,
            "bytes": self.sent_bytes,
            "seconds": round(elapsed_ms / 1000, 3),
            "written_before": self.left_out,
            "not_acknowledged": self.failed,
            "first_failed_line": self.first_failure[0] if self.first_failure else None,
            "error": self.first_failure[1].message if self.first_failure else None,
            "bad_lines_skipped": self.skipped,
            "bad_line": self.bad_line.line if self.bad_line else None,
            "is_interrupted": self.is_interrupted,
            "is_aborted": self.is_aborted,
            "partitions": [
                {"partition": partition, **named(tally)}
                for partition, tally in sorted(self.partitions.items())
            ],
        }
