"""Topic to topic, on a Spark whose executors are processes of their own and on a local one, with kills by the seed."""

import pytest

from tests.chaos.spark_kills import CLUSTER, LOCAL, Victim, run_kills

pytestmark = [pytest.mark.integration, pytest.mark.long]

KILLS = 9


@pytest.mark.parametrize(
    ("master", "seed"), [(CLUSTER, 1), (CLUSTER, 2), (CLUSTER, 3), (CLUSTER, 4), (LOCAL, 5)]
)
def test_whatever_is_killed_every_record_comes_once(master, seed, tmp_path):
    report = run_kills(seed, KILLS, tmp_path, master=master)
    assert (report.lost, report.doubled) == ([], [])
    assert report.records > 1000
    assert len(report.kills) == KILLS
    first = report.kills[0]
    assert (first.victim, first.batch, first.is_committed) == (Victim.SPARK, 0, False)
