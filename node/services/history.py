"""The last hour of metrics: this node takes a sample every ten seconds, and a request gathers those of all nodes.

A sample of a hundred thousand replicas takes tens of milliseconds. It is taken in steps, with other work in between.
"""

import asyncio
import logging
import math
import struct
from array import array
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

import msgspec

from http_api.ports.node import BusyPartition, HistorySeries, HistoryView, StoredBytes, TopicHere
from http_api.serving.openapi import MILENA_VERSION
from milena.model.errors import DiskFailedError, MilenaError
from milena.model.requests import PartitionOffsets
from milena.model.turns import one_turn
from node.config.budgets import ANSWER_MS
from node.context import NodeContext
from node.metrics.exposition import GroupSample
from node.metrics.history import History, NodeLook, PartitionTraffic, ToldHistory
from node.metrics.series import POINTS, STEP_MS, Floats
from node.metrics.watermarks import Watermarks
from node.peers.messages import Blob, CallType, Message, ask, peer_handler
from node.replica.runner import PartitionRunner
from node.services.messages import (
    HISTORY,
    SIZES,
    BusyRow,
    HistoryAnswer,
    HistoryRequest,
    SizesAnswer,
    SizesRequest,
)
from raft_meta.machine.image import Image, PartitionKey, Topic

T = TypeVar("T")
Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)

logger = logging.getLogger(__name__)

STEP = 1_000
"""Number of replicas, or of committed offsets, that are sampled in one turn of the loop. This takes about a ms."""
DATES_MS_MAX = 1_000
"""Time in ms for reading append times of records from the disk, in one sample. Ages that are not read by then are
unknown until the next sample. So a busy disk does not delay the sample."""
BUSIEST_TOLD = 20
"""Number of busiest partitions that are reported: so many by bytes written, and so many by bytes read."""
NUMBER_MAX = 1 << 40
"""Largest slot or count in a valid response of another node."""


_Place = tuple[str, int, int, int]
"""Topic id, partition, leader epoch and offset."""


@dataclass(slots=True, kw_only=True)
class _Dates:
    """The append times of records that one sample needs. Times that the previous sample found are not read again."""

    before: Mapping[_Place, int]
    found: dict[_Place, int] = field(default_factory=dict)
    ms_left: float = DATES_MS_MAX


