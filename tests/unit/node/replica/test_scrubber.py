"""What rots in stored segments of a running cluster is found, and restored before anybody reads it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from random import Random

import pytest

from http_api.formats.selection import select
from milena.model.errors import DiskFullError, ReplicaDamagedError, UnavailableError
from milena.model.requests import Acks, Doubt, IdempotencyKey, ProduceRequest, Records
from milena.model.types import ReplicaHealth
from node.config.budgets import SCRUB_RETRY_MS
from node.metrics.counts import ScrubCounts
from node.replica.runner import PartitionRunner
from node.replica.scrubber import CopyGiver, Scrubber
from storage.segments.segment import LOG_SUFFIX
from tests.support.clusters.compacted_cluster import CONFIGS, compact, update, write
from tests.support.clusters.nodes import Cluster, cluster_of, outcome
from tests.support.clusters.runners import values_of
from tests.support.time.virtual_time import LoopClock, virtual

VALUES = [str(number) for number in range(8) for _ in range(4)]


def scrubber_of(cluster: Cluster, node_id: int, *, bytes_per_s: int = 1 << 30) -> Scrubber:
    node = cluster.nodes[node_id]
    return Scrubber(
        runners=node.replicas,
        settled=node.replicas.settled,
        clock=LoopClock(),
        pool=node.pool,
        bytes_per_s=bytes_per_s,
        interval_ms=60_000,
        counts=ScrubCounts(),
        giver=CopyGiver(
            metadata=node.metadata,
            standing=node.membership,
        ),
        rng=Random(1),
    )


async def sealed(cluster: Cluster, **configs: str) -> None:
    """Topic ``t`` on all nodes, led by 1: two closed segments below the recovery point, and a third one that grows."""
    await cluster.create("t", (1, 2, 3), segment_ms="1000", **configs)
    for _ in range(2):
        await update(cluster, 4)
        await roll(cluster)
    for node_id in (1, 2, 3):
        log = cluster.runner(node_id, "t").log
        assert (len(log.state.table.segments), log.replica.checkpoint.recovery_point) == (3, 32)


async def roll(cluster: Cluster) -> None:
    """Close the segments that hold what was written, and let a checkpoint cover them."""
    for node in cluster.nodes.values():
        for runner in node.replicas:
            runner.upkeep.maybe_roll()
    await LoopClock().sleep(2_500)


def rot(cluster: Cluster, node_id: int, *, byte: int = 400, segment: int = 0) -> str:
    """Flip a bit of a sealed segment; returns the file's path."""
    directory = cluster.runner(node_id, "t").log.replica.directory
    paths = [p for p in cluster.files[node_id].paths() if p.startswith(directory)]
    path = [p for p in paths if p.endswith(LOG_SUFFIX)][segment]
    cluster.files[node_id].flip_bit(path, byte)
    return path


def content(cluster: Cluster, node_id: int) -> list[bytes]:
    log = cluster.runner(node_id, "t").log
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        found.append(log.read_span(offset, max_bytes=1))
        offset += 4
    return found


async def healed(cluster: Cluster, node_id: int) -> None:
    def is_healed() -> bool:
        runner = cluster.runner(node_id, "t")
        isr = () if runner.state is None else runner.state.isr
        return runner.log.health is ReplicaHealth.SOUND and set(isr) == {1, 2, 3}

    await cluster.until(is_healed)
    assert content(cluster, node_id) == content(cluster, 2 if node_id == 1 else 1)


@virtual
async def test_what_is_whole_is_counted_and_left_alone() -> None:
    async with cluster_of() as cluster:
        await sealed(cluster)
        scrubber = scrubber_of(cluster, 1)
        await scrubber.look()
        counts = scrubber.counts
        sizes = [s.size_bytes for s in cluster.runner(1, "t").log.state.table.segments[:-1]]
        assert (counts.checked_bytes, counts.damages, counts.passes) == (sum(sizes), 0, 1)
        assert counts.last_pass_ms == LoopClock().wall_ms()


