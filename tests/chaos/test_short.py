"""A short form of the chaos suite: a few scenarios, one fault each, on plain disks; ``make chaos`` is the long form.

No record may be lost, no transaction may be partial, and every node must have everything at the end. Only the long form
checks for how long writes fail, because here other tests share the processors.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.selftest import ROOT

pytestmark = pytest.mark.chaos

SCENARIOS = (
    pytest.param("kill-leader", marks=pytest.mark.smoke),
    "stop-leader",
    "torn-tail",
    "pause-leader",
)
SECONDS = 10
RUN_TIMEOUT_S = 300


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_acknowledged_is_lost(scenario: str, tmp_path: Path) -> None:
    work = tmp_path / "run"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.chaos.run", "--scenario", scenario),
            *("--seconds", str(SECONDS), "--seed", "1", "--no-goals", "--work", str(work)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((work / "report.json").read_text())["acknowledged"] > 0
