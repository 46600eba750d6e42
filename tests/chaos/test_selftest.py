"""The suite against its stand-in cluster: what must be found is found, and a correct cluster passes."""

from pathlib import Path

import pytest

from tests.chaos.selftest import EASY, Trial, run_trial

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("trial", EASY, ids=str)
def test_a_bug_is_found_by_its_name(trial: Trial, tmp_path: Path) -> None:
    finding = run_trial(trial, tmp_path / "run")
    assert finding.is_as_expected(trial.expected), finding.text
