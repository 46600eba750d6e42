"""Run a few seeds of Kafka clients in a simulated cluster; ``python -m tests.sim.kafka`` runs any number.

``seeds.txt`` has seeds that once found a fault, one per line: the number, and the fault.
"""

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from milena.model.batch.v2_checks import wrap_v2
from milena.model.errors import MilenaError
from milena.model.types import WallMs
from tests.sim.kafka import records
from tests.sim.kafka.judge import Judge, Tried
from tests.sim.kafka.world import Options, run_world
from tests.sim.seeds import found, seeds

FOUND = Path(__file__).with_name("seeds.txt")


@pytest.mark.parametrize("seed", seeds(6, quick=1))
def test_clients_lose_nothing_and_see_nothing_twice(seed: int) -> None:
    world = run_world(seed)
    assert world.problems == [], [*world.lines, world.options.command(seed)]
    counts = world.judge.counts
    assert counts["copied"] > 50
    assert counts["transactions ok"] > 3
    assert counts["commits"] > 20
    assert counts["assignments"] > 10
    assert world.network.late > 10


@pytest.mark.parametrize(("seed", "why"), found(FOUND))
def test_what_was_found_once_stays_fixed(seed: int, why: str) -> None:
    assert run_world(seed).problems == [], why


def test_a_seed_repeats_itself() -> None:
    options = Options(seconds=2.0)
    one, two = (run_world(7, options) for _ in range(2))
    assert one.judge.counts == two.judge.counts
    assert one.lines == two.lines
    assert one.judge.seen == two.judge.seen


def test_a_failure_names_the_command_that_replays_it() -> None:
    assert Options().command(7) == "python -m tests.sim.kafka --seed 7"
    options = Options(seconds=4, partitions=3)
    words = "python -m tests.sim.kafka --seed 7 --seconds 4 --partitions 3"
    assert options.command(7) == words


def test_every_spoiled_batch_is_one_that_a_node_refuses() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(60):
        rng, sent = Random(seed), records.Sent(7, 0, 5)
        bad = records.spoiled(rng, ["s0:5", "s0:6"][: 1 + seed % 2], sent, is_in_transaction=False)
        with pytest.raises(MilenaError) as refused:
            wrap_v2(memoryview(bad), bytes_max=1 << 20, now_ms=WallMs(1_700_000_000_000))
        kinds[type(refused.value).__name__] += 1
    assert kinds["CorruptBatchError"] > 10
    assert kinds["InvalidRecordError"] > 10


# -- the judge ---------------------------------------------------------------------------------------


def judged(log: list[str], *transactions: Tried) -> list[str]:
    judge = Judge()
    judge.tried += transactions
    judge.judge_logs({("a", 0): log})
    return judge.problems


def tried(fate: str, *values: str) -> Tried:
    return Tried("x", 1, acknowledged={("a", 0): [*values]}, sent={("a", 0): [*values]}, fate=fate)


@pytest.mark.parametrize(
    ("log", "fate", "problem"),
    [
        (["1", "1", "2"], "ok", "more than once"),
        (["1"], "ok", "lacks"),
        (["1"], "aborted", "is aborted"),
        (["1", "2"], "open", "is open"),
        (["1"], "unknown", "is torn"),
        (["2", "1"], "ok", "in this order"),
    ],
)
def test_the_judge_sees_a_broken_transaction(log: list[str], fate: str, problem: str) -> None:
    assert problem in judged(log, tried(fate, "1", "2"))[0]


def test_the_judge_takes_whole_transactions_and_none() -> None:
    assert judged(["1", "2"], tried("ok", "1", "2")) == []
    assert judged([], tried("aborted", "1", "2")) == []
    assert judged([], tried("unknown", "1", "2")) == []


def test_the_judge_sees_owners_of_one_partition() -> None:
    judge = Judge()
    judge.on_assignment("g", 1, "m", frozenset({0, 1}))
    judge.on_assignment("g", 1, "n", frozenset({1}))
    judge.claim("h", "m", frozenset({0}), now_s=0, until_s=3)
    judge.claim("h", "n", frozenset({0}), now_s=2, until_s=5)
    judge.let_go("h", "n")
    judge.claim("h", "o", frozenset({0}), now_s=2, until_s=5)
    assert len(judge.problems) == 2


def test_the_judge_sees_what_readers_saw_and_a_wrong_copy() -> None:
    judge = Judge()
    judge.on_read(("a", 0), 0, ["1", "2"])
    judge.judge_logs({("a", 0): ["1", "3"]})
    judge.judge_copy(["1", "2"], ["2", "1"], 0)
    judge.judge_copy(["1", "2"], ["1", "2", "2"], 0)
    judge.judge_sequence(("in", 0), "s", 2, ["s:0", "s:2"])
    judge.judge_sequence(("in", 0), "s", 2, ["s:0"])
    assert len(judge.problems) == 5
