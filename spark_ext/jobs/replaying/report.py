"""The report of a replay: how much of each partition it wrote, and how much was written before."""

from dataclasses import dataclass

from milena.cluster.view import TopicView
from milena.commands.output import table
from milena.fields import Json
from spark_ext.jobs.running.amounts import counted, json_fields

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReplay:
    """The counts of a source partition. ``size_bytes`` counts keys and values, ``skipped`` files of earlier runs."""

    partition: int
    next_offset: int
    records: int = 0
    size_bytes: int = 0
    files: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """The summary of a run; ``notes`` are sentences about changes that the topic makes to records."""

    name: str
    topic: str
    partitions: tuple[PartitionReplay, ...]
    notes: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        """Return the number of records written by this run."""
        return sum(p.records for p in self.partitions)

    @property
    def size_bytes(self) -> int:
        """Return the bytes of their keys and values."""
        return sum(p.size_bytes for p in self.partitions)

    @property
    def files(self) -> int:
        """Return the number of files that were read."""
        return sum(p.files for p in self.partitions)

    @property
    def skipped(self) -> int:
        """Return the number of files that earlier runs wrote."""
        return sum(p.skipped for p in self.partitions)


def notes_on(topic: TopicView, first_ms: int | None, now_ms: int) -> tuple[str, ...]:
    """Return notes on the times of records in this topic; ``first_ms`` is the earliest written time."""
    name, configs = topic.name, topic.configs
    if configs.get("message.timestamp.type") == "LogAppendTime":
        note = (
            f"topic {name} gives records the time at which they are written (message.timestamp.type=LogAppendTime): "
            "their own are not kept"
        )
        return (note,)
    retention_ms = int(configs.get("retention.ms", "-1"))
    is_deleting = "delete" in configs.get("cleanup.policy", "delete")
    if first_ms is None or not is_deleting or not 0 <= retention_ms < now_ms - first_ms:
        return ()
    note = (
        f"topic {name} keeps records for {retention_ms / DAY_MS:g} days (retention.ms), and some are older: they will "
        f"be deleted. milena topics alter {name} --config retention.ms=-1 keeps them"
    )
    return (note,)


def report_text(report: ReplayReport) -> str:
    """Return a line per partition, and a sentence."""
    rows = [
        (p.partition, p.next_offset, p.records, p.size_bytes, p.files, p.skipped)
        for p in report.partitions
    ]
    lines = [table(("PARTITION", "NEXT", "RECORDS", "BYTES", "FILES", "SKIPPED"), rows)]
    lines += report.notes
    verb = "was" if report.skipped == 1 else "were"
    end = f"; {counted(report.skipped, 'file')} {verb} written before" if report.skipped else ""
    lines.append(
        f"replayed {counted(report.records, 'record')} of {counted(report.files, 'file')} "
        f"to topic {report.topic}{end}"
    )
    return "\n".join(lines)


def report_json(report: ReplayReport) -> Json:
    """Return the result as JSON, for programs."""
    return {
        "name": report.name,
        "topic": report.topic,
        "records": report.records,
        "bytes": report.size_bytes,
        "files": report.files,
        "skipped": report.skipped,
        "notes": list(report.notes),
        "partitions": [json_fields(p) for p in report.partitions],
    }
