"""Requests under idempotency keys that share a transaction: each is there once, and told of its own records."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from milena.model.batch.decode import iterate_headers
from milena.model.errors import (
    IdempotencyKeyReusedError,
    NotEnoughReplicasError,
    TooManyRequestsError,
)
from milena.model.requests import IdempotencyKey, TransactionReceipt
from raft_meta.machine.codec import FEATURE_LEVEL_MAX
from raft_meta.machine.commands import TransactionEnd
from raft_meta.machine.transactions import SHARED_KEYS_LEVEL
from storage.state.idempotency import IdempotencyTable
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.clusters.transacting import read, to, transact
from tests.support.time.virtual_time import after, settle, virtual
from tests.unit.node.services.test_produce import move_leader

COUNT = 4


async def two_topics(cluster: Cluster, *, level: int = FEATURE_LEVEL_MAX) -> None:
    await cluster.until(lambda: cluster.image.feature_level == level)
    await cluster.create("t", (1, 2, 3))
    await cluster.create("u", (2, 3, 1))


def key(number: int, body: bytes = b"b" * 8) -> IdempotencyKey:
    return IdempotencyKey(key_hash=b"%d" % number * 16, body_hash=body)


async def ask(cluster: Cluster, node_id: int, number: int, **options: object) -> TransactionReceipt:
    """The request under key ``number``, at home in t or, every other one, in u."""
    writes = [to("t", 0, f"a{number}", f"b{number}"), to("u", 0, f"c{number}")]
    ordered = writes if number % 2 else writes[::-1]
    return await transact(cluster, node_id, *ordered, key=key(number), **options)  # type: ignore[arg-type]


async def all_of(cluster: Cluster, node_id: int) -> list[TransactionReceipt]:
    return await asyncio.gather(*(ask(cluster, node_id, number) for number in range(COUNT)))


def offsets_of(receipt: TransactionReceipt) -> list[list[int | None]]:
    return [[r.offset for r in write] for write in receipt.receipts]


def identities(cluster: Cluster, topic: str) -> set[tuple[int, int]]:
    """The transactions that a log has batches of."""
    log = cluster.runner(1, topic).log
    span = log.read_span(0, max_bytes=1 << 20)
    headers = [header for _, header in iterate_headers(span)]
    return {(h.producer_id, h.producer_epoch) for h in headers if h.marker is None}


async def check_once(cluster: Cluster, first: Sequence[TransactionReceipt]) -> None:
    """Whoever asks again on any node is told the same, and each record is there once."""
    for node_id in sorted(cluster.nodes):
        for number, receipt in enumerate(first):
            again = await ask(cluster, node_id, number)
            assert again.is_duplicate
            assert again.is_visible
            assert offsets_of(again) == offsets_of(receipt)
    reader = min(cluster.nodes)
    values = await read(cluster, reader, "t")
    assert values == [f"{letter}{n}" for n in range(COUNT) for letter in "ab"]
    assert await read(cluster, reader, "u") == [f"c{n}" for n in range(COUNT)]


class TestAnswers:
    @virtual
    @pytest.mark.parametrize("node_id", [1, 2, 3])
    async def test_each_has_its_own_and_repeats_get_it_on_any_node(self, node_id: int) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            before = cluster.image.index
            first = await all_of(cluster, node_id)
            assert not any(receipt.is_duplicate for receipt in first)
            assert [offsets_of(receipt) for receipt in first] == [
                [[n], [2 * n, 2 * n + 1]] if n % 2 == 0 else [[2 * n, 2 * n + 1], [n]]
                for n in range(COUNT)
            ]
            assert len(identities(cluster, "t")) == 1
            # One producer, one end, the end of its markers in two partitions.
            assert cluster.image.index - before <= 4
            await check_once(cluster, first)

    @virtual
    async def test_also_after_leaders_have_moved_and_died(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            first = await all_of(cluster, 3)
            await move_leader(cluster, 2)
            await check_once(cluster, first)
            await cluster.kill(2)
            await cluster.until(lambda: cluster.is_led("t") and cluster.is_led("u"))
            await check_once(cluster, first)

    @virtual
    async def test_also_after_all_have_died(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            first = await all_of(cluster, 2)
            for node_id in (1, 2, 3):
                await cluster.kill(node_id, power=True)
            for node_id in (1, 2, 3):
                await cluster.restart(node_id)
            await cluster.until(
                lambda: cluster.is_led("t") and cluster.is_led("u"), timeout_ms=30_000
            )
            await check_once(cluster, first)

    @virtual
    async def test_also_before_markers_are_written(self) -> None:
        """The quorum knows by then: what it keeps for a home is of all who share it."""
        async with cluster_of() as cluster:
            await two_topics(cluster)
            kept = {node_id: cluster.runner(node_id, "t") for node_id in (1, 2, 3)}
            runner = kept[1]
            append_marker = runner.append_marker
            runner.append_marker = lambda *args: None  # type: ignore[method-assign]
            works = [
                asyncio.ensure_future(ask(cluster, 3, number, timeout_ms=4_000))
                for number in range(COUNT)
            ]
            await cluster.until(lambda: bool(cluster.image.ending))
            again = [asyncio.ensure_future(ask(cluster, 2, number)) for number in range(COUNT)]
            await after(1_500)
            runner.append_marker = append_marker  # type: ignore[method-assign]
            first = await asyncio.gather(*works)
            for receipt, repeated in zip(first, await asyncio.gather(*again), strict=True):
                assert repeated.is_duplicate
                assert offsets_of(repeated) == offsets_of(receipt)
            await check_once(cluster, first)

    @virtual
    async def test_who_asks_again_waits_for_readers_of_his_own_partitions(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            runners = {"t": cluster.runner(1, "t"), "u": cluster.runner(2, "u")}
            append_marker = {topic: runner.append_marker for topic, runner in runners.items()}
            for runner in runners.values():
                runner.append_marker = lambda *args: None  # type: ignore[method-assign]

            def ask_all(node_id: int) -> dict[str, "asyncio.Future[TransactionReceipt]"]:
                return {
                    topic: asyncio.ensure_future(
                        transact(cluster, node_id, to(topic, 0, "a"), key=key(n), timeout_ms=9_000)
                    )
                    for n, topic in enumerate(runners)
                }

            first = ask_all(3)
            await cluster.until(lambda: len(cluster.image.ending) == 2)
            again = ask_all(1)
            await after(1_500)
            runners["t"].append_marker = append_marker["t"]  # type: ignore[method-assign]
            assert (await again["t"]).is_visible
            await after(1_500)
            assert not again["u"].done()
            assert not any(work.done() for work in first.values())
            runners["u"].append_marker = append_marker["u"]  # type: ignore[method-assign]
            for work in (again["u"], *first.values()):
                assert (await work).is_visible


class TestFailures:
    @virtual
    async def test_below_the_level_each_has_a_transaction_of_its_own(self) -> None:
        level = SHARED_KEYS_LEVEL - 1
        async with cluster_of(Cluster(feature_max=level)) as cluster:
            await two_topics(cluster, level=level)
            first = await all_of(cluster, 3)
            assert len(identities(cluster, "t")) == COUNT
            assert sorted(await read(cluster, 1, "u")) == [f"c{n}" for n in range(COUNT)]
            for number, receipt in enumerate(first):
                assert offsets_of(await ask(cluster, 1, number)) == offsets_of(receipt)

    @virtual
    async def test_one_whose_key_is_known_is_judged_alone_and_the_others_are_written(self) -> None:
        """Node 3 has no copy of the home, and cannot know."""
        async with cluster_of() as cluster:
            await two_topics(cluster)
            await cluster.create("single", (1,))

            async def write(node_id: int, number: int, *values: str) -> TransactionReceipt:
                return await transact(
                    cluster,
                    node_id,
                    to("single", 0, *values),
                    key=key(number, repr(values).encode()[:8]),
                )

            first = await write(2, 0, "known")
            # Long enough for records that are not there to be taken for some that are.
            await cluster.nodes[1].write("single", *["plain"] * 4)
            known, other, changed, new = await asyncio.gather(
                write(3, 0, "known"),
                write(3, 1, "new one"),
                write(2, 0, "changed"),
                write(3, 2, "new two"),
                return_exceptions=True,
            )
            assert isinstance(known, TransactionReceipt)
            assert known.is_duplicate
            assert offsets_of(known) == offsets_of(first)
            assert isinstance(changed, IdempotencyKeyReusedError)
            for receipt in (other, new):
                assert isinstance(receipt, TransactionReceipt)
                assert not receipt.is_duplicate
            values = await read(cluster, 1, "single")
            assert sorted(values) == ["known", "new one", "new two", *["plain"] * 4]

    @virtual
    async def test_who_repeats_a_key_at_full_speed_keeps_nobody_from_sharing(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            await ask(cluster, 1, 9)
            repeats = [asyncio.ensure_future(ask(cluster, 1 + n % 3, 9)) for n in range(30)]
            await all_of(cluster, 3)
            assert all(receipt.is_duplicate for receipt in await asyncio.gather(*repeats))
            assert len(identities(cluster, "t")) == 2
            assert len(identities(cluster, "u")) == 2

    @virtual
    async def test_one_that_came_to_two_nodes_at_once_is_there_once(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            answers = await asyncio.gather(
                *(
                    ask(cluster, 1 + n // COUNT, n % COUNT, timeout_ms=8_000)
                    for n in range(3 * COUNT)
                )
            )
            for number in range(COUNT):
                told = [offsets_of(answers[at]) for at in range(number, 3 * COUNT, COUNT)]
                assert told[0] == told[1] == told[2]
            assert sorted(await read(cluster, 1, "u")) == [f"c{n}" for n in range(COUNT)]
            assert len(await read(cluster, 2, "t")) == 2 * COUNT

    @virtual
    async def test_keys_of_an_aborted_one_are_free_and_each_is_tried_alone(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            ends = cluster.nodes[3].transaction_ends
            end = ends.end

            async def abort_first(ended: TransactionEnd) -> None:
                if not ended.is_commit:
                    await end(ended)
                    return
                ends.end = end  # type: ignore[method-assign]
                bare = replace(
                    ended, is_commit=False, is_keyed=False, extents=(), offsets=(), home_count=1
                )
                await end(bare)
                await end(ended)

            ends.end = abort_first  # type: ignore[method-assign]
            first = await all_of(cluster, 3)
            assert not any(receipt.is_duplicate for receipt in first)
            assert len(identities(cluster, "t")) == COUNT + 1
            assert sorted(await read(cluster, 1, "u")) == [f"c{n}" for n in range(COUNT)]
            for number, receipt in enumerate(first):
                again = await ask(cluster, 1, number)
                assert again.is_duplicate
                assert offsets_of(again) == offsets_of(receipt)

    @virtual
    async def test_nobody_is_refused_for_a_neighbour(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            await cluster.create("single", (1,))
            await cluster.create("full", (1,))
            full = cluster.runner(1, "full").log
            full.state.writers.idempotency = IdempotencyTable(keys_max=1)
            await transact(cluster, 1, to("full", 0, "x"), key=key(7))
            good, bad = await asyncio.gather(
                transact(cluster, 3, to("single", 0, "good"), key=key(0)),
                transact(cluster, 3, to("full", 0, "bad"), key=key(1)),
                return_exceptions=True,
            )
            assert isinstance(good, TransactionReceipt)
            assert isinstance(bad, TooManyRequestsError)
            assert await read(cluster, 2, "single") == ["good"]
            assert (await transact(cluster, 1, to("single", 0, "good"), key=key(0))).is_duplicate

    @virtual
    async def test_a_batch_whose_fate_is_unknown_is_found_by_the_next_leader(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            # Written, and not committed before another one leads.
            cluster.network.cut(1, 2)
            cluster.network.cut(1, 3)
            works = [
                asyncio.ensure_future(ask(cluster, 1, number, timeout_ms=8_000))
                for number in range(COUNT)
            ]
            await after(200)
            cluster.heal()
            await move_leader(cluster, 2)
            first = await asyncio.gather(*works, return_exceptions=True)
            assert all(isinstance(receipt, TransactionReceipt) for receipt in first), first
            await settle()
            assert sorted(await read(cluster, 3, "u")) == [f"c{n}" for n in range(COUNT)]
            assert len(await read(cluster, 3, "t")) == 2 * COUNT

    @virtual
    async def test_one_that_cannot_be_written_leaves_the_others(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            await cluster.create("single", (1,))
            await cluster.create("alone", (1,))

            def refuse(*args: object, **options: object) -> None:
                raise NotEnoughReplicasError("told by the test")

            cluster.runner(1, "alone").append = refuse  # type: ignore[method-assign,assignment]
            good, bad = await asyncio.gather(
                transact(cluster, 2, to("single", 0, "good"), key=key(0)),
                transact(cluster, 2, to("alone", 0, "bad"), key=key(1)),
                return_exceptions=True,
            )
            assert isinstance(good, TransactionReceipt)
            assert isinstance(bad, NotEnoughReplicasError)
            assert await read(cluster, 3, "single") == ["good"]
