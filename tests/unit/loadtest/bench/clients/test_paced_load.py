"""Records that become due by the clock: who is late does not make the next one look quick."""

import asyncio

import pytest

from loadtest.bench.clients.paced_load import PacedWriter, delays_s, encode_stamp
from loadtest.bench.servers.subject import batch_of
from milena.model.batch.encode import encode_batch
from milena.model.columns import RecordColumns
from tests.support.time.virtual_time import VirtualLoop


def written(due_s: list[float], takes_s: list[float], *, fails_at: int = -1) -> list[float]:
    """The latencies of records that become due at these times, with sends that take so long."""

    async def run() -> list[float]:
        clock = asyncio.get_running_loop().time
        sent: list[float] = []
        latencies_s: list[float] = []

        async def send(at_s: float) -> bool:
            sent.append(at_s)
            await asyncio.sleep(takes_s[len(sent) - 1])
            return len(sent) - 1 != fails_at

        writer = PacedWriter(send, clock)
        task = asyncio.create_task(writer.run(latencies_s.append))
        began_s = clock()
        for at_s in due_s:
            await asyncio.sleep(began_s + at_s - clock())
            writer.on_due()
        assert writer.oldest_s() == pytest.approx(due_s[-1] - due_s[0])
        await asyncio.sleep(100)
        assert writer.oldest_s() == 0.0
        assert [at_s - began_s for at_s in sent] == pytest.approx(due_s)
        task.cancel()
        return latencies_s

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


def test_a_free_connection_sends_at_once():
    assert written([1.0], [0.5]) == pytest.approx([0.5])


def test_what_becomes_due_meanwhile_counts_from_when_it_was_due():
    assert written([1.0, 2.0, 3.0], [4.0, 0.5, 0.25]) == pytest.approx([4.0, 3.5, 2.75])


def test_what_is_not_acknowledged_has_no_latency_and_holds_up_what_waits():
    assert written([1.0, 2.0], [4.0, 0.5], fails_at=0) == pytest.approx([3.5])


def test_stamps_are_of_one_length_and_are_found_in_stored_batches():
    stamps = [encode_stamp(due_s) for due_s in (0.5, 86_400.0, 9_999_999.25)]
    assert len({len(stamp) for stamp in stamps}) == 1
    columns = RecordColumns(
        offset_deltas=None,
        timestamp_deltas=None,
        keys=None,
        values=[b'"' + stamp + b'xx"' for stamp in stamps],
        headers=None,
    )
    stored = encode_batch(columns, base_timestamp_ms=1) + batch_of(3, 100)
    assert delays_s(stored, 10_000_000.0) == [9_999_999.5, 9_913_600.0, 0.75]
