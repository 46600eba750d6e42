"""One node's wall clock is wrong: nothing is deleted, forgotten or aborted early for it."""

from hashlib import sha256

import pytest

from milena.model.batch.decode import iterate_batches
from milena.model.requests import (
    Acks,
    IdempotencyKey,
    ProduceReceipt,
    ProduceRequest,
    ProducerTransaction,
    Records,
)
from milena.model.types import WallMs
from tests.support.clusters.nodes import Cluster, SimNode, cluster_of, outcome
from tests.support.time.virtual_time import LoopClock, after, virtual

DAY_MS = 24 * 3_600_000
BOUND_MS = 2_000
WRONG = [8 * DAY_MS, 30 * DAY_MS, -8 * DAY_MS, 365 * DAY_MS, 60_000]
IDS = ["8-days-ahead", "30-days-ahead", "8-days-behind", "a-year-ahead", "a-minute-ahead"]
wrong = pytest.mark.parametrize("skew_ms", WRONG, ids=IDS)


def true_ms() -> int:
    return LoopClock().wall_ms()


def is_right(node: SimNode) -> bool:
    return abs(node.clock.wall_ms() - true_ms()) <= BOUND_MS


async def write(node: SimNode, value: str, transaction: ProducerTransaction | None = None) -> None:
    """A client that tries again until the record is acknowledged."""
    request = ProduceRequest(
        topic="t",
        records=Records(keys=None, values=[value.encode()]),
        acks=Acks.ALL,
        timeout_ms=2_000,
        partition=0,
        transaction=transaction,
    )
    while isinstance(await outcome(node.produce.produce(request)), Exception):
        await after(100)


async def write_keyed(node: SimNode, key: str, value: str) -> ProduceReceipt:
    request = ProduceRequest(
        topic="t",
        records=Records(keys=None, values=[value.encode()]),
        acks=Acks.ALL,
        timeout_ms=2_000,
        partition=0,
        idempotency=IdempotencyKey(
            key_hash=sha256(key.encode()).digest()[:16],
            body_hash=sha256(value.encode()).digest()[:8],
        ),
    )
    while True:
        receipt = (await node.produce.produce(request))[0]
        if receipt.error is None:
            return receipt
        await after(100)


class TestFromTheStart:
    """The clock was set wrong before the node started."""

    @wrong
    @virtual
    async def test_acknowledged_records_stay(self, skew_ms: int) -> None:
        async with cluster_of(Cluster(skews_ms={3: skew_ms})) as cluster:
            await cluster.create("t", (3, 1, 2))
            await write(cluster.nodes[1], "paid")
            await after(5_000)
            for node in cluster.nodes.values():
                assert await node.read("t") == ["paid"]

    @wrong
    @virtual
    async def test_a_key_is_remembered_where_the_wrong_clock_leads(self, skew_ms: int) -> None:
        async with cluster_of(Cluster(skews_ms={3: skew_ms})) as cluster:
            await cluster.create("t", (1, 3), min_insync_replicas="1")
            first = await write_keyed(cluster.nodes[1], "payment-18", "paid")
            await cluster.stop_gracefully(1)
            await cluster.until(lambda: cluster.is_led("t"))
            assert cluster.leader_of("t") == 3
            again = await write_keyed(cluster.nodes[3], "payment-18", "paid")
            assert again.offset == first.offset
            assert await cluster.nodes[2].read("t") == ["paid"]

    @wrong
    @virtual
    async def test_every_node_tells_the_right_time(self, skew_ms: int) -> None:
        async with cluster_of(Cluster(skews_ms={3: skew_ms})) as cluster:
            await cluster.create("t", (3, 1, 2))
            await cluster.until(lambda: all(n.clock.is_known for n in cluster.nodes.values()))
            assert all(map(is_right, cluster.nodes.values()))
            assert [node.clock.is_out_of_bounds for node in cluster.nodes.values()] == [
                False,
                False,
                True,
            ]

    @wrong
    @virtual
    async def test_what_it_stamps_has_the_right_time(self, skew_ms: int) -> None:
        async with cluster_of(Cluster(skews_ms={3: skew_ms})) as cluster:
            await cluster.create("t", (3, 1, 2), message_timestamp_type="LogAppendTime")
            await write(cluster.nodes[3], "paid")
            batches = (await cluster.nodes[1].fetch("t")).batches
            stamped = [header.append_time_ms for _, header in iterate_batches(batches)]
            assert stamped
            assert all(abs(ms - true_ms()) <= BOUND_MS for ms in stamped)

    @wrong
    @virtual
    async def test_the_applied_time_is_right(self, skew_ms: int) -> None:
        async with cluster_of(Cluster(skews_ms={3: skew_ms})) as cluster:
            await cluster.create("t", (3, 1, 2))
            await write(cluster.nodes[3], "paid")
            await cluster.stop_gracefully(3)
            await cluster.restart(3)
            await cluster.until(lambda: cluster.nodes[3].membership.is_unfenced)
            await after(1_000)
            await cluster.nodes[1].transactions.begin("me", timeout_ms=5_000)
            assert abs(cluster.image.now_ms - true_ms()) <= BOUND_MS

    @pytest.mark.parametrize("skew_ms", [30 * DAY_MS, -30 * DAY_MS, 20_000, 1_900, -1_900])
    @virtual
    async def test_no_transaction_is_aborted_before_its_time(self, skew_ms: int) -> None:
        """The next leader's clock is wrong, or right within the bound."""
        timeout_ms = 20_000
        async with cluster_of(Cluster(skews_ms={3: skew_ms})) as cluster:
            await cluster.create("t", (1, 3), min_insync_replicas="1")
            one = await cluster.nodes[2].transactions.begin("me", timeout_ms=timeout_ms)
            began_ms = true_ms()
            await write(cluster.nodes[2], "sent", one)
            await cluster.stop_gracefully(1)
            await cluster.until(lambda: cluster.is_led("t"))
            transactions = cluster.runner(3, "t").log.writers.transactions
            await after(timeout_ms - 1_000 - (true_ms() - began_ms))
            assert transactions.open
            # A clock that is behind is made up for by the time that the leader has seen it; and one look.
            await after(2 * BOUND_MS + 3_000)
            assert not transactions.open


