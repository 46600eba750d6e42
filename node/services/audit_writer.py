"""Writes each audited change from the image into the audit topic, once. The controller's node does this.

An entry stays in the image until ``ForgetAudited`` says that the topic's log has it. So no crash loses an entry. The
last record of the log has the number of the last entry. A writer that has just started, or got no response, reads it.
Then it writes the entries with higher numbers, but only if they get exactly the next offset (``expected_end``).

If two nodes both believe that they are the controller, the write of one of them is refused. It reads the last record
again and finds what the other has written. If the response to a write was lost, the writer finds out in the same way
whether its entries are in the log.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass

from milena.model.batch.decode import records_in
from milena.model.errors import MilenaError, NotReadyError
from milena.model.requests import (
    Acks,
    FetchRequest,
    FetchResult,
    PartitionOffsets,
    ProduceReceipt,
    ProduceRequest,
    Records,
)
from node.config.budgets import BACKGROUND_RETRY_MS, LONG_PROPOSE_MS
from node.context import NodeContext
from node.metadata.audit_records import as_json, number_in
from node.process.keep_going import keep_going
from raft_meta.machine.access import audit
from raft_meta.machine.commands import ForgetAudited
from raft_meta.machine.image import AuditEntry, Image, Topic

logger = logging.getLogger(__name__)

WRITE_TIMEOUT_MS = 10_000
RECORDS_MAX = 1_000
BYTES_MAX = 512 << 10
"""Limits of one write, in entries and bytes. The first entry is written even if it is larger than this alone."""
FETCH_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of the audit topic's log, and the number of the last entry in it."""

    topic_id: str
    offset: int
    number: int


@dataclass(eq=False)
class AuditWriter:
    """Runs one task while entries wait and this node is the controller. Owned by the data loop."""

    node: NodeContext
    _: KW_ONLY
    offsets: Callable[[str, int], Awaitable[PartitionOffsets]]
    fetch: Callable[[FetchRequest], Awaitable[FetchResult]]
    write: Callable[[Topic, ProduceRequest], Awaitable[Sequence[ProduceReceipt]]]

    def __post_init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def on_image(self, image: Image) -> None:
        """Start the task if entries wait."""
        if self._task is None and not self._is_closed and self._has_work(image):
            work = keep_going(
                "audit", self._run, clock=self.node.clock, contained=self.node.counts.contained
            )
            self._task = asyncio.get_running_loop().create_task(work)
            self._task.add_done_callback(self._on_done)

    def _has_work(self, image: Image) -> bool:
        return bool(image.audited) and image.controller_id == self.node.metadata.node_id

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if not task.cancelled():
            # New entries may have arrived after the task's last check.
            self.on_image(self.node.metadata.image)

    async def close(self) -> None:
        """Stop writing."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        end: LogEnd | None = None
        while self._has_work(image := self.node.metadata.image):
            try:
                end = await self._step(image, end)
            except MilenaError as error:
                logger.info("the audit topic waits count=%d: %s", len(image.audited), error)
                end = None
                await self.node.clock.sleep(BACKGROUND_RETRY_MS)

    async def _step(self, image: Image, end: LogEnd | None) -> LogEnd:
        """Write the next entries, if there are any. Then let the quorum remove what is written.

        Raises:
            MilenaError: the end of the log is unknown now.
        """
        topic = image.topic(audit.TOPIC)
        assert topic is not None, "changes wait for an audit topic, and there is none"
        if end is None or end.topic_id != topic.topic_id:
            end = await self._find_end(topic)
        entries = next_entries(image, after=end.number)
        if entries:
            end = await self._append(topic, end, entries)
        await self.node.metadata.propose(
            ForgetAudited(through=end.number), timeout_ms=LONG_PROPOSE_MS
        )
        return end

    async def _find_end(self, topic: Topic) -> LogEnd:
        found = await self.offsets(topic.name, 0)
        if found.high_watermark == found.log_start_offset:
            return LogEnd(topic.topic_id, found.high_watermark, 0)
        last = found.high_watermark - 1
        result = await self.fetch(
            FetchRequest(
                topic=topic.name,
                partition=0,
                offset=last,
                timestamp_ms=None,
                max_bytes=FETCH_BYTES_MAX,
                timeout_ms=0,
                is_local=False,
            )
        )
        values = [value for _, _, _, value, _ in records_in(result.batches, last, last + 1)]
        if not values:
            # A new leader may not know yet how far its log is committed.
            raise NotReadyError(f"the last record of {topic.name} cannot be read yet")
        return LogEnd(topic.topic_id, last + 1, number_in(values[-1]))

    async def _append(self, topic: Topic, end: LogEnd, entries: Sequence[AuditEntry]) -> LogEnd:
        receipts = await self.write(
            topic,
            ProduceRequest(
                topic=topic.name,
                records=Records(
                    # With keys, the topic can be compacted.
                    keys=[b"%d" % entry.number for entry in entries],
                    values=[as_json(entry) for entry in entries],
                    # No timestamps. If a clock had been wrong, the topic's limits (KIP-937) would refuse its time, and
                    # then all later entries. The value of an entry has the time of the change.
                ),
                acks=Acks.ALL,
                timeout_ms=WRITE_TIMEOUT_MS,
                partition=0,
                expected_end=end.offset,
            ),
        )
        for receipt in receipts:
            if receipt.error is not None:
                raise receipt.error
        return LogEnd(topic.topic_id, end.offset + len(entries), entries[-1].number)


def next_entries(image: Image, *, after: int) -> list[AuditEntry]:
    """Return the entries above the number ``after``, in order, as many as one write takes."""
    taken: list[AuditEntry] = []
    size = 0
    for number in range(max(after + 1, audit.first_number(image)), image.audit_count + 1):
        entry = image.audited[number]
        size += audit.size_of(entry)
        if taken and (size > BYTES_MAX or len(taken) == RECORDS_MAX):
            break
        taken.append(entry)
    return taken
