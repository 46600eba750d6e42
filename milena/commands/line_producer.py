"""Lines of a source to records of a topic: reads, parses, sends, and counts what became of each (asyncio shell)."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from milena.commands.lines import LINE_BYTES_MAX, BadLineError, LineRule, LineSplitter
from milena.commands.pace import RecordSchedule
from milena.commands.produce_tally import BadLine, ProduceTally
from milena.commands.standard_streams import DaemonThread
from milena.errors import ClientError
from milena.model.clock import Clock
from milena.records import Receipt

T = TypeVar("T")


class SourcePort(Protocol):
    """Where bytes come from."""

    def read(self) -> tuple[bytes, int]:
        """Some bytes, and how far into the source they end; no bytes at its end. May block."""


class SendPort(Protocol):
    """A producer, as far as lines need it."""

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        on_delivery: Callable[[Receipt | None, ClientError | None], None] | None = None,
    ) -> object:
        """Take a record, once there is room for it."""

    async def flush(self) -> None:
        """Wait until every record taken so far was acknowledged or failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineOptions:
    """Where lines go and how they are understood."""

    topic: str
    rule: LineRule
    partition: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    is_skipping_bad_lines: bool = False
    rate: float | None = None
    """Most lines a second; None: as many as the cluster takes."""


class LineProducer:
    """One run over one source.

    It stops at the source's end, at the first bad line (unless they are skipped), at the first record that was not
    acknowledged, and when ``stop`` is called. Whatever the reason, every line read before that was sent, and is
    waited for.
    """

    def __init__(self, options: LineOptions, producer: SendPort, clock: Clock) -> None:
        self.tally = ProduceTally()
        self._clock = clock
        self._pace = None if options.rate is None else RecordSchedule(options.rate)
        self._options = options
        self._producer = producer
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Read no further."""
        self.tally.is_interrupted = True
        self._stop.set()

    async def run(self, source: SourcePort, on_progress: Callable[[int], None]) -> ProduceTally:
        """Everything, to the last acknowledgement.

        Raises:
            BadSourceError: the source broke; what it gave before was sent.
        """
        try:
            with DaemonThread("input") as thread:
                await self._send_all(source, thread, on_progress)
        finally:
            await self._producer.flush()
        return self.tally

    async def _send_all(
        self, source: SourcePort, thread: DaemonThread, on_progress: Callable[[int], None]
    ) -> None:
        splitter = LineSplitter()
        while (got := await self._unless_stopped(thread.call(source.read))) is not None:
            piece, position = got
            for line in splitter.feed(piece) if piece else splitter.end():
                if self._pace is not None:
                    await self._wait_for_turn(self._pace)
                if self._stop.is_set():
                    return
                await self._send(line)
            on_progress(position)
            if not piece:
                return

    async def _wait_for_turn(self, pace: RecordSchedule) -> None:
        now_s = self._clock.now_ms() / 1000
        wait_s = pace.next_due(now_s) - now_s
        if wait_s > 0:
            await self._unless_stopped(self._clock.sleep(wait_s * 1000))

    async def _unless_stopped(self, work: Coroutine[None, None, T]) -> T | None:
        """Result of the work; None when it is time to stop first."""
        reading = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
            return None if self._stop.is_set() else reading.result()
        finally:
            reading.cancel()
            stopping.cancel()
            await asyncio.gather(reading, stopping, return_exceptions=True)

    async def _send(self, line: bytes | None) -> None:
        self.tally.lines += 1
        number = self.tally.lines
        try:
            if line is None:
                raise BadLineError(
                    f"longer than {LINE_BYTES_MAX} bytes, which no node takes; split it, or say "
                    "--on-bad-line skip"
                )
            key, value = self._options.rule.parse(line)
        except BadLineError as error:
            self._note_bad(number, error)
            return
        try:
            await self._producer.send(
                self._options.topic,
                value,
                key=key,
                partition=self._options.partition,
                headers=self._options.headers,
                on_delivery=partial(self._on_delivery, number),
            )
        except ClientError as error:
            self._on_delivery(number, None, error)
            return
        self.tally.sent += 1
        self.tally.sent_bytes += len(value or b"") + len(key or b"")

    def _note_bad(self, number: int, error: BadLineError) -> None:
        if self.tally.bad_line is None:
            self.tally.bad_line = BadLine(number, str(error))
        if self._options.is_skipping_bad_lines:
            self.tally.skipped += 1
        else:
            self._stop.set()

    def _on_delivery(self, number: int, receipt: Receipt | None, error: ClientError | None) -> None:
        self.tally.on_delivery(number, receipt, error)
        if error is not None:
            self._stop.set()
