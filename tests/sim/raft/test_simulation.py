"""Run a few seeds of the quorum's simulation; ``python -m tests.sim.raft`` runs any number."""

import importlib
import logging
from collections.abc import Iterator

import pytest

from tests.sim.mutations.guards import MUTATIONS
from tests.sim.mutations.imports import imported_anew
from tests.sim.raft.world import World
from tests.sim.seeds import seeds


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def check(seed: int, **options: object) -> None:
    violation = World(seed, **options).run()  # type: ignore[arg-type]  # options are World's own
    words = " ".join(f"{name}={value}" for name, value in options.items())
    assert violation is None, (
        f"{violation}; {words}; replay: python -m tests.sim.raft --seeds {seed}:{seed + 1} --trace"
    )


@pytest.mark.parametrize("seed", seeds(60, quick=12))
def test_three_voters(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("seed", seeds(20, quick=4))
def test_three_voters_that_lose_their_directories(seed: int) -> None:
    check(seed, has_wipes=True)


@pytest.mark.parametrize("seed", seeds(15, quick=3))
def test_three_voters_on_a_bad_day(seed: int) -> None:
    check(seed, is_hard=True, has_wipes=seed % 3 == 0)


@pytest.mark.parametrize("seed", seeds(10, quick=2))
def test_three_voters_and_an_observer(seed: int) -> None:
    check(seed, observers=1)


@pytest.mark.parametrize("seed", seeds(5, quick=1))
def test_five_voters_that_lose_their_directories(seed: int) -> None:
    check(seed, voters=5, has_wipes=True)


@pytest.mark.parametrize("seed", seeds(5, quick=1))
def test_a_single_voter_and_an_observer(seed: int) -> None:
    check(seed, voters=1, observers=1)


@pytest.mark.parametrize(
    "guard", [pytest.param("sync", marks=pytest.mark.deep), "ownsync", "trim", "snapback"]
)
def test_the_simulation_finds_a_missing_guard(guard: str) -> None:
    """A simulation that cannot fail proves nothing. The seed that finds the problem depends on all messages."""
    (mutation,) = (m for m in MUTATIONS if m.name == f"raft-{guard}")
    with imported_anew(mutation, "raft_meta.consensus", "tests.sim.raft"):
        world = importlib.import_module("tests.sim.raft.world")
        assert any(world.World(seed).run() is not None for seed in range(40))


def test_a_seed_decides_everything() -> None:
    runs = [World(7, is_traced=True) for _ in range(2)]
    for world in runs:
        world.run()
    assert runs[0].lines == runs[1].lines
    assert runs[0].checker.log == runs[1].checker.log
