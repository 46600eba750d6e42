"""A few seeds of a classic group whose clients and coordinators break down."""

import pytest

from tests.sim.groups.classic import ClassicWorld
from tests.sim.seeds import seeds
from tests.support.time.virtual_time import virtual


@pytest.mark.parametrize("seed", seeds(6, quick=2))
@virtual
async def test_a_generation_has_one_assignment_whoever_coordinates(seed: int) -> None:
    judge = await ClassicWorld(seed).run()
    assert judge.problems == []
    assert judge.commits > 50
    assert len(judge.seen) > 5
    assert len(judge.coordinators) > 1