@pytest.mark.parametrize("node_id", [1, 2])
@pytest.mark.parametrize(("segment", "byte"), [(0, 0), (0, 400), (1, 3), (1, 480)])
@virtual
async def test_rot_is_found_and_restored_while_readers_and_writers_notice_nothing(
    node_id: int, segment: int, byte: int, caplog: pytest.LogCaptureFixture
) -> None:
    """On the leader, node 1, and on a follower."""
    async with cluster_of() as cluster:
        await sealed(cluster)
        path = rot(cluster, node_id, byte=byte, segment=segment)
        whole_at = 0 if segment else 16
        seen: list[list[str]] = []
        is_over = False

        async def read() -> None:
            while not is_over:
                for reader in (1, 2, 3):
                    whole = await cluster.nodes[reader].fetch("t", whole_at, max_bytes=1)
                    assert whole.batches
                    tail = await cluster.nodes[reader].fetch(
                        "t", whole.high_watermark, timeout_ms=5
                    )
                    assert tail.high_watermark >= 32
                    seen.append(values_of(whole.batches))
                await LoopClock().sleep(1)

        async def write_on() -> int:
            count = 0
            while not is_over:
                await write(cluster, ("key", f"later-{count}"))
                count += 1
                await LoopClock().sleep(3)
            return count

        tasks = [asyncio.create_task(read()), asyncio.create_task(write_on())]
        scrubber = scrubber_of(cluster, node_id)
        await scrubber.look()
        await healed(cluster, node_id)
        await LoopClock().sleep(50)
        is_over = True
        _, written = await asyncio.gather(*tasks)
        # Followers hear a moment later that the last record is committed.
        await LoopClock().sleep(50)
        assert len(seen) > 10
        assert all(values == ["0"] * 4 for values in seen)
        assert scrubber.counts.damages == 1
        line = next(r.getMessage() for r in caplog.records if "damage found" in r.getMessage())
        assert f"segment={path}" in line
        assert f"offset={16 * segment}" in line or byte > 300
        state = cluster.runner(2, "t").state
        assert state is not None
        assert (state.leader == 1) is (node_id != 1)
        for reader in (1, 2, 3):
            values = await cluster.nodes[reader].read("t", is_local=True)
            assert values[:32] == [str(n) for _ in range(2) for n in range(4) for _ in range(4)]
            assert values[32:] == [f"later-{n}" for n in range(written)]
        await scrubber_of(cluster, node_id).look()
        assert scrubber.counts.damages == 1


@virtual
async def test_the_last_copy_is_kept_until_another_one_is_in_sync() -> None:
    async with cluster_of() as cluster:
        await sealed(cluster, **{"min.insync.replicas": "1"})
        await cluster.kill(2)
        await cluster.kill(3)
        await cluster.restart(3)
        await cluster.until(lambda: cluster.runner(1, "t").role.value == "leader")
        cluster.network.cut(1, 3)
        rot(cluster, 1, segment=1, byte=480)
        runner = cluster.runner(1, "t")
        scrubber = scrubber_of(cluster, 1)
        tasks = [asyncio.create_task(work) for work in (scrubber.run(), scrubber.attend())]
        await cluster.until(lambda: scrubber.counts.damages == 1)
        if runner.state is not None and runner.state.isr == (1,):
            assert scrubber.counts.held == 1
            assert runner.log.health is ReplicaHealth.SOUND
            assert runner.log.read_span(0, max_bytes=1)
        cluster.heal()
        await cluster.restart(2)
        await LoopClock().sleep(2 * SCRUB_RETRY_MS)
        await healed(cluster, 1)
        for task in tasks:
            task.cancel()
        assert scrubber.counts.held == 0


