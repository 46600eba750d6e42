"""Rules of reads that wait for the disk: few at once, in turn, and none that is in memory among them."""

import asyncio

from milena.model.errors import CorruptLogError
from node.replica.runner import PartitionRunner
from node.services.reads import COLD_READS_MAX, COLD_REST_S_MAX
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.clusters.overtaken import written
from tests.support.clusters.runners import values_of
from tests.support.clusters.transacting import send, two_topics
from tests.support.time.virtual_time import settle, virtual

LEADER = 2


class SlowDisk:
    """Nothing of a leader's log is in memory, and reads of it end when the test says so.

    ``is_late``: they have read by then, and are heard of later.
    """

    def __init__(self, runner: PartitionRunner, *, is_late: bool = False) -> None:
        self._is_late = is_late
        self.under_way: list[asyncio.Future[None]] = []
        self.is_warm = False
        self._read, self._read_cached = runner.read, runner.read_cached
        runner.read = self.read  # type: ignore[method-assign]
        runner.read_cached = self.read_cached  # type: ignore[method-assign]

    def read_cached(self, offset: int, *, max_bytes: int, end_offset: int) -> bytes | None:
        if not self.is_warm:
            return None
        return self._read_cached(offset, max_bytes=max_bytes, end_offset=end_offset)

    async def read(self, offset: int, *, max_bytes: int, end_offset: int) -> bytes:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.under_way.append(waiting)
        if self._is_late:
            found = await self._read(offset, max_bytes=max_bytes, end_offset=end_offset)
            await waiting
            return found
        await waiting
        return await self._read(offset, max_bytes=max_bytes, end_offset=end_offset)

    async def finish(self, error: Exception | None = None) -> None:
        """The read that began first is done."""
        waiting = self.under_way.pop(0)
        if error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)
        await settle()


async def readers_of(cluster: Cluster, count: int) -> "tuple[SlowDisk, list[asyncio.Task[bytes]]]":
    """So many clients that want a cold record."""
    await written(cluster, "a")
    node = cluster.nodes[LEADER]
    (runner,) = node.replicas
    disk = SlowDisk(runner)

    async def fetch() -> bytes:
        return (await node.fetch("t", 0)).batches

    tasks = [asyncio.create_task(fetch()) for _ in range(count)]
    await settle()
    return disk, tasks


@virtual
async def test_few_readers_wait_for_the_disk_at_once_and_all_get_their_turn() -> None:
    async with cluster_of() as cluster:
        disk, tasks = await readers_of(cluster, COLD_READS_MAX + 3)
        for left in range(COLD_READS_MAX + 3, 0, -1):
            assert len(disk.under_way) == min(left, COLD_READS_MAX)
            await disk.finish()
        found = [values_of(batches) for batches in await asyncio.gather(*tasks)]
        assert found == [["a"]] * (COLD_READS_MAX + 3)


@virtual
async def test_who_finds_its_records_in_memory_does_not_wait() -> None:
    async with cluster_of() as cluster:
        disk, tasks = await readers_of(cluster, COLD_READS_MAX + 1)
        disk.is_warm = True
        result = await cluster.nodes[LEADER].fetch("t", 0)
        assert values_of(result.batches) == ["a"]
        assert not any(task.done() for task in tasks)
        for _ in range(COLD_READS_MAX + 1):
            await disk.finish()
        await asyncio.gather(*tasks)


@virtual
async def test_a_client_that_hangs_up_keeps_its_turn_until_its_read_is_done() -> None:
    async with cluster_of() as cluster:
        disk, tasks = await readers_of(cluster, COLD_READS_MAX + 1)
        for task in tasks[:COLD_READS_MAX]:
            task.cancel()
        await settle()
        assert len(disk.under_way) == COLD_READS_MAX
        await disk.finish(CorruptLogError("nobody is told"))
        assert len(disk.under_way) == COLD_READS_MAX
        while disk.under_way:
            await disk.finish()
        assert values_of(await tasks[-1]) == ["a"]


@virtual
async def test_one_that_waits_in_turn_may_hang_up() -> None:
    async with cluster_of() as cluster:
        disk, tasks = await readers_of(cluster, COLD_READS_MAX + 2)
        tasks[COLD_READS_MAX].cancel()
        await settle()
        for _ in range(COLD_READS_MAX + 1):
            await disk.finish()
        assert disk.under_way == []
        assert values_of(await tasks[-1]) == ["a"]


@virtual
async def test_a_read_that_fails_makes_room_for_the_next() -> None:
    async with cluster_of() as cluster:
        disk, tasks = await readers_of(cluster, COLD_READS_MAX + 1)
        await disk.finish(CorruptLogError("a bad sector"))
        assert len(disk.under_way) == COLD_READS_MAX
        while disk.under_way:
            await disk.finish()
        assert values_of(await tasks[0]) == ["a"], "another replica has it"
        assert values_of(await tasks[-1]) == ["a"]


@virtual
async def test_a_disk_that_syncs_for_writers_rests_as_long_as_a_cold_read_took() -> None:
    async with cluster_of() as cluster:
        node = cluster.nodes[LEADER]
        disk, tasks = await readers_of(cluster, COLD_READS_MAX + 2)

        async def synced_meanwhile(seconds: float) -> None:
            disk.is_warm = True  # for the follower
            await asyncio.sleep(seconds)
            await node.write("t", "b")
            disk.is_warm = False

        await synced_meanwhile(0.02)
        await disk.finish()
        assert tasks[0].done(), "its own reader does not wait"
        await asyncio.sleep(0.015)
        assert disk.under_way == []
        await asyncio.sleep(0.04)
        assert len(disk.under_way) == COLD_READS_MAX
        await synced_meanwhile(5)
        await disk.finish()
        await asyncio.sleep(COLD_REST_S_MAX + 0.001)
        assert len(disk.under_way) == COLD_READS_MAX, "it rests no longer than that"
        await disk.finish()
        await asyncio.gather(*tasks)


@virtual
async def test_what_is_deleted_while_the_disk_is_read_is_still_known_to_be_aborted() -> None:
    async with cluster_of() as cluster:
        await two_topics(cluster)
        node = cluster.nodes[1]
        one = await node.transactions.begin("me", timeout_ms=60_000)
        await send(cluster, 1, one, "t", "aborted")
        await node.transactions.abort(one, timeout_ms=1_000)
        await node.write("t", "a")
        runner = cluster.runner(1, "t")
        await cluster.until(lambda: runner.stable_end == 3)
        disk = SlowDisk(runner, is_late=True)
        reading = asyncio.create_task(node.fetch("t", 0))
        await settle()
        assert await node.delete_records("t", 2) == 2
        assert not runner.log.writers.transactions.aborted
        await disk.finish()
        assert values_of((await reading).batches) == ["a"]
