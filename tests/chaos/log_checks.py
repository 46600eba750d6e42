"""Check that the events about each log agree: with each other, with the log's order, and with the responses.

The reference for a partition is the final reads. Acknowledgements and earlier reads must agree with them. The names of
the anomalies are Jepsen's if it has one.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.chaos.history import Event, FinalRead, Outcome, Phase, Read, View, Write

Log = dict[int, str]
"""The records of a log, by offset."""
Finding = tuple[str, str]
"""The name of an anomaly, and a sentence."""
COMMITTED_ACKS = frozenset({"all", "-1"})


@dataclass(slots=True)
class Evidence:
    """The events, arranged for the checks. ``truth``, ``places`` and ``replicas`` come only from final reads."""

    writes: dict[str, Write]
    reads: list[Read]
    finals: list[FinalRead]
    partitions: list[int]
    replicas: dict[tuple[int, int], Log] = field(default_factory=dict)
    """The logs of single nodes by (partition, node), if they were read to the end."""
    truth: dict[int, Log] = field(default_factory=dict)
    places: dict[tuple[int, str], int] = field(default_factory=dict)
    """The first offset of each record, by (partition, record)."""

    @property
    def acknowledged(self) -> list[Write]:
        """Return the writes that were acknowledged."""
        return [w for w in self.writes.values() if w.outcome is Outcome.OK]

    @property
    def unread(self) -> set[int]:
        """Return the partitions that were read to the end from no node; nothing is known about them."""
        return {p for p in self.partitions if p not in self.truth}


def arrange(events: Iterable[Event], view: View = View.PLAIN) -> Evidence:
    """Return the evidence from the events of one view."""
    every = [e for e in events if isinstance(e, Write | Read | FinalRead) and e.view is view]
    writes = {e.record: e for e in every if isinstance(e, Write)}
    evidence = Evidence(
        writes=writes,
        reads=[e for e in every if isinstance(e, Read)],
        finals=[e for e in every if isinstance(e, FinalRead)],
        partitions=sorted({w.partition for w in writes.values()}),
    )
    logs: defaultdict[tuple[int, int], Log] = defaultdict(dict)
    for read in evidence.reads:
        if read.phase is Phase.FINAL:
            logs[read.partition, read.node].update(read.records)
    for final in evidence.finals:
        if final.is_complete:
            log = logs[final.partition, final.node]
            evidence.replicas[final.partition, final.node] = log
            # Keep the first node's record; ``check_replicas`` reports it if another node differs.
            evidence.truth[final.partition] = {**log, **evidence.truth.get(final.partition, {})}
    for partition, log in evidence.truth.items():
        for offset in sorted(log):
            evidence.places.setdefault((partition, log[offset]), offset)
    return evidence


def check_replicas(evidence: Evidence) -> Iterator[Finding]:
    """Check that all nodes have the same log, up to the end of the shortest one."""
    name = "replica-divergence"
    for (partition, node), log in sorted(evidence.replicas.items()):
        truth = evidence.truth[partition]
        for offset, record in log.items():
            if truth[offset] != record:
                yield name, f"p{partition}@{offset}: {truth[offset]} / {record} on node {node}"
        upto = min(
            f.end_offset for f in evidence.finals if f.partition == partition and f.is_complete
        )
        for offset in truth:
            if offset < upto and offset not in log:
                yield name, f"p{partition}@{offset}: {truth[offset]} missing on node {node}"


def check_duplicates(evidence: Evidence) -> Iterator[Finding]:
    """Check that each record has one offset. An idempotent producer's record may never have two."""
    for partition, log in evidence.truth.items():
        for offset in sorted(log):
            first = evidence.places[partition, log[offset]]
            if first != offset:
                write = evidence.writes.get(log[offset])
                name = "doubled-record" if write is not None and write.is_once else "duplicate"
                yield name, f"p{partition} {log[offset]} at {first} and {offset}"


def check_pages(evidence: Evidence) -> Iterator[Finding]:
    """Check each page: offsets ascend, no record is omitted, and every record was written to this partition."""
    for read in evidence.reads:
        where = f"{read.reader} p{read.partition}"
        last = read.from_offset - 1
        for offset, record in read.records:
            if offset <= last:
                yield "nonmonotonic-poll", f"{where}: {offset} after {last} at {read.at_s} s"
            last = max(last, offset)
            yield from _check_record(evidence, read, offset, record)
        if read.phase is Phase.RUN:
            got = {offset for offset, _ in read.records}
            truth = evidence.truth.get(read.partition, {})
            for offset in range(read.from_offset, last):
                if offset not in got and offset in truth:
                    yield (
                        "poll-skip",
                        f"{where} skipped {offset} ({truth[offset]}) at {read.at_s} s",
                    )


def _check_record(evidence: Evidence, read: Read, offset: int, record: str) -> Iterator[Finding]:
    write = evidence.writes.get(record)
    if write is None:
        place = f"p{read.partition}@{offset}"
        yield "damaged-record", f"{place}: {record} (node {read.node}, {read.at_s} s)"
    elif write.partition != read.partition:
        text = f"{record} written to p{write.partition}, read from p{read.partition}"
        yield "wrong-partition", text