@dataclass(eq=False)
class HistoryService:
    """Implements ``http_api.ports.node.HistoryPort``."""

    node: NodeContext
    _: KW_ONLY
    topic: Callable[[str], Awaitable[Topic]]
    records_end: Callable[[PartitionRunner], Awaitable[int]]
    appended_ms: Callable[[PartitionRunner, int], Awaitable[int | None]]
    free_bytes: Callable[[], int]

    def __post_init__(self) -> None:
        self._history = History(self.node.counts)
        self._here: dict[str, TopicHere] = {}
        self._groups_here: Sequence[GroupSample] = ()
        self._watermarks = Watermarks()
        self._dates: dict[_Place, int] = {}
        self._looked_ms = self.node.clock.now_ms()
        self.on_history = peer_handler(HISTORY, self._tell)
        self.on_sizes = peer_handler(SIZES, self._tell_sizes)

    # -- sampling --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take a sample at the beginning of each slot (ten seconds of the wall clock), until cancelled."""
        while True:
            slot = self.node.clock.wall_ms() // STEP_MS
            # A timer may fire a moment early, while the slot is the one that has its sample already. So check the slot
            # again before the next sample.
            while self.node.clock.wall_ms() // STEP_MS == slot:
                await self.node.clock.sleep(STEP_MS - self.node.clock.wall_ms() % STEP_MS)
            await self._look()

    async def _look(self) -> None:
        slot, look = self.node.clock.wall_ms() // STEP_MS, NodeLook()
        now_ms = self.node.clock.now_ms()
        for at, runner in enumerate(list(self.node.replicas), 1):
            look.add_replica(
                (runner.topic_id, runner.partition), runner.counts, runner.log.size_bytes
            )
            if at % STEP == 0:
                await one_turn()
        await self._look_at_groups(look, self.node.metadata.image)
        try:
            look.disk_free_bytes = self.free_bytes()
        except DiskFailedError as error:
            logger.info("free disk unknown: %s", error)
        elapsed_ms = now_ms - self._looked_ms
        self._history.add(slot, look, elapsed_ms)
        if elapsed_ms > 0:
            self._here = _by_topic(look, elapsed_ms)
        self._looked_ms = now_ms

    async def _look_at_groups(self, look: NodeLook, image: Image) -> None:
        seen, samples = 0, []
        noted: set[PartitionKey] = set()
        dates = _Dates(before=self._dates)
        for group, offsets in image.offsets.items():
            for key, committed in offsets.items():
                runner = self.node.replicas.find(*key)
                if runner is not None and runner.leader is not None:
                    if key not in noted:
                        noted.add(key)
                        self._watermarks.note(
                            key,
                            runner.leader_epoch,
                            runner.high_watermark,
                            self.node.clock.now_ms(),
                        )
                    lag = await self._lag(runner, committed.offset)
                    look.add_lag(group, lag)
                    sample = GroupSample(
                        group=group,
                        topic=runner.topic,
                        partition=runner.partition,
                        committed_offset=committed.offset,
                        lag=lag,
                        lag_ms=await self._age_ms(runner, committed.offset, dates) if lag else lag,
                    )
                    samples.append(sample)
                seen += 1
                if seen % STEP == 0:
                    await one_turn()
        self._watermarks.keep(noted)
        self._dates = dates.found
        self._groups_here = samples

    async def _age_ms(
        self, runner: PartitionRunner, position: int, dates: "_Dates"
    ) -> float | None:
        """Return for how long the first record at or above ``position`` has been committed here; None if unknown."""
        key = (runner.topic_id, runner.partition)
        offset = max(position, runner.log.log_start_offset)
        passed_ms = self._watermarks.passed_ms(key, offset)
        if passed_ms is not None:
            return max(0.0, self.node.clock.now_ms() - passed_ms)
        # The record was committed before ``_watermarks`` had its first note of the partition. Use its append time.
        place = (*key, runner.leader_epoch, offset)
        appended_ms = dates.before.get(place, dates.found.get(place))
        if appended_ms is None and dates.ms_left > 0:
            began_ms = self.node.clock.now_ms()
            appended_ms = await self.appended_ms(runner, offset)
            # A read from the page cache does not wait. Without this turn, many such reads would keep the loop busy.
            await one_turn()
            dates.ms_left -= self.node.clock.now_ms() - began_ms
        if appended_ms is None:
            return None
        dates.found[place] = appended_ms
        return max(0, self.node.clock.wall_ms() - appended_ms)

    def groups_here(self) -> Sequence[GroupSample]:
        """Return the committed offsets of groups in the partitions that this node leads. They are at most ten s old."""
        return self._groups_here

    async def _lag(self, runner: PartitionRunner, position: int) -> int | None:
        """Return the lag as ``PartitionOffsets.lag_of`` defines it; None also if the last record cannot be found."""
        end = runner.stable_end
        if position == end:
            return 0
        try:
            records_end = end if position > end else await self.records_end(runner)
        except MilenaError as error:
            logger.debug("cannot find the last record partition=%s: %s", runner.name, error)
            return None
        offsets = PartitionOffsets(
            log_start_offset=runner.log.log_start_offset,
            high_watermark=runner.high_watermark,
            last_stable_offset=end,
            records_end=records_end,
        )
        return offsets.lag_of(position)

    def topics_here(self) -> Mapping[str, TopicHere]:
        """Return this node's bytes and rates of each topic, by topic id."""
        return self._here

    def stored_bytes_here(self, topic_id: str, partition: int) -> int | None:
        """Return the size of this node's replica now, in bytes; None if this node has no replica."""
        runner = self.node.replicas.find(topic_id, partition)
        return None if runner is None else runner.log.size_bytes

    async def stored_bytes(
        self, topic_ids: Collection[str], *, by_partition: bool = False
    ) -> StoredBytes:
        """Return the sums of sizes over the replicas of all nodes that answer."""
        request = SizesRequest(topic_ids=tuple(topic_ids), by_partition=by_partition)
        answers, silent = await self._each(
            lambda id_: self._ask(id_, SIZES, request), self._tell_sizes(request)
        )
        sums: dict[str, int] = {}
        for _, answer in answers:
            for name, size in answer.sizes.items():
                sums[name] = sums.get(name, 0) + size
        return StoredBytes(sizes=sums, silent_nodes=silent)

    async def _tell_sizes(self, request: SizesRequest) -> SizesAnswer:
        here, image = self._here, self.node.metadata.image
        if not request.by_partition:
            known = ((id_, here[id_].stored_bytes) for id_ in request.topic_ids if id_ in here)
            return SizesAnswer(sizes=dict(known))
        sizes = {}
        for topic_id in request.topic_ids[:1]:
            topic = image.topics.get(topic_id)
            for number in range(0 if topic is None else topic.partition_count):
                size = self.stored_bytes_here(topic_id, number)
                if size is not None:
                    sizes[str(number)] = size
        return SizesAnswer(sizes=sizes)

    # -- answering -------------------------------------------------------------------------------

    async def of_nodes(self) -> HistoryView:
        """Return the series of every node."""
        answers, silent = await self._ask_all(HistoryRequest())
        end_slot = _end_of(answers)
        series = [
            HistorySeries(name=name, node_id=node_id, values=values)
            for node_id, answer in answers
            for name, values in _series_of(answer, end_slot)
        ]
        return self._view(end_slot, series, answers, silent)

    async def of_topic(self, topic: str) -> HistoryView:
        """Return the series of a topic: sums over all nodes."""
        topic_id = (await self.topic(topic)).topic_id
        return await self._sums(HistoryRequest(topic_id=topic_id))

    async def of_group(self, group: str) -> HistoryView:
        """Return the series of a group's lag: sums over all nodes; all zeros if there is no lag.

        A leader keeps the lag in its partitions in memory. If a partition has no leader, or its leader does not answer,
        the lag of the whole hour is unknown.
        """
        view = await self._sums(HistoryRequest(group=group))
        partitions = self.node.metadata.image.partitions
        committed = self.node.metadata.image.offsets.get(group, ())
        leaders = {partitions[key].leader for key in committed if key in partitions}
        if leaders.isdisjoint({None, *view.silent_nodes}):
            return view
        unknown = [replace(one, values=[math.nan] * len(one.values)) for one in view.series]
        return replace(view, series=unknown)

    async def _sums(self, request: HistoryRequest) -> HistoryView:
        answers, silent = await self._ask_all(request)
        end_slot, sums = summed([answer for _, answer in answers])
        series = [
            HistorySeries(name=name, node_id=None, values=values) for name, values in sums.items()
        ]
        return self._view(end_slot, series, answers, silent)

    async def _ask_all(
        self, request: HistoryRequest
    ) -> tuple[list[tuple[int, HistoryAnswer]], list[int]]:
        """Return the responses by node, and the ids of nodes that gave none."""
        return await self._each(lambda id_: self._ask_history(id_, request), self._tell(request))

    async def _each(
        self, ask_node: Callable[[int], Awaitable[T | None]], own_answer: Awaitable[T]
    ) -> tuple[list[tuple[int, T]], list[int]]:
        """Return the responses of this node and all live nodes, and the ids of nodes that gave none."""
        image, own = self.node.metadata.image, self.node.metadata.node_id
        live = sorted({own, *image.live_brokers()})
        answers = await asyncio.gather(
            *(own_answer if id_ == own else ask_node(id_) for id_ in live)
        )
        told = [(id_, found) for id_, found in zip(live, answers, strict=True) if found is not None]
        return told, sorted(set(image.brokers) - {id_ for id_, _ in told})

    async def _ask(self, node_id: int, call: CallType[Q, A], request: Q) -> A | None:
        try:
            return await ask(self.node.peers, node_id, call, request, timeout_ms=ANSWER_MS)
        except MilenaError as error:
            logger.info("%s unknown broker_id=%d: %s", call.name, node_id, error)
            return None

    async def _ask_history(self, node_id: int, request: HistoryRequest) -> HistoryAnswer | None:
        answer = await self._ask(node_id, HISTORY, request)
        if answer is None or _is_sound(answer):
            return answer
        logger.info("history unknown broker_id=%d: its answer contradicts itself", node_id)
        return None

    async def _tell(self, request: HistoryRequest) -> HistoryAnswer:
        told = self._told(request)
        return HistoryAnswer(
            end_slot=told.end_slot,
            names=tuple(told.series),
            values=Blob(b"".join(struct.pack(f"<{POINTS}f", *one) for one in told.series.values())),
            busiest=tuple(BusyRow(*key, *traffic) for key, traffic in _top(told.busiest, _rates)),
            left_out=told.left_out,
            version=MILENA_VERSION,
        )

    def _told(self, request: HistoryRequest) -> ToldHistory:
        if request.topic_id:
            return self._history.of_topic(request.topic_id)
        return self._history.of_group(request.group) if request.group else self._history.of_node()

    def _view(
        self,
        end_slot: int,
        series: Sequence[HistorySeries],
        answers: Sequence[tuple[int, HistoryAnswer]],
        silent: Sequence[int],
    ) -> HistoryView:
        image = self.node.metadata.image
        busiest = [
            BusyPartition(
                topic=image.topics[topic_id].name,
                partition=partition,
                leader=image.partitions[topic_id, partition].leader,
                records_in_per_second=traffic.records_in,
                bytes_in_per_second=traffic.bytes_in,
                bytes_out_per_second=traffic.bytes_out,
                records_out_per_second=traffic.records_out,
            )
            for (topic_id, partition), traffic in _traffic_of(answers).items()
            if topic_id in image.topics and (topic_id, partition) in image.partitions
        ]
        return HistoryView(
            end_ms=end_slot * STEP_MS,
            step_ms=STEP_MS,
            series=series,
            busiest=_top(busiest, lambda row: (row.bytes_in_per_second, row.bytes_out_per_second)),
            versions={node_id: answer.version or None for node_id, answer in answers},
            silent_nodes=silent,
            left_out=sum(answer.left_out for _, answer in answers),
        )