@virtual
async def test_a_compacted_log_is_copied_anew() -> None:
    async with cluster_of() as cluster:
        await sealed(cluster, **{k: v for k, v in CONFIGS.items() if k != "segment_ms"})
        rot(cluster, 3)
        await scrubber_of(cluster, 3).look()
        await healed(cluster, 3)


@virtual
async def test_a_copy_made_anew_knows_the_writers_of_what_was_deleted() -> None:
    """Nothing in what it copies tells of them, and it may be the one that is asked again."""
    write_once = ProduceRequest(
        topic="t",
        records=Records(keys=[b"key"], values=[b"once"]),
        acks=Acks.ALL,
        timeout_ms=1_000,
        partition=0,
        idempotency=IdempotencyKey(key_hash=b"k" * 16, body_hash=b"b" * 8),
    )
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3), **CONFIGS)
        assert await outcome(cluster.nodes[1].produce.produce(write_once)) == [0]
        await update(cluster, 4)
        await roll(cluster)
        assert await cluster.nodes[1].delete_records("t", 1) == 1
        rot(cluster, 3)
        await scrubber_of(cluster, 3).look()
        await healed(cluster, 3)
        await cluster.kill(1)
        await cluster.kill(2)
        await cluster.restart(2)
        await cluster.until(lambda: cluster.leader_of("t") == 3 and cluster.is_led("t"))
        assert await outcome(cluster.nodes[3].produce.produce(write_once)) == [0]


@virtual
async def test_a_restart_between_finding_and_restoring_finds_it_again() -> None:
    async with cluster_of() as cluster:
        await sealed(cluster)
        rot(cluster, 3, segment=1)
        cluster.nodes[3].replicas.fetchers.assign(cluster.runner(3, "t"), None)
        await scrubber_of(cluster, 3).look()
        assert cluster.runner(3, "t").log.health is ReplicaHealth.DAMAGED
        await cluster.kill(3, power=True)
        await cluster.restart(3)
        await LoopClock().sleep(1_000)
        await healed(cluster, 3)


@virtual
async def test_it_keeps_below_its_rate_and_rests_between_passes() -> None:
    async with cluster_of() as cluster:
        await sealed(cluster)
        scrubber = scrubber_of(cluster, 1, bytes_per_s=1_000)
        began_ms = LoopClock().now_ms()
        await scrubber.look()
        assert LoopClock().now_ms() - began_ms + 1_000 >= scrubber.counts.checked_bytes
        scrubber = scrubber_of(cluster, 1)
        task = asyncio.create_task(scrubber.run())
        await LoopClock().sleep(150_000)
        assert scrubber.counts.passes == 3
        task.cancel()


@virtual
async def test_a_rate_of_zero_turns_it_off() -> None:
    async with cluster_of() as cluster:
        await scrubber_of(cluster, 1, bytes_per_s=0).run()


@virtual
async def test_the_first_pass_comes_to_the_replicas_that_a_start_opens() -> None:
    """They are there once the node has heard what it holds; a pass before that would be one through nothing."""
    async with cluster_of() as cluster:
        await sealed(cluster)
        rot(cluster, 3, segment=1)
        await cluster.kill(3)
        await cluster.restart(3)
        scrubber = scrubber_of(cluster, 3)
        task = asyncio.create_task(scrubber.run())
        await cluster.until(lambda: scrubber.counts.passes == 1)
        assert scrubber.counts.damages == 1
        await healed(cluster, 3)
        task.cancel()


@contextlib.asynccontextmanager
async def attended(cluster: Cluster, node_id: int) -> AsyncIterator[Scrubber]:
    """A scrubber that makes no passes, and hears of doubts."""
    scrubber = scrubber_of(cluster, node_id, bytes_per_s=0)
    cluster.nodes[node_id].scrubber = scrubber
    task = asyncio.create_task(scrubber.attend())
    yield scrubber
    task.cancel()


