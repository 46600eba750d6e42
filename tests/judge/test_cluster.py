"""Run the judge on three real nodes, for a limited time: set `JUDGE_SECONDS` and `JUDGE_SEED` for more."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

SECONDS = int(os.environ.get("JUDGE_SECONDS", "200"))
SEED = os.environ.get("JUDGE_SEED")


def test_nothing_is_found_on_real_nodes() -> None:
    seed = SEED or str(time.time_ns())
    judge = f"{sys.executable} -m tests.judge --seconds {SECONDS} --seed {seed} --ports 0"
    run = subprocess.run(
        judge.split(),
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=SECONDS + 600,
        check=False,
    )
    print(run.stdout[-20_000:], run.stderr[-5_000:])
    assert run.returncode == 0, f"make judge SECONDS={SECONDS} SEED={seed}"