def _traffic_of(
    answers: Sequence[tuple[int, HistoryAnswer]],
) -> dict[PartitionKey, PartitionTraffic]:
    """Sum the rates of partitions over nodes.

    Several nodes have rates of one partition if its leader has changed, or if consumers read from followers.
    """
    found: dict[PartitionKey, PartitionTraffic] = {}
    for _, answer in answers:
        for row in answer.busiest:
            topic_id, partition, *rates = msgspec.structs.astuple(row)
            traffic = PartitionTraffic(*rates)
            key = (topic_id, partition)
            found[key] = found[key].plus(traffic) if key in found else traffic
    return found


def _is_sound(answer: HistoryAnswer) -> bool:
    """Return whether a node's response has the size that it declares, and plausible times and rates."""
    is_whole = len(answer.values.data) == 4 * POINTS * len(answer.names)
    numbers = (answer.end_slot, answer.left_out)
    return (
        is_whole
        and all(0 <= number < NUMBER_MAX for number in numbers)
        and all(
            map(
                math.isfinite,
                (rate for row in answer.busiest for rate in msgspec.structs.astuple(row)[2:]),
            )
        )
    )


def _by_topic(look: NodeLook, elapsed_ms: float) -> dict[str, TopicHere]:
    none = PartitionTraffic()
    rates = {
        topic_id: look.topics.get(topic_id, none).per_second(elapsed_ms) for topic_id in look.stored
    }
    return {
        topic_id: TopicHere(
            stored_bytes=stored_bytes,
            records_in_per_second=round(rates[topic_id].records_in, 1),
            records_out_per_second=round(rates[topic_id].records_out, 1),
        )
        for topic_id, stored_bytes in look.stored.items()
    }


