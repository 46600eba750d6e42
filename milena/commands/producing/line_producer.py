"""Turn lines of a source into records of a topic: read, parse, send, and count the outcomes (asyncio shell)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from milena.commands.producing.line_source import LineSource
from milena.commands.producing.lines import BadLineError, LineParser, LineRecords, LineSplitter
from milena.commands.producing.pace import RecordSchedule
from milena.commands.producing.tally import BadLine, ProduceTally
from milena.commands.standard_streams import DaemonThread
from milena.errors import BadRecordError, ClientError, RecordTooLargeError
from milena.model.clock import Clock
from milena.producing.deliveries import Deliveries, DeliveriesCallback

T = TypeVar("T")


class SendPort(Protocol):
    """The part of a producer that lines need."""

    async def send_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        on_delivery: DeliveriesCallback | None = None,
    ) -> object:
        """Send these records or none, once there is room for them."""

    async def flush(self) -> None:
        """Wait until every record taken so far was acknowledged or failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineOptions:
    """The topic of the lines, and how they are parsed."""

    topic: str
    rule: LineParser
    partition: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    is_skipping_bad_lines: bool = False
    rate: float | None = None
    """The most lines per second; None: as many as the cluster takes."""
    written_before: int = 0
    """How many records at the beginning of the source are left out; ``rate`` does not slow them down."""


class LineProducer:
    """One run over one source.

    It stops at the source's end, at the first bad line (unless they are skipped), at the first record that was not
    acknowledged, and when ``stop`` is called. In each case, every line read before is sent and waited for.
    """

    def __init__(self, options: LineOptions, producer: SendPort, clock: Clock) -> None:
        self.tally = ProduceTally()
        self._clock = clock
        self._pace = None if options.rate is None else RecordSchedule(options.rate)
        self._options = options
        self._producer = producer
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Stop reading."""
        self.tally.is_interrupted = True
        self._stop.set()

    async def run(self, source: LineSource, on_progress: Callable[[int], None]) -> ProduceTally:
        """Send everything, and wait for the last acknowledgement.

        Raises:
            BadSourceError: the source failed; what it gave before was sent.
        """
        try:
            with DaemonThread("input") as thread:
                await self._send_all(source, thread, on_progress)
        finally:
            await self._producer.flush()
        return self.tally

    async def _send_all(
        self, source: LineSource, thread: DaemonThread, on_progress: Callable[[int], None]
    ) -> None:
        splitter = LineSplitter()
        while (got := await self._unless_stopped(thread.call(source.read))) is not None:
            piece, position = got
            async for lines in self._in_turn(splitter.feed(piece) if piece else splitter.end()):
                if self._stop.is_set():
                    return
                await self._send(lines)
            on_progress(position)
            if not piece:
                return

    async def _in_turn(self, lines: list[bytes | None]) -> AsyncIterator[list[bytes | None]]:
        """Yield the lines, as many at a time as are due; all at once without a rate."""
        while lines and (behind := self._options.written_before - self.tally.left_out) > 0:
            # These lines hold at most that many records. All are counted before the next ones are requested.
            yield lines[:behind]
            lines = lines[behind:]
        if self._pace is None:
            yield lines
            return
        due: list[bytes | None] = []
        for line in lines:
            now_s = self._clock.now_ms() / 1000
            wait_s = self._pace.next_due(now_s) - now_s
            if wait_s > 0:
                yield due
                due = []
                await self._unless_stopped(self._clock.sleep(wait_s * 1000))
            due.append(line)
        yield due

    async def _unless_stopped(self, work: Coroutine[None, None, T]) -> T | None:
        """Return the result of the work; None if the run is stopped first."""
        reading = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
            return None if self._stop.is_set() else reading.result()
        finally:
            reading.cancel()
            stopping.cancel()
            await asyncio.gather(reading, stopping, return_exceptions=True)

    async def _send(self, lines: list[bytes | None]) -> None:
        parsed = self._options.rule.parse_all(
            lines, first=self.tally.lines + 1, is_skipping=self._options.is_skipping_bad_lines
        )
        for records in parsed.runs:
            behind = min(len(records.values), self._options.written_before - self.tally.left_out)
            self.tally.left_out += behind
            left = records.part(slice(behind, None)) if behind else records
            if left.values and not await self._send_records(left):
                return
        self.tally.lines = parsed.last
        for number, error in parsed.bad:
            self._note_bad(number, error)

    async def _send_records(self, records: LineRecords) -> bool:
        """Send the records of these lines, and return whether all were sent.

        If one cannot be sent, send those before it.
        """
        options, placing = self._options, records.placing
        try:
            await self._producer.send_many(
                options.topic,
                records.values,
                keys=records.keys,
                partition=placing.partition if options.partition is None else options.partition,
                headers=(*placing.headers, *options.headers),
                timestamp_ms=placing.timestamp_ms,
                on_delivery=partial(self._on_delivery, records.numbers),
            )
        except (BadRecordError, RecordTooLargeError) as error:
            if len(records.values) > 1:
                half = len(records.values) // 2
                parts = records.part(slice(half)), records.part(slice(half, None))
                return await self._send_records(parts[0]) and await self._send_records(parts[1])
            self._on_failure(records.numbers[0], error)
            return False
        except ClientError as error:
            self._on_failure(records.numbers[0], error)
            return False
        self.tally.sent_bytes += sum(map(len, filter(None, records.values)))
        self.tally.sent_bytes += sum(map(len, filter(None, records.keys or ())))
        return True

    def _note_bad(self, number: int, error: BadLineError) -> None:
        if self.tally.bad_line is None:
            self.tally.bad_line = BadLine(number, str(error))
        if self._options.is_skipping_bad_lines:
            self.tally.skipped += 1
        else:
            self._stop.set()

    def _on_delivery(self, numbers: Sequence[int], deliveries: Deliveries) -> None:
        for run in deliveries.runs or ():
            self.tally.on_run(run, numbers)
            if run.error is not None:
                self._stop.set()

    def _on_failure(self, line: int, error: ClientError) -> None:
        self.tally.lines = self.tally.unsent_line = line
        self.tally.on_failure(line, error)
        self._stop.set()
