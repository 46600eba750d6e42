"""A cluster for tests of the producer: a real log's rules for sequences, in memory, with planned failures.

Batches are validated like in a node, and the node's own code checks sequences. A batch is either appended or not,
whatever response the client gets.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from milena.cluster.metadata import Listener
from milena.cluster.transport import AppendAnswer
from milena.cluster.view import ClusterView, NodeView, PartitionView, TopicView
from milena.errors import (
    ConditionFailedError,
    NotNowError,
    SequenceRefusedError,
    TargetNotFoundError,
    TooLargeError,
    UnknownResultError,
)
from milena.model.batch.client_checks import validate_client_batch
from milena.model.batch.decode import Record, records_in
from milena.model.batch.encode import stamp_batch
from milena.model.errors import InvalidProducerError, RequestTooLargeError
from milena.records import ProducerIdentity
from storage.state.producer_state import Duplicate, ProducerStates

NOW_MS = 1_800_000_000_000


class ScriptedClock:
    """A clock that only sleeping moves; a sleep takes no real time."""

    def __init__(self) -> None:
        self.monotonic_ms = 1000.0
        self.slept: list[float] = []

    def now_ms(self) -> float:
        return self.monotonic_ms

    def wall_ms(self) -> int:
        return NOW_MS

    async def sleep(self, ms: float) -> None:
        self.slept.append(ms)
        self.monotonic_ms += max(ms, 0)
        await asyncio.sleep(0)


def not_now() -> NotNowError:
    return NotNowError("no leader", status=503, error_code=50302)


def unknown() -> UnknownResultError:
    return UnknownResultError("no answer", status=504, error_code=None)


@dataclass
class ScriptedLog:
    """One partition. ``script`` has the outcomes of the next attempts; later attempts succeed.

    Outcomes: ``ok``; ``lost answer``: the batch is appended, and the response is lost; ``lost request``: neither;
    ``hang``: the batch is appended, and the response never comes. An exception is raised before the batch is appended.
    """

    script: list[str | Exception] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    producers: ProducerStates = field(default_factory=ProducerStates)
    attempts: list[bytes] = field(default_factory=list)
    in_flight: int = 0
    bytes_max: int = 8 << 20

    def append(self, batch: bytes, if_match: int | None = None) -> AppendAnswer:
        try:
            header = validate_client_batch(batch, bytes_max=self.bytes_max, now_ms=NOW_MS)
            verdict = self.producers.check(header, NOW_MS)
        except RequestTooLargeError as error:
            raise TooLargeError(error.message, status=413, error_code=413) from error
        except InvalidProducerError as error:
            raise SequenceRefusedError(error.message, status=422, error_code=42210) from error
        if isinstance(verdict, Duplicate):
            return AppendAnswer(
                base_offset=verdict.base_offset, last_offset=verdict.last_offset, is_duplicate=True
            )
        base = len(self.records)
        if if_match not in (None, base):
            refusal = ConditionFailedError(f"ends at {base}", status=412, error_code=412)
            refusal.end_offset = base
            raise refusal
        stamped = stamp_batch(batch, base_offset=base, leader_epoch=0, append_time_ms=NOW_MS)
        self.records += records_in(stamped + batch[len(stamped) :])
        self.producers.record(header, base, NOW_MS)
        return AppendAnswer(base_offset=base, last_offset=len(self.records) - 1, is_duplicate=False)

    @property
    def values(self) -> list[bytes | None]:
        return [record[3] for record in self.records]


class ScriptedCluster:
    """The transport and the metadata of a cluster with one topic ``t``."""

    def __init__(self, partitions: int = 1, **configs: str) -> None:
        self.logs: defaultdict[int, ScriptedLog] = defaultdict(ScriptedLog)
        self.identities = 0
        self.identity_failures: list[str | Exception] = []
        self.refreshes = 0
        self.stale_marks = 0
        self.leader_epochs: defaultdict[int, int] = defaultdict(int)
        self.makes_topics = False
        self.configs = configs
        self.listeners: list[Listener] = []
        self.set_partitions(partitions)

    def set_partitions(self, count: int) -> None:
        self.partition_count = count
        for listener in self.listeners:
            listener(self.snapshot())

    def snapshot(self) -> ClusterView:
        partitions = tuple(
            PartitionView(
                partition=p,
                leader=1,
                leader_epoch=self.leader_epochs[p],
                replicas=(1, 2, 3),
                isr=(1, 2, 3),
            )
            for p in range(self.partition_count)
        )
        topics = (TopicView(name="t", partitions=partitions, configs=self.configs),)
        return ClusterView(
            cluster_id="c",
            version=1,
            controller_id=1,
            nodes=tuple(
                NodeView(node_id=n, url=f"http://n{n}", rack=None, is_live=True, is_draining=False)
                for n in (1, 2, 3)
            ),
            topics=topics if self.partition_count else (),
        )

    # -- metadata ------------------------------------------------------------------------------------

    async def view(self) -> ClusterView:
        return self.snapshot()

    async def topic(self, name: str) -> TopicView:
        found = [topic for topic in self.snapshot().topics if topic.name == name]
        if not found:
            raise TargetNotFoundError(f"no topic {name}", status=404, error_code=40403)
        return found[0]

    def listen(self, listener: Listener) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def leader_epoch(self, topic: str, partition: int) -> int:
        return self.leader_epochs[partition]

    def mark_stale(self, topic: str | None = None) -> None:
        self.stale_marks += 1

    async def refresh(self) -> None:
        self.refreshes += 1

    # -- transport -----------------------------------------------------------------------------------

    async def append(
        self,
        topic: str,
        partition: int,
        batch: bytes,
        *,
        acks: int,
        timeout_ms: int,
        if_match: int | None,
    ) -> AppendAnswer:
        log = self.logs[partition]
        log.in_flight += 1
        assert log.in_flight == 1, "two requests for one partition may overtake each other"
        log.attempts.append(batch)
        try:
            await asyncio.sleep(0)
            return await self._answer(log, batch, acks, if_match)
        finally:
            log.in_flight -= 1

    async def _answer(
        self, log: ScriptedLog, batch: bytes, acks: int, if_match: int | None
    ) -> AppendAnswer:
        step = log.script.pop(0) if log.script else "ok"
        if isinstance(step, Exception):
            raise step
        if step == "lost request":
            raise unknown()
        answer = log.append(batch, if_match)
        if step == "lost answer":
            raise unknown()
        if step == "hang":
            await asyncio.Event().wait()
        if acks == 0:
            return AppendAnswer(base_offset=None, last_offset=None, is_duplicate=False)
        return answer

    async def allocate_producer(self, name: str | None = None) -> ProducerIdentity:
        if self.identity_failures:
            step = self.identity_failures.pop(0)
            if isinstance(step, Exception):
                raise step
            assert step == "hang", step
            await asyncio.Event().wait()
        self.identities += 1
        return ProducerIdentity(self.identities, 0)

    async def can_make_topic(self, topic: str) -> bool:
        if self.makes_topics:
            self.set_partitions(1)
        return self.makes_topics
