"""The checker inside of a run finds differences from committed records."""

from types import SimpleNamespace
from typing import Any

import pytest

from milena.model.batch.header import ProducerStamp
from node.replica.leader import IsrProposal
from tests.sim.cluster.clients import numbered_batch
from tests.sim.cluster.invariants import Checker, Ledger, ViolationError
from tests.sim.cluster.world import Options, World
from tests.support.clusters.runners import Bench, batch, leading
from tests.support.time.virtual_time import settle, virtual

KEY = ("t", 0)
STAMP = ProducerStamp(1, 0, 0)


def test_replicas_that_differ_below_a_high_watermark_are_noticed() -> None:
    checker, ledger = World(1, Options(parts=())).checker, Ledger()
    assert checker._compare("one", ledger, numbered_batch("a", STAMP), 1, is_compacted=False) == 1
    assert checker._compare("same", ledger, numbered_batch("a", STAMP), 1, is_compacted=False) == 1
    with pytest.raises(ViolationError, match="offset 0 was committed as a, is b'b'"):
        checker._compare("other", ledger, numbered_batch("b", STAMP), 1, is_compacted=False)


def test_what_was_read_and_is_not_committed_is_noticed() -> None:
    checker = World(1, Options(parts=())).checker
    checker.ledgers[KEY] = Ledger(values={0: "a"})
    checker.on_read("somebody", KEY, 0, "a")
    with pytest.raises(ViolationError, match="read 'b' at 0/0, where 'a' is committed"):
        checker.on_read("somebody", KEY, 0, "b")
    with pytest.raises(ViolationError, match="read 'b' at 0/1, where None is committed"):
        checker.on_read("somebody", KEY, 1, "b")


class TestLastRiseOfALeader:
    """A leader's high watermark may rise in the event in which the leadership ends."""

    @staticmethod
    async def one_sync_short(bench: Bench) -> tuple[Checker, Any]:
        """Return a checker of this node, whose leader lacks only the end of its own sync to commit a record."""
        checker = World(1, Options(parts=())).checker
        node = SimpleNamespace(replicas=SimpleNamespace(runners={KEY: bench.runner}))
        process = SimpleNamespace(
            incarnation=1, node=node, machine=SimpleNamespace(node_id=bench.broker_id)
        )
        checker._watches[1], checker._replicas[1] = [], {}
        bench.pool.hold()
        bench.send(batch("a"))
        await settle()
        bench.ack(2)
        checker.check_replicas(process)  # type: ignore[arg-type]
        assert (bench.runner.high_watermark, checker.ledgers[KEY].end) == (0, 0)
        # The sync ends. The loop takes the end in with its next event, which is the caller's.
        bench.pool.release()
        return checker, process

    @virtual
    async def test_it_counts_if_the_leader_becomes_a_follower(self) -> None:
        bench = leading((1, 2))
        checker, process = await self.one_sync_short(bench)
        bench.follow(2)
        assert (bench.runner.leader, bench.runner.high_watermark) == (None, 1)
        checker.check_replicas(process)
        ledger = checker.ledgers[KEY]
        assert (ledger.end, ledger.known_end, ledger.values) == (1, 1, {0: "a"})

    @virtual
    async def test_it_counts_if_the_replica_closes(self) -> None:
        bench = leading((1, 2))
        checker, process = await self.one_sync_short(bench)
        await bench.runner.close(is_clean=False)
        assert bench.runner.leader is None
        checker.check_replicas(process)
        ledger = checker.ledgers[KEY]
        assert (ledger.end, ledger.known_end, ledger.values) == (1, 0, {})

    @virtual
    async def test_what_the_follower_adds_to_it_is_noticed(self) -> None:
        bench = leading((1, 2))
        checker, process = await self.one_sync_short(bench)
        bench.runner.log.append_as_leader([batch("b")], leader_epoch=5, now_ms=1)
        bench.follow(2)
        bench.runner._following.high_watermark = 2
        with pytest.raises(ViolationError, match="watermark 2 is above every leader's, 1"):
            checker.check_replicas(process)

    @virtual
    async def test_a_rise_above_what_a_member_has_stored_is_noticed(self) -> None:
        bench = leading((1, 2))
        checker, process = await self.one_sync_short(bench)
        leader = bench.runner.leader
        assert leader is not None
        bench.runner.log.append_as_leader([batch("b")], leader_epoch=5, now_ms=1)
        bench.follow(2)
        leader.high_watermark = 2
        with pytest.raises(ViolationError, match=r"watermark 2, .* member 1 has stored 1"):
            checker.check_replicas(process)
        leader.stored_end = 2
        with pytest.raises(ViolationError, match=r"watermark 2, .* member 2 has stored 1"):
            checker.check_replicas(process)
        leader.followers[2].stored_end = 2
        members = ((1, 10), (2, 20), (3, 30))
        leader.outstanding.append(IsrProposal(leader_epoch=5, partition_epoch=7, members=members))
        with pytest.raises(ViolationError, match=r"watermark 2, .* member 3 has stored None"):
            checker.check_replicas(process)

    @virtual
    async def test_a_rise_with_too_few_in_sync_is_noticed(self) -> None:
        bench = leading((1, 2))
        checker, process = await self.one_sync_short(bench)
        leader = bench.runner.leader
        assert leader is not None
        bench.follow(2)
        leader.min_insync = 3
        with pytest.raises(ViolationError, match=r"committed with an isr of \[1, 2\]"):
            checker.check_replicas(process)
