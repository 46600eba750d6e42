"""A few seeds of five nodes with partitions on the move; ``python -m tests.sim.nodes.moving`` runs any number.

Seeds that once found something stay here, each with a sentence.
"""

import pytest

from tests.sim.nodes.moving import MovingCampaign
from tests.sim.seeds import seeds
from tests.support.time.virtual_time import run_virtual

SEEDS = seeds(3, quick=1)


@pytest.mark.parametrize("seed", SEEDS)
def test_promises_hold_while_partitions_move_under_faults(seed: int) -> None:
    campaign = MovingCampaign(seed, seconds=12)
    assert run_virtual(campaign.run()) == [], campaign.events
    writes = campaign.history.writes.values()
    assert sum(write.offset is not None for write in writes) > len(writes) / 4
