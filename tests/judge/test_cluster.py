"""The judge on three real nodes, for a bounded time: `JUDGE_SECONDS` and `JUDGE_SEED` choose more of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# `make judge` runs it; it joins the second lane once its findings are only faults of the nodes.
pytestmark = [pytest.mark.integration, pytest.mark.long]


def test_nothing_is_found_on_real_nodes() -> None:
    seconds = int(os.environ.get("JUDGE_SECONDS", "200"))
    seed = os.environ.get("JUDGE_SEED", "1")
    command = [
        sys.executable,
        "-m",
        "tests.judge",
        "--seconds",
        str(seconds),
        "--seed",
        seed,
        "--ports",
        "0",
    ]
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=seconds + 600, check=False
    )
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-5_000:]
