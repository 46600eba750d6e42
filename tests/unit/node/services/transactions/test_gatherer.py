"""Rules of transactions that requests share: who shares one, who waits, and whose failure is whose."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from immutables import Map

from milena.model.batch.header import IdempotencyExtension, KeyPlace, shared_key_bytes
from milena.model.columns import RecordColumns
from milena.model.errors import FateUnknownError, NotEnoughReplicasError
from milena.model.types import WallMs
from node.metadata.topic_settings import topic_settings
from node.services.gather import GROUP_BYTES_MAX, MEMBER_BYTES_MAX
from node.services.record_batches import PartitionBatch
from node.services.transactions import gatherer as transaction_gatherer
from node.services.transactions.gatherer import (
    HOLD_MS,
    KEY_BYTES_MAX,
    PARTS_MAX,
    Committed,
    Place,
    TransactionGatherer,
)
from node.services.transactions.plans import Part, Plan, WriteGroup
from raft_meta.machine.image import Image, Partition, Topic
from raft_meta.machine.transactions import ITEMS_PER_TRANSACTION_MAX
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


def plan(
    *records: tuple[int, Sequence[bytes]], settings: object = SETTINGS, key: bytes = b""
) -> Plan:
    """Of one write: (partition, values) each; perhaps under a key."""
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
    if key:
        parts[0] = replace(parts[0], request_keys=(extension(key),))
    return Plan(parts, [WriteGroup(len(parts), [(0, first)])], 1)


def extension(key: bytes, *places: tuple[int, int, int]) -> IdempotencyExtension:
    return IdempotencyExtension(
        key.ljust(16, b"-"), b"body-abc", TOPIC.partition_count, tuple(map(KeyPlace._make, places))
    )


class Node:
    """Stands for what commits, and for the image: offsets of partition P begin at 100 P, once ``gate`` is open."""

    def __init__(self) -> None:
        self.image = Image()
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: BaseException | None = None
        self.committed: list[dict[int, list[bytes | None]]] = []
        self.keys: list[dict[int, list[IdempotencyExtension]]] = []
        """Of each transaction, those that are at home in each partition."""
        self.gatherer = TransactionGatherer(self, commit=self.commit)  # type: ignore[arg-type]  # its image

    async def commit(self, parts: Sequence[Part], timeout_ms: int) -> Committed:
        assert timeout_ms == TIMEOUT_MS
        self.committed.append({part.batch.partition: part.batch.columns.values for part in parts})
        self.keys.append({p.batch.partition: [*p.request_keys] for p in parts if p.request_keys})
        error = self.error
        await self.gate.wait()
        if error is not None:
            raise error
        return Committed([100 * part.batch.partition for part in parts], is_visible=True)

    def submit(
        self, *records: tuple[int, Sequence[bytes]], nodes: int = 1, key: bytes = b""
    ) -> "asyncio.Task[object]":
        place = Place(frozenset(range(nodes)), TIMEOUT_MS, bool(key))
        return asyncio.ensure_future(self.gatherer.submit(place, plan(*records, key=key)))


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

    def place(
        *records: tuple[int, Sequence[bytes]], settings: object = SETTINGS, key: bytes = b""
    ) -> Place | None:
        return node.gatherer.place_of(plan(*records, settings=settings, key=key), TIMEOUT_MS)

    assert place((0, [b"a"])) == Place(frozenset({1, 2}), TIMEOUT_MS, is_keyed=False)
    assert place((0, [b"a"]), (1, [b"b"])) == Place(frozenset({1, 2, 3}), TIMEOUT_MS, False)
    assert place((0, [b"a"]), key=b"k") == Place(frozenset({1, 2}), TIMEOUT_MS, is_keyed=True)
    assert place((0, [b"a"]), (2, [b"b"])) is None
    assert place((3, [b"a"])) is None
    assert place((0, [b"x" * (MEMBER_BYTES_MAX + 1)])) is None
    assert place((0, [b"x" * 300]), settings=replace(SETTINGS, max_message_bytes=1_000)) is None


class TestKeys:
    @virtual
    async def test_requests_under_keys_share_one_and_each_home_is_told_where_all_of_its_are(
        self,
    ) -> None:
        node = Node()
        requests = [
            node.submit((1, [b"a", b"b"]), (2, [b"c"]), key=b"one"),
            node.submit((3, [b"d"]), (1, [b"e"]), key=b"two"),
            node.submit((1, [b"f"]), key=b"three"),
        ]
        told = [bases(await request) for request in requests]
        assert told == [[100, 200], [300, 102], [103]]
        assert node.committed == [{1: [b"a", b"b", b"e", b"f"], 3: [b"d"], 2: [b"c"]}]
        # Homes first: they are extents 0 and 1.
        assert list(node.committed[0]) == [1, 3, 2]
        assert node.keys == [
            {
                1: [extension(b"one", (0, 0, 2), (2, 0, 1)), extension(b"three", (0, 3, 1))],
                3: [extension(b"two", (1, 0, 1), (0, 2, 1))],
            }
        ]

    @virtual
    async def test_they_share_none_with_those_who_have_none(self) -> None:
        node = Node()
        requests = [node.submit((1, [b"a"])), node.submit((1, [b"b"]), key=b"k")]
        await asyncio.gather(*requests)
        assert node.committed == [{1: [b"a"]}, {1: [b"b"]}]

    @virtual
    async def test_a_repeat_waits_for_the_end_of_the_first_and_is_judged_alone(self) -> None:
        node = Node()
        node.gate.clear()
        first, again = (node.submit((1, [b"a"]), key=b"k") for _ in range(2))
        await settle()
        other = node.submit((1, [b"b"]), key=b"other")
        await after(HOLD_MS)
        assert not again.done()
        node.gate.set()
        assert bases(await first) == [100]
        assert await again is None
        assert bases(await other) == [100]
        # Later ones have nothing to wait for.
        node.gate.clear()
        assert await node.submit((1, [b"a"]), key=b"k") is None
        assert node.committed == [{1: [b"a"]}, {1: [b"b"]}]

    @virtual
    async def test_also_when_the_first_has_hung_up(self) -> None:
        node = Node()
        node.gate.clear()
        first = node.submit((1, [b"a"]), key=b"k")
        await settle()
        first.cancel()
        again = node.submit((1, [b"a"]), key=b"k")
        await settle()
        assert not again.done()
        node.gate.set()
        assert await again is None

    @virtual
    async def test_it_waits_no_longer_than_it_has_time(self) -> None:
        node = Node()
        node.gate.clear()
        node.submit((1, [b"a"]), key=b"k")
        await settle()
        again = node.submit((1, [b"a"]), key=b"k")
        await after(TIMEOUT_MS - 1)
        assert not again.done()
        await after(1)
        assert again.done()
        node.gate.set()
        await settle()

    @virtual
    async def test_so_many_keys_are_known_to_have_come(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transaction_gatherer, "KEYS_SEEN_MAX", 2)
        node = Node()
        for key in (b"one", b"two", b"three"):
            bases(await node.submit((1, [b"a"]), key=key))
        assert await node.submit((1, [b"a"]), key=b"two") is None
        # Of the oldest the logs know.
        bases(await node.submit((1, [b"a"]), key=b"one"))

    @virtual
    async def test_so_many_homes_are_told_of_so_many_partitions(self) -> None:
        node = Node()
        requests = [node.submit((p, [b"a"]), key=b"k%d" % p) for p in range(60)]
        await asyncio.gather(*requests)
        assert [len(parts) for parts in node.committed] == [31, 29]
        assert all(len(keys) ** 2 <= ITEMS_PER_TRANSACTION_MAX for keys in node.keys)

    @virtual
    async def test_the_keys_of_a_home_fit_into_the_header_of_its_batch(self) -> None:
        node = Node()
        count = KEY_BYTES_MAX // shared_key_bytes(1)
        requests = [node.submit((1, [b"a"]), key=b"k%d" % number) for number in range(count + 1)]
        await asyncio.gather(*requests)
        assert [len(keys[1]) for keys in node.keys] == [count, 1]

    @virtual
    async def test_a_node_that_stops_lets_go_of_those_who_wait_for_the_first(self) -> None:
        node = Node()
        node.gate.clear()
        node.submit((2, [b"a"]), key=b"under way")
        await settle()
        waiting = [node.submit((1, [b"a"]), key=b"k") for _ in range(2)]
        await settle()
        await node.gatherer.close()
        first, again = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(first, asyncio.CancelledError)
        assert again is None