def _rates(row: tuple[object, PartitionTraffic]) -> tuple[float, float]:
    return row[1].bytes_in, row[1].bytes_out


def _top(rows: Sequence[T], rates: Callable[[T], tuple[float, float]]) -> list[T]:
    """Return the rows with the highest first rate, then those with the highest second rate, without duplicates."""
    takes = sorted(rows, key=lambda row: rates(row)[0], reverse=True)[:BUSIEST_TOLD]
    gives = sorted(rows, key=lambda row: rates(row)[1], reverse=True)[:BUSIEST_TOLD]
    return takes + [row for row in gives if row not in takes]


def summed(answers: Sequence[HistoryAnswer]) -> tuple[int, dict[str, Floats]]:
    """Sum the series of all nodes by name; return the last slot of the sums, and the sums.

    This is the newest slot for which all nodes have a sample. At the beginning of a slot some nodes do not have theirs
    yet, and a missing sample would count as zero. A node that is more than one slot behind is ignored for this choice.

    If a node has a gap between two samples, the sum is unknown there, because the node's part is missing.
    """
    newest = max((answer.end_slot for answer in answers), default=0)
    end_slot = min((a.end_slot for a in answers if a.end_slot >= newest - 1), default=0)
    sums: dict[str, Floats] = {}
    gaps: set[tuple[str, int]] = set()
    for answer in answers:
        for name, values in _series_of(answer, end_slot):
            gaps.update((name, at) for at in _gaps(values))
            sums[name] = _sum(sums[name], values) if name in sums else values
    for name, at in gaps:
        sums[name][at] = math.nan
    return end_slot, sums


def _gaps(values: Floats) -> Iterator[int]:
    """Yield the indexes of unknown values that lie between known ones."""
    known = [at for at, value in enumerate(values) if not math.isnan(value)]
    for before, after in pairwise(known):
        yield from range(before + 1, after)


def _end_of(answers: Sequence[tuple[int, HistoryAnswer]]) -> int:
    return max((answer.end_slot for _, answer in answers), default=0)


def _series_of(answer: HistoryAnswer, end_slot: int) -> Iterable[tuple[str, Floats]]:
    """Yield a node's series, shifted so that the last value belongs to ``end_slot``."""
    late = min(max(end_slot - answer.end_slot, 0), POINTS)
    early = max(answer.end_slot - end_slot, 0)
    for at, name in enumerate(answer.names):
        values = struct.unpack_from(f"<{POINTS}f", answer.values.data, 4 * POINTS * at)
        known = (math.nan,) * early + values[late : POINTS - early]
        yield name, array("f", known + (math.nan,) * late)


def _sum(one: Iterable[float], other: Iterable[float]) -> Floats:
    """Add two series point by point. If only one of two values is known, the sum is that value."""
    return array(
        "f",
        (
            b if math.isnan(a) else a if math.isnan(b) else a + b
            for a, b in zip(one, other, strict=True)
        ),
    )
