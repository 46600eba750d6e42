"""Rules of one local replica: who may read what, from where, and what is read on a thread."""

import asyncio
from dataclasses import replace

import pytest

from milena.model.errors import (
    NotReadyError,
    OffsetOutOfRangeError,
)
from milena.model.requests import Acks
from node.replica.runner import ReplicaRole
from tests.support.clusters.runners import leading, values_of
from tests.support.time.virtual_time import settle, virtual


class TestReading:
    @pytest.mark.parametrize(
        ("isr", "eligible", "has_heirs"),
        [((1,), (), False), ((1,), (1,), False), ((1, 2), (), True), ((1,), (2,), True)],
    )
    @virtual
    async def test_a_leader_has_heirs_where_the_controller_may_elect_another(
        self, isr: tuple[int, ...], eligible: tuple[int, ...], has_heirs: bool
    ) -> None:
        """It speaks of its log's end without asking the quorum only where nobody else can have led by then."""
        bench = leading(isr)
        assert bench.runner.state is not None
        bench.image(replace(bench.runner.state, eligible=eligible))
        assert bench.runner.role is ReplicaRole.LEADER
        assert bench.runner.has_heirs is has_heirs

    @virtual
    async def test_a_reader_waits_for_the_commit(self) -> None:
        bench = leading((1, 2))
        waiting = asyncio.ensure_future(bench.runner.wait_readable(0, 60_000))
        await bench.sent("a")
        assert not waiting.done()
        bench.ack(2)
        await settle()
        assert waiting.done()

    @virtual
    async def test_a_reader_waits_no_longer_than_it_said(self) -> None:
        bench = leading((1, 2))
        began = bench.clock.now_ms()
        await bench.runner.wait_readable(0, 700)
        assert bench.clock.now_ms() - began == 700

    @virtual
    async def test_below_the_log_start_is_out_of_range(self) -> None:
        bench = leading()
        await bench.sent("a", "b", acks=Acks.ALL)
        bench.log.start.advance(2)
        with pytest.raises(OffsetOutOfRangeError):
            bench.runner.check_offset(1, has_lease=True)

    @virtual
    async def test_above_the_end_is_judged_by_an_established_leader_only(self) -> None:
        bench = leading((1, 2))
        await bench.sent("a")
        bench.lead((1, 2), epoch=7, version=9)
        bench.runner.check_offset(1, has_lease=True)
        with pytest.raises(NotReadyError):
            bench.runner.check_offset(2, has_lease=True)
        bench.ack(2)
        with pytest.raises(OffsetOutOfRangeError):
            bench.runner.check_offset(2, has_lease=True)
        with pytest.raises(NotReadyError):
            bench.runner.check_offset(2, has_lease=False)

    @virtual
    async def test_a_read_that_misses_the_page_cache_goes_to_a_thread(self) -> None:
        bench = leading()
        for value in ("a", "b"):  # what was appended last is in memory
            await bench.sent(value, acks=Acks.ALL)
        for path in bench.files.paths():
            bench.files.evict(path)
        bench.pool.hold()
        reading = asyncio.ensure_future(bench.runner.read(0, max_bytes=1 << 20, end_offset=1))
        await settle()
        assert not reading.done()
        bench.pool.release()
        assert values_of(await reading) == ["a"]
