"""Rules of transactions that requests share: who shares one, who waits, and whose failure is whose."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from immutables import Map

from milena.model.columns import RecordColumns
from milena.model.errors import FateUnknownError, NotEnoughReplicasError
from milena.model.types import WallMs
from node.metadata.topic_settings import topic_settings
from node.services.gather import GROUP_BYTES_MAX, MEMBER_BYTES_MAX
from node.services.record_batches import PartitionBatch
from node.services.transaction_gatherer import (
    HOLD_MS,
    PARTS_MAX,
    Committed,
    Place,
    TransactionGatherer,
)
from node.services.transaction_plans import Part, Plan
from raft_meta.machine.image import Image, Partition, Topic
from tests.support.time.virtual_time import after, settle, virtual

TOPIC = Topic(
    topic_id="0" * 32,
    name="t",
    partition_count=PARTS_MAX + 10,
    replication_factor=1,
    configs=Map(),
    created_ms=WallMs(0),
)
SETTINGS = topic_settings(TOPIC)
TIMEOUT_MS = 1_000


def plan(*records: tuple[int, Sequence[bytes]], settings: object = SETTINGS) -> Plan:
    """Of one write: (partition, values) each."""
    parts: list[Part] = []
    first = 0
    for partition, values in records:
        columns = RecordColumns(
            offset_deltas=None, timestamp_deltas=None, keys=None, values=list(values), headers=None
        )
        places = range(first, first + len(values))
        first += len(values)
        batch = PartitionBatch(partition, places, columns, 100)
        parts.append(Part(TOPIC, settings, batch))  # type: ignore[arg-type]
    return Plan(parts, {"t": [(0, first)]}, 1)


class Node:
    """Stands for what commits, and for the image: offsets of partition P begin at 100 P, once ``gate`` is open."""

    def __init__(self) -> None:
        self.image = Image()
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: BaseException | None = None
        self.committed: list[dict[int, list[bytes | None]]] = []
        self.gatherer = TransactionGatherer(self, commit=self.commit)  # type: ignore[arg-type]  # its image

    async def commit(self, parts: Sequence[Part], timeout_ms: int) -> Committed:
        assert timeout_ms == TIMEOUT_MS
        self.committed.append({part.batch.partition: part.batch.columns.values for part in parts})
        error = self.error
        await self.gate.wait()
        if error is not None:
            raise error
        return Committed([100 * part.batch.partition for part in parts], is_visible=True)

    def submit(
        self, *records: tuple[int, Sequence[bytes]], nodes: int = 1
    ) -> "asyncio.Task[object]":
        place = Place(frozenset(range(nodes)), TIMEOUT_MS)
        return asyncio.ensure_future(self.gatherer.submit(place, plan(*records)))


def bases(committed: object) -> list[int]:
    assert isinstance(committed, Committed)
    assert committed.is_visible
    return list(committed.base_offsets)


@virtual
async def test_requests_of_one_turn_share_one_and_each_is_told_where_its_own_records_are() -> None:
    node = Node()
    requests = [
        node.submit((1, [b"a", b"b"]), (2, [b"c"])),
        node.submit((2, [b"d", b"e"])),
        node.submit((3, [b"f"]), (2, [b"g"]), (1, [b"h"])),
    ]
    told = [bases(await request) for request in requests]
    assert node.committed == [{1: [b"a", b"b", b"h"], 2: [b"c", b"d", b"e", b"g"], 3: [b"f"]}]
    assert told == [[100, 200], [201], [300, 203, 102]]


@virtual
async def test_those_that_arrive_meanwhile_wait_for_its_end_and_share_the_next() -> None:
    node = Node()
    node.gate.clear()
    requests = [node.submit((1, [b"a"]))]
    await settle()
    requests += [node.submit((1, [b"b"])), node.submit((1, [b"c"]))]
    await after(HOLD_MS / 2)
    assert len(node.committed) == 1
    node.gate.set()
    assert [bases(await request) for request in requests] == [[100], [100], [101]]
    assert node.committed[1:] == [{1: [b"b", b"c"]}]


@virtual
async def test_but_not_for_one_that_is_stuck() -> None:
    node = Node()
    node.gate.clear()
    node.submit((1, [b"a"]))
    await settle()
    node.submit((1, [b"b"]))
    await after(HOLD_MS)
    assert node.committed == [{1: [b"a"]}, {1: [b"b"]}]
    node.gate.set()
    await settle()


@virtual
async def test_nobody_waits_for_nodes_that_are_none_of_his() -> None:
    node = Node()
    node.gate.clear()
    node.submit((1, [b"a"]), nodes=1)
    node.submit((1, [b"b"]), nodes=2)
    await settle()
    assert node.committed == [{1: [b"a"]}, {1: [b"b"]}]
    node.gate.set()
    await settle()


@virtual
async def test_one_that_certainly_is_not_committed_is_left_to_each() -> None:
    node = Node()
    node.error = NotEnoughReplicasError("no")
    assert await asyncio.gather(node.submit((1, [b"a"])), node.submit((2, [b"b"]))) == [None, None]


@virtual
@pytest.mark.parametrize("error", [FateUnknownError("lost"), AssertionError("broken")])
async def test_whether_an_unknown_one_counts_is_unknown_to_all(error: Exception) -> None:
    node = Node()
    node.error = error
    requests = [node.submit((1, [b"a"])), node.submit((2, [b"b"]))]
    for request in requests:
        with pytest.raises(type(error)):
            await request
    assert len(node.committed) == 1


@virtual
async def test_who_hangs_up_takes_nobody_along() -> None:
    node = Node()
    node.gate.clear()
    gone, there = node.submit((1, [b"a"])), node.submit((1, [b"b"]))
    await settle()
    gone.cancel()
    node.gate.set()
    assert bases(await there) == [101]


@virtual
async def test_what_would_not_fit_goes_with_the_next() -> None:
    node = Node()
    value = b"x" * MEMBER_BYTES_MAX
    count = GROUP_BYTES_MAX // MEMBER_BYTES_MAX
    many = [node.submit((1, [value])) for _ in range(count + 1)]
    await asyncio.gather(*many)
    assert [len(parts[1]) for parts in node.committed] == [count, 1]
    node.committed.clear()
    wide = [node.submit((p, [b"a"]), (p + 1, [b"b"])) for p in range(0, PARTS_MAX + 2, 2)]
    await asyncio.gather(*wide)
    assert [len(parts) for parts in node.committed] == [PARTS_MAX, 2]


@virtual
async def test_a_node_that_stops_leaves_nobody_waiting() -> None:
    node = Node()
    node.gate.clear()
    waiting = [node.submit((1, [b"a"]))]
    await settle()
    waiting.append(node.submit((1, [b"b"])))
    await settle()
    await node.gatherer.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    assert len(node.committed) == 1


def partition(leader: int | None, *isr: int) -> Partition:
    return Partition(
        replicas=isr, isr=isr, leader=leader, leader_epoch=0, partition_epoch=0, suspects=()
    )


@virtual
async def test_only_small_records_of_led_partitions_share_one() -> None:
    node = Node()
    led, other, orphan = partition(1, 1, 2), partition(3, 3, 1), partition(None, 1, 2)
    keys = {(TOPIC.topic_id, p): state for p, state in enumerate((led, other, orphan))}
    node.image = replace(node.image, partitions=Map(keys))

    def place(*records: tuple[int, Sequence[bytes]], settings: object = SETTINGS) -> Place | None:
        return node.gatherer.place_of(plan(*records, settings=settings), TIMEOUT_MS)

    assert place((0, [b"a"])) == Place(frozenset({1, 2}), TIMEOUT_MS)
    assert place((0, [b"a"]), (1, [b"b"])) == Place(frozenset({1, 2, 3}), TIMEOUT_MS)
    assert place((0, [b"a"]), (2, [b"b"])) is None
    assert place((3, [b"a"])) is None
    assert place((0, [b"x" * (MEMBER_BYTES_MAX + 1)])) is None
    assert place((0, [b"x" * 300]), settings=replace(SETTINGS, max_message_bytes=1_000)) is None
