"""The checker inside of a run finds differences from committed records."""

import pytest

from milena.model.batch.header import ProducerStamp
from tests.sim.cluster.clients import numbered_batch
from tests.sim.cluster.invariants import Ledger, ViolationError
from tests.sim.cluster.world import Options, World

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
