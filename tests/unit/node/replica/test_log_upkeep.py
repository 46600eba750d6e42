"""What upkeep may drop of a log that has transactions: nothing of one that is not decided."""

from milena.model.batch.encode import encode_batch
from milena.model.batch.header import ProducerStamp, TransactionExtension
from milena.model.columns import RecordColumns
from milena.model.requests import Acks
from tests.support.clusters.runners import Bench, settings
from tests.support.disk.compacted_log import finish
from tests.support.time.virtual_time import after, settle, virtual

IDENTITY = (7, 0)


def keyed(key: bytes, *, is_transactional: bool = False) -> bytes:
    return encode_batch(
        RecordColumns(None, None, [key], [b"v"], None),
        base_timestamp_ms=1,
        producer=ProducerStamp(*IDENTITY, -1) if is_transactional else None,
        transaction=TransactionExtension(-1, -1, 30_000) if is_transactional else None,
    )


async def segments(**configs: str) -> Bench:
    """Four closed segments of one record each, the second one of an open transaction."""
    bench = Bench(settings=settings(**({"min_insync_replicas": "1"} | configs)))
    bench.lead((1,))
    for number in range(4):
        bench.send(keyed(b"k", is_transactional=number == 1), Acks.ALL)
        await settle()
        bench.log.rolling.close_segment(number)
        bench.log.checkpointing.run(bench.runner.high_watermark, is_forced=True)
    assert (bench.runner.high_watermark, bench.runner.stable_end) == (4, 1)
    return bench


@virtual
async def test_retention_takes_nothing_behind_the_beginning_of_an_open_transaction() -> None:
    bench = await segments(retention_ms="1000")
    await after(5_000)
    bench.runner.upkeep.maybe_apply_retention()
    assert bench.log.log_start_offset == 1
    bench.runner.append_marker(IDENTITY, None)
    await settle()
    bench.runner.upkeep.maybe_apply_retention()
    assert bench.log.log_start_offset == 4


@virtual
async def test_compaction_ends_where_an_open_transaction_begins() -> None:
    bench = await segments(cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
    upkeep = bench.runner.upkeep
    assert upkeep.compaction_need(0).end_offset == 1
    run = upkeep.begin_compaction(0)
    assert run is not None
    finish(bench.log, run)
    assert bench.log.compaction.clean_end == 1
    bench.runner.append_marker(IDENTITY, None)
    await settle()
    assert upkeep.compaction_need(0).end_offset == 4