async def behind(cluster: Cluster, *, is_sealed: bool) -> None:
    """Node 3 is away, and of what it lacks there are four batches in the leader's third segment."""
    await sealed(cluster)
    await cluster.kill(3)
    await cluster.until(lambda: 3 not in cluster.isr_of("t"))
    await update(cluster, 4)
    if is_sealed:
        cluster.runner(1, "t").upkeep.maybe_roll()
        await LoopClock().sleep(1_500)
    assert len(cluster.runner(1, "t").log.state.table.segments) == (4 if is_sealed else 3)


@pytest.mark.parametrize("is_sealed", [True, False], ids=["sealed", "growing"])
@pytest.mark.parametrize("byte", [3, 400])
@virtual
async def test_what_a_follower_refuses_is_checked_at_once_and_another_replica_leads(
    byte: int, is_sealed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The leader sends the same each time: a replica that has to copy it would never be in sync."""
    async with cluster_of() as cluster:
        await behind(cluster, is_sealed=is_sealed)
        async with attended(cluster, 1) as scrubber:
            rot(cluster, 1, segment=2, byte=byte)
            node = await cluster.restart(3)
            await cluster.until(
                lambda: node.health.readiness().is_ready, 2 * SCRUB_RETRY_MS + 2_000
            )
            assert 3 in cluster.isr_of("t")
            # The leader may still have the last batch in memory, sound, and only its file is damaged.
            await cluster.until(lambda: scrubber.counts.damages == 1, SCRUB_RETRY_MS + 2_000)
            await healed(cluster, 1)
            assert (scrubber.counts.damages, scrubber.counts.held) == (1, 0)
            assert "damage found" in caplog.text
        for node_id in (1, 2, 3):
            values = await cluster.nodes[node_id].read("t", is_local=True)
            assert values == [str(n) for _ in range(3) for n in range(4) for _ in range(4)]


@pytest.mark.parametrize("byte", [3, 100, 400])
@virtual
async def test_damage_in_the_segment_after_the_one_where_a_fetch_begins_is_found(byte: int) -> None:
    """The follower takes the sound batches, so that its next fetch begins at the damage."""
    async with cluster_of() as cluster:
        await behind(cluster, is_sealed=True)
        await update(cluster, 4)
        async with attended(cluster, 1) as scrubber:
            rot(cluster, 1, segment=3, byte=byte)
            node = await cluster.restart(3)
            await cluster.until(
                lambda: node.health.readiness().is_ready, 2 * SCRUB_RETRY_MS + 4_000
            )
            await cluster.until(lambda: scrubber.counts.damages == 1, SCRUB_RETRY_MS + 2_000)
            await healed(cluster, 1)
            assert (scrubber.counts.damages, scrubber.counts.held) == (1, 0)


@contextlib.asynccontextmanager
async def scrubbing(cluster: Cluster) -> AsyncIterator[None]:
    """Scrubbers of all nodes."""
    tasks = []
    for node_id, node in cluster.nodes.items():
        scrubber = node.scrubber = scrubber_of(cluster, node_id)
        tasks += [asyncio.create_task(work()) for work in (scrubber.run, scrubber.attend)]
    yield
    for task in tasks:
        task.cancel()


@pytest.mark.parametrize("byte", [0, 400])
@virtual
async def test_nodes_become_ready_if_every_copy_is_damaged_at_the_same_place(byte: int) -> None:
    """Only deleting the damaged records helps. Meanwhile the followers serve the other partitions."""
    async with cluster_of() as cluster:
        await sealed(cluster, **{"min.insync.replicas": "1"})
        for node_id in cluster.node_ids:
            rot(cluster, node_id, byte=byte)
        for node_id in cluster.node_ids:
            await cluster.kill(node_id)
        await cluster.start()
        async with scrubbing(cluster):
            await cluster.until(lambda: len(cluster.isr_of("t")) == 1)
            (leader_id,) = cluster.isr_of("t")
            leader = cluster.nodes[leader_id]
            await cluster.until(
                lambda: all(n.health.readiness().is_ready for n in cluster.nodes.values())
            )
            assert cluster.isr_of("t") == (leader_id,)
            assert values_of((await leader.fetch("t", 16)).batches)[0] == "0"
            await leader.delete_records("t", 16)
            await cluster.until(lambda: set(cluster.isr_of("t")) == {1, 2, 3})
            await LoopClock().sleep(SCRUB_RETRY_MS)
            assert [n.scrubber.counts.held for n in cluster.nodes.values()] == [0, 0, 0]


@virtual
async def test_a_node_is_not_ready_while_another_replica_may_restore_what_the_leader_cannot_send(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two copies are damaged at the same place. The third one is sound, and out of sync for a moment."""
    real, is_slow = PartitionRunner.append_as_follower, False

    def append(self: PartitionRunner, batches: bytes, *, leader_epoch: int) -> None:
        if is_slow and 2 in cluster.nodes and self is cluster.runner(2, "t"):
            raise UnavailableError("it is slow")
        real(self, batches, leader_epoch=leader_epoch)

    monkeypatch.setattr(PartitionRunner, "append_as_follower", append)
    async with cluster_of() as cluster:
        await sealed(cluster)
        await cluster.kill(2)
        await cluster.until(lambda: cluster.isr_of("t") == (1, 3))
        await update(cluster, 4)
        rot(cluster, 1)
        rot(cluster, 3)
        async with scrubbing(cluster):
            await cluster.until(lambda: len(cluster.isr_of("t")) == 1)
            (leader_id,) = cluster.isr_of("t")
            node, runner = cluster.nodes[4 - leader_id], cluster.runner(4 - leader_id, "t")
            await cluster.until(lambda: runner.has_no_source)
            is_slow = True
            slow = await cluster.restart(2)
            await cluster.until(lambda: slow.membership.is_unfenced)
            await cluster.until(lambda: not runner.has_no_source)
            for _ in range(60):
                await LoopClock().sleep(250)
                assert "catching up" in node.health.readiness().reason
            is_slow = False
            await cluster.until(lambda: node.health.readiness().is_ready)
            assert set(cluster.isr_of("t")) >= {2, node.node_id}
            await healed(cluster, leader_id)


@pytest.mark.parametrize("is_sealed", [True, False], ids=["sealed", "growing"])
@virtual
async def test_who_doubts_may_be_off_the_mark(
    is_sealed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near the place all is whole, farther on it is not."""
    monkeypatch.setattr("storage.segments.scrub.NEAR_BYTES", 1)
    async with cluster_of() as cluster:
        await behind(cluster, is_sealed=is_sealed)
        async with attended(cluster, 1) as scrubber:
            rot(cluster, 1, segment=2, byte=400)
            scrubber.doubt(cluster.runner(1, "t"), 32)
            await cluster.until(lambda: scrubber.counts.damages == 1, SCRUB_RETRY_MS + 2_000)
            await cluster.restart(3)
            await healed(cluster, 1)


@pytest.mark.parametrize("is_sealed", [True, False], ids=["sealed", "growing"])
@virtual
async def test_what_is_whole_is_left_alone_whoever_doubts_it(is_sealed: bool) -> None:
    """Records may be spoilt on their way, or where they arrive."""
    async with cluster_of() as cluster:
        await behind(cluster, is_sealed=is_sealed)
        log = cluster.runner(1, "t").log
        segments, epoch = len(log.state.table.segments), cluster.runner(1, "t").leader_epoch
        async with attended(cluster, 1) as scrubber:
            for offset in (32, 47, 48, None):
                scrubber.doubt(cluster.runner(1, "t"), offset)
                await LoopClock().sleep(SCRUB_RETRY_MS + 500)
                assert not scrubber._doubts
        assert scrubber.counts.checked_bytes > 0
        assert scrubber.counts.damages == 0
        assert (len(log.state.table.segments), cluster.runner(1, "t").leader_epoch) == (
            segments,
            epoch,
        )


@virtual
async def test_what_is_gone_by_now_is_doubted_no_more() -> None:
    async with cluster_of() as cluster:
        await behind(cluster, is_sealed=False)
        runner = cluster.runner(1, "t")
        runner.log.rolling.close_segment(47)
        runner.log.start.advance(48)
        async with attended(cluster, 1) as scrubber:
            for offset in (32, 47, None):
                scrubber.doubt(runner, offset)
                await LoopClock().sleep(SCRUB_RETRY_MS + 500)
                assert not scrubber._doubts
        assert scrubber.counts.damages == 0


def refuse_to_create(kind: str, path: str) -> None:
    if kind == "create":
        raise DiskFullError(path)


@virtual
async def test_a_doubted_segment_that_grows_stays_open_while_there_is_no_room() -> None:
    async with cluster_of() as cluster:
        await behind(cluster, is_sealed=False)
        async with attended(cluster, 1) as scrubber:
            files, log = cluster.files[1], cluster.runner(1, "t").log
            rot(cluster, 1, segment=2)
            files.on_operation = refuse_to_create
            scrubber.doubt(cluster.runner(1, "t"), 32)
            await LoopClock().sleep(SCRUB_RETRY_MS + 500)
            assert (len(log.state.table.segments), scrubber.counts.damages) == (3, 0)
            files.on_operation = None
            scrubber.doubt(cluster.runner(1, "t"), 32)
            await LoopClock().sleep(SCRUB_RETRY_MS + 500)
            assert scrubber.counts.damages == 1


@virtual
async def test_a_replica_that_is_closed_is_doubted_no_more() -> None:
    async with cluster_of() as cluster:
        await sealed(cluster)
        async with attended(cluster, 1) as scrubber:
            runner = cluster.runner(1, "t")
            for offset in (0, 32, None):
                scrubber.doubt(runner, offset)
                await cluster.nodes[1].admin.delete_topic("t") if offset == 0 else None
                await LoopClock().sleep(SCRUB_RETRY_MS + 500)
                assert not scrubber._doubts
            assert runner.is_closed
            assert scrubber.counts.checked_bytes == 0


@pytest.mark.parametrize("byte", [0, 100, 400])
@virtual
async def test_a_copy_with_damage_in_two_segments_is_restored_and_ends_no_node(byte: int) -> None:
    """A reader met the later damage. The copy is cut before it, and the cut reads the earlier damage."""
    async with cluster_of() as cluster:
        await sealed(cluster)
        rot(cluster, 2, segment=0, byte=byte)
        rot(cluster, 2, segment=1, byte=480)
        runner = cluster.runner(2, "t")
        scrubber = scrubber_of(cluster, 2)
        attending = asyncio.create_task(scrubber.attend())
        scrubber.doubt(runner, runner.log.state.table.segments[1].base_offset)
        await cluster.until(lambda: runner.is_damaged)
        await healed(cluster, 2)
        attending.cancel()


@virtual
async def test_a_copy_with_damage_in_two_segments_ends_no_node_if_its_first_records_are_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It hears of the deletion before it gets the records behind the damage."""
    async with cluster_of() as cluster:
        await sealed(cluster)
        rot(cluster, 2, segment=0, byte=0)
        rot(cluster, 2, segment=1, byte=480)
        runner = cluster.runner(2, "t")
        monkeypatch.setattr(runner, "append_as_follower", held_back)
        scrubber = scrubber_of(cluster, 2)
        attending = asyncio.create_task(scrubber.attend())
        scrubber.doubt(runner, runner.log.state.table.segments[1].base_offset)
        await cluster.until(lambda: runner.log.state.has_remains)
        epoch, end = runner.leader_epoch, runner.high_watermark
        with pytest.raises(ReplicaDamagedError):
            runner.advance_as_follower(leader_epoch=epoch, high_watermark=end, log_start=8)
        assert (runner.log.log_end_offset, runner.high_watermark) == (0, 0)
        monkeypatch.undo()
        await healed(cluster, 2)
        attending.cancel()


def held_back(batches: bytes, *, leader_epoch: int) -> None:
    raise UnavailableError("the batches do not arrive")


@virtual
async def test_a_log_whose_compaction_met_damage_is_checked() -> None:
    async with cluster_of() as cluster:
        await sealed(cluster, **{k: v for k, v in CONFIGS.items() if k != "segment_ms"})
        async with attended(cluster, 1) as scrubber:
            rot(cluster, 1, segment=1)
            await compact(cluster, 1)
            await LoopClock().sleep(SCRUB_RETRY_MS)
            await healed(cluster, 1)
            assert scrubber.counts.damages == 1


async def read_all(cluster: Cluster, node_id: int) -> list[str]:
    """As the API reads for its clients, until the end or a batch that is not whole, which it says."""
    node, found, offset = cluster.nodes[node_id], list[str](), 0
    while True:
        result = await node.fetch("t", offset)
        chosen = select(result, count=None, bytes_max=1 << 20)
        found += [(value or b"").decode() for piece in chosen.slices for value in piece.values]
        if chosen.damaged_at is not None:
            doubt = Doubt(
                topic="t", partition=0, offset=chosen.damaged_at, broker_id=result.broker_id
            )
            await node.reads.doubt(doubt)
            return found
        if chosen.next_offset in {offset, result.high_watermark}:
            return found
        offset = chosen.next_offset


@pytest.mark.parametrize("is_sealed", [True, False], ids=["sealed", "growing"])
@pytest.mark.parametrize("reader", [1, 4])
@virtual
async def test_what_a_reader_decodes_in_vain_is_checked_at_once_and_another_replica_leads(
    reader: int, is_sealed: bool
) -> None:
    """On the leader, node 1, and on a node without a copy, which asks the leader."""
    values = [str(n) for _ in range(3) for n in range(4) for _ in range(4)]
    async with cluster_of(Cluster(node_ids=(1, 2, 3, 4))) as cluster:
        await sealed(cluster)
        await update(cluster, 4)
        async with attended(cluster, 1) as scrubber:
            rot(cluster, 1, segment=1 if is_sealed else 2, byte=100)
            sound = await read_all(cluster, reader)
            assert sound == values[: 16 if is_sealed else 32]
            assert len(scrubber._doubts) == 1
            await cluster.until(lambda: cluster.leader_of("t") != 1, SCRUB_RETRY_MS + 1_000)
            assert await read_all(cluster, reader) == values
            await healed(cluster, 1)
            assert await read_all(cluster, reader) == values
            assert (scrubber.counts.damages, scrubber.counts.held) == (1, 0)


@virtual
async def test_however_many_readers_fail_a_replica_is_checked_once_at_a_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1,), segment_ms="1000", min_insync_replicas="1")
        await update(cluster, 4)
        cluster.runner(1, "t").upkeep.maybe_roll()
        await update(cluster, 4)
        async with attended(cluster, 1) as scrubber:
            runner = cluster.runner(1, "t")
            rot(cluster, 1)
            for _ in range(100):
                scrubber.doubt(runner, 12)
            await LoopClock().sleep(SCRUB_RETRY_MS + 500)
            assert (scrubber.counts.damages, scrubber.counts.held) == (1, 1)
            checked = scrubber.counts.checked_bytes
            for _ in range(100):
                scrubber.doubt(runner, 12)
                assert not scrubber._doubts, "it is known"
            await LoopClock().sleep(SCRUB_RETRY_MS + 500)
            assert scrubber.counts.checked_bytes == checked
            met = [r for r in caplog.records if "damage met" in r.getMessage()]
            assert len(met) == 1
