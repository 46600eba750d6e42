"""A load test without a cluster: writers, partitions in memory, and a ledger."""

import json
from base64 import b64decode
from collections.abc import Iterator, Sequence
from random import Random

from loadtest.judging.checker import Checker
from loadtest.judging.ledger import Event, Opened, Polled, Sent, Settled
from loadtest.judging.verdict import Verdict
from loadtest.records.pages import Page, StoredRecord
from loadtest.records.receipts import Fate
from loadtest.records.workload import Dialect, RecordMaker, WriteRequest

JSON_ENDPOINT = "produce one json"


def stored(dialect: Dialect, request: WriteRequest) -> Iterator[tuple[bytes | None, bytes]]:
    """Yield the keys and values that a node would store."""
    for record in json.loads(request.body)["records"]:
        key, value = record.get("key"), record["value"]
        if dialect is Dialect.JSON:
            text = json.dumps(value, separators=(",", ":"))
            yield None if key is None else json.dumps(key).encode(), text.encode()
        else:
            yield None if key is None else b64decode(key), b64decode(value)


class LoadRun:
    """Writers whose records go where the test says. Times are in s, and the test sets them."""

    def __init__(
        self, *, partitions: int = 2, acks: str = "all", starts: dict[int, int] | None = None
    ) -> None:
        self.starts = starts or dict.fromkeys(range(partitions), 0)
        self.logs: dict[int, list[StoredRecord]] = {p: [] for p in self.starts}
        self.events: list[Event] = [Opened(at_s=0.0, topic="t", acks=acks, starts=self.starts)]
        self.now_s = 0.0
        self._makers: dict[int, RecordMaker] = {}

    def _maker(self, writer: int) -> RecordMaker:
        if writer not in self._makers:
            dialect = Dialect.BINARY if writer % 2 else Dialect.JSON
            self._makers[writer] = RecordMaker(
                writer, dialect, record_bytes=60, key_count=3, rng=Random(writer)
            )
        return self._makers[writer]

    def write(
        self,
        writer: int,
        partition: int = 0,
        *,
        count: int = 1,
        fate: Fate = Fate.ACKNOWLEDGED,
        is_stored: bool | None = None,
        seconds: float = 0.01,
        endpoint: str = JSON_ENDPOINT,
    ) -> int:
        """Write one request; return the offset of its first record. By default, acknowledged records are stored."""
        dialect = Dialect.BINARY if writer % 2 else Dialect.JSON
        request = self._maker(writer).request(count)
        sent_s = self.now_s
        self.events.append(
            Sent(
                at_s=sent_s,
                writer=writer,
                first=request.first_sequence,
                endpoint=endpoint,
                fingerprints=request.fingerprints,
            )
        )
        self.now_s += seconds
        log = self.logs[partition]
        base = self.starts[partition] + len(log)
        if fate is Fate.ACKNOWLEDGED if is_stored is None else is_stored:
            for at, (key, value) in enumerate(stored(dialect, request)):
                log.append(StoredRecord(base + at, key, value))
        is_told = fate is Fate.ACKNOWLEDGED
        self.events.append(
            Settled(
                at_s=self.now_s,
                sent_s=sent_s,
                writer=writer,
                first=request.first_sequence,
                count=count,
                endpoint=endpoint,
                fate=fate,
                value_bytes=request.value_bytes,
                partitions=(partition,) * count if is_told else (),
                offsets=tuple(range(base, base + count)) if is_told else (),
            )
        )
        return base

    def poll(
        self,
        reader: int,
        partition: int,
        records: Sequence[StoredRecord],
        *,
        asked: int = 0,
        is_seek: bool = False,
    ) -> None:
        """Note a page that a reader got."""
        page = Page(records=tuple(records))
        self.events.append(
            Polled(
                at_s=self.now_s + 0.01,
                sent_s=self.now_s,
                reader=reader,
                endpoint="fetch pages",
                partition=partition,
                asked=asked,
                is_seek=is_seek,
                value_bytes=page.value_bytes,
                offsets=page.offsets,
                fingerprints=page.fingerprints,
            )
        )

    def judged(self, logs: dict[int, list[StoredRecord]] | None = None) -> Verdict:
        """Return the checker's result for these logs, by default those that were written."""
        checker = Checker()
        for event in self.events:
            checker.note_write(event)
        for partition, records in (self.logs if logs is None else logs).items():
            for record in records:
                checker.read(partition, *record)
            checker.end_partition(partition)
        for event in self.events:
            checker.note_poll(event)
        return checker.verdict()
