"""Write a source exactly once and in order with the Python client, even if nodes fail meanwhile."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from loadtest.records.source import Record, Source
from milena.producing.deliveries import Deliveries
from milena.producing.producer import Producer

RECORDS_PER_CALL = 1000
"""The records of one call: enough to spread the cost of the call, and few enough that the progress bar moves."""


@dataclass(slots=True)
class Progress:
    """The number of records acknowledged so far, and the longest time without an acknowledgement.

    ``on_acknowledged`` gets the number of records of each call that was acknowledged.
    """

    clock: Callable[[], float]
    on_acknowledged: Callable[[int], None]
    records: int = 0
    value_bytes: int = 0
    started_s: float = 0.0
    ended_s: float = 0.0
    longest_gap_s: float = 0.0

    def begin(self) -> None:
        """Note the time before the first record is sent."""
        self.started_s = self.ended_s = self.clock()

    def acknowledged(self, records: int, value_bytes: int) -> None:
        """Note records that every in-sync replica has."""
        now = self.clock()
        self.longest_gap_s = max(self.longest_gap_s, now - self.ended_s)
        self.records += records
        self.value_bytes += value_bytes
        self.ended_s = now
        self.on_acknowledged(records)

    @property
    def seconds(self) -> float:
        """Return the seconds from the first record to the last acknowledgement."""
        return self.ended_s - self.started_s


async def write_all(
    producer: Producer,
    topic: str,
    source: Source,
    progress: Progress,
    on_record: Callable[[Record], None],
) -> None:
    """Write the whole source; return when every record is acknowledged.

    ``on_record`` gets every record before it is sent, in the order of its key.

    Raises:
        ClientError: a record could not be written.
    """
    failed: list[Exception] = []
    progress.begin()
    for records in _calls(source.open()):
        for record in records:
            on_record(record)
        keys, values = [record.key for record in records], [record.value for record in records]
        value_bytes = sum(map(len, values))

        def settled(deliveries: Deliveries, value_bytes: int = value_bytes) -> None:
            errors = [run.error for run in deliveries.runs or () if run.error is not None]
            failed.extend(errors)
            if not errors:
                progress.acknowledged(len(deliveries), value_bytes)

        await producer.send_many(topic, values, keys=keys, on_delivery=settled)
        if failed:
            break
    await producer.flush()
    if failed:
        raise failed[0]


def _calls(records: Iterator[Record]) -> Iterator[list[Record]]:
    while part := list(islice(records, RECORDS_PER_CALL)):
        yield part
