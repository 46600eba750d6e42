"""The chaos suite must report the bugs of the fake cluster, and must accept a correct cluster."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.report import Verdict
from tests.chaos.selftest import EASY, Trial, run_trial

pytestmark = pytest.mark.chaos

TIMES = (1, 3, 5)
"""The factors by which a trial may be longer than planned."""


@pytest.mark.parametrize("trial", EASY, ids=str)
def test_a_bug_is_found_by_its_name(trial: Trial, tmp_path: Path) -> None:
    # A bug takes effect at random. On a busy machine it may never do so in the planned time, so repeat with more time.
    finding = None
    for times in TIMES:
        longer = replace(trial, seconds=times * trial.seconds)
        finding = run_trial(longer, tmp_path / f"run-{times}")
        is_wrong = trial.expected is None and finding.verdict is Verdict.UNSAFE
        if is_wrong or finding.is_as_expected(trial.expected):
            break
    assert finding is not None, "there is at least one time"
    assert finding.is_as_expected(trial.expected), finding.text
