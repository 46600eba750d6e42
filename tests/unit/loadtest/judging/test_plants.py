"""Each planted fault is found, as what it is: the judge is not asleep."""

import pytest

from loadtest.judging.plants import Plant, Planter
from loadtest.judging.verdict import Anomaly
from loadtest.records.pages import StoredRecord
from tests.support.spark.load_runs import LoadRun

FOUND_AS = {
    Plant.LOSS: Anomaly.LOST_WRITE,
    Plant.DUPLICATE: Anomaly.DUPLICATE,
    Plant.CORRUPT: Anomaly.CORRUPT_RECORD,
    Plant.REORDER: Anomaly.NONMONOTONIC_SEND,
}


def run_of(writers):
    run = LoadRun(partitions=2)
    for writer in writers:
        run.write(writer, 0)
        run.write(writer, 1)
    return run


def altered(run, planter, page_size=4):
    """The logs as a judge reads them, page by page."""
    logs = {}
    for partition, log in run.logs.items():
        pages = [log[at : at + page_size] for at in range(0, len(log), page_size)]
        seen = [record for page in pages for record in planter.alter(partition, page)]
        logs[partition] = [*seen, *planter.at_end(partition, len(log))]
    return logs


@pytest.mark.parametrize("plant", Plant)
def test_a_planted_fault_is_found_once(plant):
    run, planter = run_of([2, 3, 4, 2, 3, 4, 5, 2]), Planter(plant)
    assert planter.is_missing
    verdict = run.judged(altered(run, planter))
    assert verdict.found[FOUND_AS[plant]] == 1
    assert not planter.is_missing
    assert "p0@" in planter.planted


def test_without_a_plant_nothing_is_altered():
    run, planter = run_of([2, 3, 2, 3]), Planter(None)
    assert altered(run, planter) == run.logs
    assert not planter.is_missing
    assert run.judged(altered(run, planter)).faults == 0


@pytest.mark.parametrize("plant", Plant)
def test_in_an_empty_topic_nothing_can_be_planted(plant):
    planter = Planter(plant)
    altered(LoadRun(), planter)
    assert planter.is_missing


def test_only_records_of_one_writer_have_an_order_to_break():
    planter = Planter(Plant.REORDER)
    records = [StoredRecord(at, None, b"hello") for at in range(4)]
    assert planter.alter(0, records) == records
    assert planter.is_missing
