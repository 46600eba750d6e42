"""The self-test expects of each bug what it is, and of a correct cluster nothing."""

import pytest

from tests.chaos.fake import BUGS
from tests.chaos.report import NOTES, VIOLATIONS, Verdict
from tests.chaos.scenarios import SCENARIOS, STORM
from tests.chaos.selftest import AS_ROOT, EASY, SLOW, Finding


@pytest.mark.parametrize(
    ("verdict", "found", "expected", "is_good"),
    [
        (Verdict.GOOD, {}, None, True),
        (Verdict.UNSAFE, {"lost-write": 1}, None, False),
        (Verdict.UNSAFE, {"lost-write": 1}, "lost-write", True),
        (Verdict.UNSAFE, {"reordered": 1}, "lost-write", False),
        (Verdict.GOOD, {}, "lost-write", False),
        (Verdict.GOOD, {"duplicate": 1}, "duplicate", True),
        (Verdict.GOOD, {}, "duplicate", False),
        (Verdict.INCONCLUSIVE, {}, None, False),
    ],
)
def test_a_finding_is_compared_with_what_was_expected(verdict, found, expected, is_good):
    assert Finding(verdict, found, "").is_as_expected(expected) is is_good


def test_every_bug_is_tried():
    assert {t.bug for t in EASY + SLOW + AS_ROOT} == set(BUGS)


def test_what_is_expected_is_an_anomaly():
    assert {e for e in BUGS.values() if e} <= {*VIOLATIONS, *NOTES}


def test_trials_name_scenarios():
    assert {t.scenario for t in EASY + SLOW + AS_ROOT} <= {*SCENARIOS, STORM}