class TestAtRunTime:
    """The clock of a node that runs is set wrong."""

    @wrong
    @virtual
    async def test_a_jump_changes_nothing_at_once_nor_later(self, skew_ms: int) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (3, 1, 2))
            await write(cluster.nodes[1], "paid")
            cluster.nodes[3].machine_clock.skew_ms = skew_ms
            assert is_right(cluster.nodes[3])
            await after(5_000)
            assert is_right(cluster.nodes[3])
            assert cluster.nodes[3].clock.is_out_of_bounds
            assert await cluster.nodes[3].read("t") == ["paid"]

    @wrong
    @virtual
    async def test_a_clock_that_is_repaired_is_trusted_again(self, skew_ms: int) -> None:
        async with cluster_of(Cluster(skews_ms={3: skew_ms})) as cluster:
            await cluster.create("t", (3, 1, 2))
            cluster.nodes[3].machine_clock.skew_ms = 0
            await after(1_000)
            node = cluster.nodes[3]
            assert node.clock.wall_ms() == true_ms()
            assert not node.clock.is_out_of_bounds
            assert node.clock.offset_ms is not None
            assert abs(node.clock.offset_ms) < 10


class TestMajority:
    @virtual
    async def test_two_clocks_that_differ_decide_nothing_by_time(self) -> None:
        async with cluster_of(Cluster(node_ids=(1, 2), skews_ms={2: 8 * DAY_MS})) as cluster:
            await cluster.create("t", (2, 1))
            await write(cluster.nodes[1], "paid")
            await after(10_000)
            assert [node.clock.expiry_ms() for node in cluster.nodes.values()] == [0, 0]
            assert await cluster.nodes[2].read("t") == ["paid"]
            cluster.nodes[2].machine_clock.skew_ms = 0
            await after(1_000)
            assert all(node.clock.expiry_ms() == true_ms() for node in cluster.nodes.values())

    @virtual
    async def test_a_lone_node_goes_by_its_own_clock_at_once(self) -> None:
        async with cluster_of(Cluster(node_ids=(1,), skews_ms={1: DAY_MS})) as cluster:
            assert cluster.nodes[1].clock.expiry_ms() == WallMs(true_ms() + DAY_MS)

    @virtual
    async def test_below_the_level_that_compares_clocks_each_goes_by_its_own(self) -> None:
        async with cluster_of(Cluster(feature_max=10, skews_ms={3: DAY_MS})) as cluster:
            assert cluster.nodes[3].clock.expiry_ms() == WallMs(true_ms() + DAY_MS)

    @virtual
    async def test_a_node_takes_no_write_before_it_knows_the_time(self) -> None:
        """The first two nodes of three disagree; the third one tells which of them is right."""
        cluster = Cluster(skews_ms={3: -8 * DAY_MS})
        try:
            await cluster.restart(1)
            await cluster.restart(3)
            await after(1_000)
            assert not cluster.nodes[3].membership.has_lease
            await cluster.restart(2)
            await cluster.until(lambda: all(n.membership.has_lease for n in cluster.nodes.values()))
            assert all(map(is_right, cluster.nodes.values()))
        finally:
            await cluster.close()

    @virtual
    async def test_it_does_not_wait_for_the_time_for_ever(self) -> None:
        cluster = Cluster(skews_ms={3: -8 * DAY_MS})
        try:
            await cluster.restart(1)
            await cluster.restart(3)
            await cluster.until(lambda: cluster.nodes[3].membership.has_lease, timeout_ms=5_000)
        finally:
            await cluster.close()
