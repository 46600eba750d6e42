"""docs/security.md is true: its walk is run, command by command, on the cluster that it starts."""

import base64
import subprocess
from pathlib import Path

import pytest

from tests.support.http.console import blocks, started, steps

pytestmark = pytest.mark.integration

TEXT = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")


def test_the_walk_closes_a_cluster_as_the_document_says(tmp_path: Path) -> None:
    first, *walk = steps(TEXT)
    subprocess.run(["bash", "-c", first.command], cwd=tmp_path, check=True, timeout=60)
    file = tmp_path / "admin-password"
    assert file.stat().st_mode & 0o777 == 0o600
    password = file.read_text(encoding="utf-8").strip()
    given = base64.b64encode(f"admin:{password}".encode()).decode()
    (start,) = blocks(TEXT, "sh")
    with started(
        start.replace(" admin-password", f" {file}"),
        tmp_path,
        headers={"Authorization": f"Basic {given}"},
    ) as place:
        place.check(walk)


def test_it_takes_ten_commands_to_be_closed_and_to_write() -> None:
    commands = [step.command for step in steps(TEXT)]
    written = next(n for n, c in enumerate(commands) if "shop.token)" in c)
    # One more starts the cluster; two show that it asks.
    assert written + 1 <= 10
