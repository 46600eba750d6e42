"""A few seeds of the simulation of whole nodes; ``python -m tests.sim.nodes`` runs any number.

Seeds that once found something stay here, each with a sentence.
"""

import pytest

from tests.sim.nodes.campaign import run_campaign
from tests.sim.nodes.history import History, Write
from tests.sim.seeds import seeds

SEEDS = seeds(5, quick=2)
WRITES_MIN = 30
"""A run in which hardly anything was written shows nothing."""


@pytest.mark.parametrize("seed", SEEDS)
def test_promises_hold_under_faults(seed: int) -> None:
    campaign = run_campaign(seed, seconds=15)
    assert campaign.history.problems == [], campaign.events
    # Not a share of all writes: a node that is cut off refuses at once, and is asked again at once.
    acknowledged = [w for w in campaign.history.writes.values() if w.offset is not None]
    assert len(acknowledged) > WRITES_MIN


def test_a_seed_repeats_itself() -> None:
    one, two = run_campaign(7, seconds=5), run_campaign(7, seconds=5)
    assert one.events == two.events
    assert one.history == two.history


class TestJudge:
    """The judge itself: each kind of fault is found."""

    def judged(self, *writes: Write, copies: list[list[str]], read: str = "") -> list[str]:
        history = History({write.value: write for write in writes})
        if read:
            history.on_read(0, 0, read, "node 1")
        return [problem.partition(":")[0] for problem in history.judge({0: copies})]

    def test_what_is_as_it_should_be(self) -> None:
        assert self.judged(Write("a", 0, 0), copies=[["a"], ["a"]], read="a") == []

    def test_lost_write(self) -> None:
        assert self.judged(Write("a", 0, 0), copies=[[]]) == ["lost-write"]

    def test_acknowledged_elsewhere(self) -> None:
        writes = Write("a", 0, 1), Write("b", 0, 0)
        assert self.judged(*writes, copies=[["a", "b"]]) == ["lost-write", "lost-write"]

    def test_duplicate(self) -> None:
        assert self.judged(Write("a", 0, 0), copies=[["a", "a"]]) == ["duplicate"]

    def test_refused_but_there(self) -> None:
        refused = Write("a", 0, is_refused=True)
        assert self.judged(refused, copies=[["a"]]) == ["refused-but-there"]

    def test_unsent(self) -> None:
        assert self.judged(copies=[["x"]]) == ["unsent"]

    def test_diverged(self) -> None:
        writes = Write("a", 0), Write("b", 0)
        assert self.judged(*writes, copies=[["a"], ["b"]]) == ["diverged"]

    def test_aborted_read(self) -> None:
        assert self.judged(Write("a", 0), copies=[[]], read="a") == ["aborted-read"]

    def test_inconsistent_offsets(self) -> None:
        history = History()
        history.on_read(0, 0, "a", "node 1")
        history.on_read(0, 0, "b", "node 2")
        assert len(history.problems) == 1
