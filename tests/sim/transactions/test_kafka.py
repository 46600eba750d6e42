"""A few seeds of Kafka's transactional producers whose nodes and requests go wrong."""

import pytest

from tests.sim.seeds import seeds
from tests.sim.transactions.kafka import TransactionWorld
from tests.support.time.virtual_time import virtual


@pytest.mark.parametrize("seed", seeds(8, quick=2))
@virtual
async def test_no_transaction_is_torn_doubled_or_lost(seed: int) -> None:
    world = await TransactionWorld(seed, seconds=20).run()
    assert world.problems == []
    assert world.fates["ok"] > 20
    assert world.fates["aborted"] > 3
    assert world.duplicates > 10
