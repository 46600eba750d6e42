"""The state machine's golden scripts: one situation each, readable as prose."""

from pathlib import Path

import pytest

from tests.support.machine.machine_scripts import MachineScript
from tests.support.machine.scripts import run_script

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    run_script(path, MachineScript().execute)
