"""The report of a run of a job on events: the counts of records read, unreadable, late, and written.

Spark reports a stream batch by batch, as JSON. The report includes the observed counts (``observe``).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as sf

from milena.fields import Json
from spark_ext.jobs.running.amounts import counted

READ, WRITTEN = "read", "written"
"""The names of the observations: of the events that arrive, and of the rows that are written."""

DELAY = "delay_ms"
"""An optional column of rows: the time from the latest event of a row to the row, in ms."""


def read_counts() -> tuple[Column, ...]:
    """Return the columns that are observed of events."""
    unreadable = sf.count_if(sf.col("reason").isNotNull()).alias("unreadable")
    return sf.count("*").alias("records"), unreadable


def written_counts(columns: Iterable[str]) -> tuple[Column, ...]:
    """Return the columns that are observed of rows with these columns."""
    rows = sf.count("*").alias("rows")
    if DELAY not in columns:
        return (rows,)
    return (rows, sf.sum(DELAY).alias("delays_ms"), sf.max(DELAY).alias("delay_max_ms"))


@dataclass(frozen=True, slots=True, kw_only=True)
class EventReport:
    """The counts of a run. ``unreadable`` records are part of ``records``; ``written`` counts rows.

    ``late`` counts the state rows that Spark dropped: events of one task, window and group count as one.
    ``watermark`` is ISO 8601, None for a table and before there was any event. ``delays_ms`` is the sum of all rows'
    delays, 0 where a job has none.
    """

    batches: int = 0
    records: int = 0
    unreadable: int = 0
    late: int = 0
    written: int = 0
    watermark: str | None = None
    delays_ms: int = 0
    delay_max_ms: int | None = None
    last_batch: int = -1

    def with_counts(
        self, read: Mapping[str, Any] | None, written: Mapping[str, Any] | None
    ) -> "EventReport":
        """Return the report plus the observations of one batch, or of a table."""
        longest = written.get("delay_max_ms") if written else None
        return replace(
            self,
            batches=self.batches + 1,
            records=self.records + (read["records"] if read else 0),
            unreadable=self.unreadable + (read["unreadable"] if read else 0),
            written=self.written + (written["rows"] if written else 0),
            delays_ms=self.delays_ms + ((written.get("delays_ms") or 0) if written else 0),
            delay_max_ms=max(
                (d for d in (self.delay_max_ms, longest) if d is not None), default=None
            ),
        )

    @property
    def delay_mean_ms(self) -> int | None:
        """Return the mean delay of the written rows, in ms; None if there are none."""
        return None if self.delay_max_ms is None else round(self.delays_ms / self.written)

    def with_progress(self, progress: Iterable[Mapping[str, Any]]) -> "EventReport":
        """Return the report plus new batches of Spark's progress; known batches and idle reports add nothing."""
        report = self
        for batch in progress:
            # An idle query reports from time to time, under the number of its next batch.
            if batch["batchId"] <= report.last_batch or "addBatch" not in batch["durationMs"]:
                continue
            observed = batch["observedMetrics"]
            counted = report.with_counts(
                *(
                    row if row is None else row.asDict()
                    for row in map(observed.get, (READ, WRITTEN))
                )
            )
            late = sum(state["numRowsDroppedByWatermark"] for state in batch["stateOperators"])
            report = replace(
                counted,
                late=report.late + late,
                watermark=_watermark(batch) or report.watermark,
                last_batch=batch["batchId"],
            )
        return report


def _watermark(batch: Mapping[str, Any]) -> str | None:
    watermark: str | None = batch["eventTime"].get("watermark")
    # Spark reports this time before the first event.
    return None if watermark == "1970-01-01T00:00:00.000Z" else watermark


def event_report_text(report: EventReport) -> str:
    """Return a sentence, and one more for each count that needs attention."""
    lines = [
        f"{counted(report.records, 'record')} in {counted(report.batches, 'batch')}: {report.written:,} written"
    ]
    if report.unreadable:
        lines.append(f"{counted(report.unreadable, 'record')} could not be read")
    if report.late:
        lines.append(f"{report.late:,} came too late")
    if report.delay_max_ms is not None:
        lines.append(
            f"from the latest event to the row: {report.delay_mean_ms:,} ms, {report.delay_max_ms:,} ms at most"
        )
    if report.watermark is not None:
        lines.append(f"windows that end after {report.watermark} are open")
    return "\n".join(lines)


def event_report_json(report: EventReport) -> Json:
    """Return the result as JSON, for programs."""
    return {
        "batches": report.batches,
        "records": report.records,
        "unreadable": report.unreadable,
        "late": report.late,
        "written": report.written,
        "watermark": report.watermark,
        "delay_mean_ms": report.delay_mean_ms,
        "delay_max_ms": report.delay_max_ms,
    }