def check_offsets(evidence: Evidence) -> Iterator[Finding]:
    """Check that all pages and acknowledgements agree about the record at each offset."""
    seen: defaultdict[tuple[int, int], dict[str, str]] = defaultdict(dict)
    for read in evidence.reads:
        where = f"{read.reader} on node {read.node} at {read.at_s} s"
        for offset, record in read.records:
            seen[read.partition, offset].setdefault(record, where)
    for write in evidence.acknowledged:
        if write.acks in COMMITTED_ACKS and write.offset is not None:
            where = f"acknowledged by node {write.node} at {write.at_s} s"
            seen[write.partition, write.offset].setdefault(write.record, where)
            stands = evidence.places.get((write.partition, write.record))
            if stands is not None and write.offset not in evidence.truth[write.partition]:
                place = f"p{write.partition}@{write.offset}"
                yield "inconsistent-offset", f"{place}: {write.record} ({where}) stands at {stands}"
    for (partition, offset), records in seen.items():
        if len(records) > 1:
            told = " / ".join(f"{record} ({where})" for record, where in records.items())
            yield "inconsistent-offset", f"p{partition}@{offset}: {told}"


def check_losses(evidence: Evidence) -> Iterator[Finding]:
    """Check that acknowledged and read records are in the final log, and that failed writes are not."""
    unread = evidence.unread
    for write in evidence.acknowledged:
        if write.partition not in unread and (write.partition, write.record) not in evidence.places:
            name = "lost-write" if write.acks in COMMITTED_ACKS else "lost-acks01"
            place = f"p{write.partition}@{write.offset}"
            yield (
                name,
                f"{write.record} {place} acknowledged by node {write.node} at {write.at_s} s",
            )
    seen: set[str] = set()
    for read in evidence.reads:
        for offset, record in read.records:
            is_gone = (read.partition, record) not in evidence.places
            is_judged = record in evidence.writes and read.partition not in unread
            if is_gone and is_judged and record not in seen:
                place = f"p{read.partition}@{offset}"
                text = (
                    f"{record} {place} read by {read.reader} on node {read.node} at {read.at_s} s"
                )
                yield "read-then-lost", text
            seen.add(record)
    for write in evidence.writes.values():
        is_visible = write.record in seen or (write.partition, write.record) in evidence.places
        if write.outcome is Outcome.FAILED and is_visible:
            yield "aborted-visible", f"{write.record} p{write.partition} ({write.error})"


def check_key_order(evidence: Evidence) -> Iterator[Finding]:
    """Check that a key's sequences ascend with the offsets: a key has one writer, which waits for each response."""
    for partition, log in evidence.truth.items():
        top_acknowledged: dict[str, int] = {}
        top: dict[str, int] = {}
        for offset in sorted(log):
            record = log[offset]
            write = evidence.writes.get(record)
            if write is None or evidence.places[partition, record] != offset:
                continue
            key, _, digits = record.rpartition(":")
            sequence, is_sure = int(digits), write.outcome is Outcome.OK
            if is_sure and sequence < top_acknowledged.get(key, -1):
                yield (
                    "reordered",
                    f"p{partition}@{offset}: {record} after {key}:{top_acknowledged[key]}",
                )
            elif sequence < top.get(key, -1):
                yield "late-write", f"p{partition}@{offset}: {record} after {key}:{top[key]}"
            if is_sure:
                top_acknowledged[key] = max(sequence, top_acknowledged.get(key, -1))
            top[key] = max(sequence, top.get(key, -1))


def check_real_time_order(evidence: Evidence) -> Iterator[Finding]:
    """Check that a write that was acknowledged before another was sent has the lower offset."""
    for partition in evidence.truth:
        writes = [
            (w, evidence.places[partition, w.record])
            for w in evidence.acknowledged
            if w.partition == partition
            and w.acks != "0"
            and (partition, w.record) in evidence.places
        ]
        by_answer = sorted(writes, key=lambda pair: pair[0].at_s)
        answered = 0
        highest: tuple[int, str] = (-1, "")
        for write, offset in sorted(writes, key=lambda pair: pair[0].sent_s):
            while answered < len(by_answer) and by_answer[answered][0].at_s < write.sent_s:
                earlier, earlier_offset = by_answer[answered]
                highest = max(highest, (earlier_offset, earlier.record))
                answered += 1
            if offset < highest[0]:
                before = f"{highest[1]}@{highest[0]} was acknowledged"
                yield "reordered", f"p{partition}: {write.record}@{offset} was sent after {before}"


def check_density(evidence: Evidence) -> Iterator[Finding]:
    """Check that offsets have no gaps from 0."""
    for partition, log in evidence.truth.items():
        for offset in range(max(log, default=-1)):
            if offset not in log:
                yield "offset-gap", f"p{partition}@{offset}"


def unread(evidence: Evidence) -> Iterator[str]:
    """Yield a sentence for each log that was not read to its end."""
    broken = [f"p{f.partition} on node {f.node}" for f in evidence.finals if not f.is_complete]
    broken += [f"p{p} on any node" for p in sorted(evidence.unread)]
    if broken:
        yield f"not read back to the end: {', '.join(broken[:6])}"
