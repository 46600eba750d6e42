"""Each guard of the core: its scenario goes well, and does not once the guard is taken out of the source."""

import importlib
import re

import pytest

from raft_meta.consensus import guards
from tests.sim.mutations.guards import MUTATIONS
from tests.sim.mutations.imports import imported_anew
from tests.support.clusters import guard_scenarios
from tests.support.clusters.guard_scenarios import SCENARIOS

ROWS = {mutation.name: mutation for mutation in MUTATIONS if mutation.name.startswith("raft-")}
ELSEWHERE = {"raft-oneconn", "raft-snapsync"}
"""``test_transport`` has the scenario of the first; the simulation finds that the second is missing."""
ANEW = (
    "raft_meta.consensus",
    "tests.support.clusters.raft_bench",
    "tests.support.clusters.guard_scenarios",
)


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_goes_well(name: str) -> None:
    assert guard_scenarios.goes_well(name)


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_does_not_go_well_without_its_guard(name: str) -> None:
    with imported_anew(ROWS[name], *ANEW):
        without = importlib.import_module("tests.support.clusters.guard_scenarios")
        assert not without.goes_well(name)


def test_every_guard_that_is_listed_has_its_row_and_its_scenario() -> None:
    listed = re.findall(r"^ {4}(\w+) \(.*\)$", guards.__doc__ or "", re.MULTILINE)
    assert len(set(listed)) == len(listed)
    assert {name.split("-")[1] for name in ROWS} == set(listed)
    assert {f"raft-{name}" for name in listed} <= ROWS.keys()
    assert SCENARIOS.keys() | ELSEWHERE == ROWS.keys()
