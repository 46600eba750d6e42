"""Topic to topic on a Spark whose executors are processes of their own, with kills by the seed."""

import pytest

from tests.chaos.spark_kills import Victim, run_kills

pytestmark = [pytest.mark.integration, pytest.mark.long]

KILLS = 9


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_whatever_is_killed_every_record_comes_once(seed, tmp_path):
    report = run_kills(seed, KILLS, tmp_path)
    assert (report.lost, report.doubled) == ([], [])
    assert report.records > 1000
    assert len(report.kills) == KILLS
    first = report.kills[0]
    assert (first.victim, first.batch, first.is_committed) == (Victim.SPARK, 0, False)
