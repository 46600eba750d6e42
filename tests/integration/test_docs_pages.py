"""docs/operations.md, limits.md and write-a-client.md are true: their commands and programs run on one cluster."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.config.options import OPTIONS
from raft_meta.machine.topics.configs import KEYS
from tests.support.http.console import RUN_S_MAX, Place, blocks, started, steps

pytestmark = pytest.mark.integration

DOCS = Path(__file__).parents[2] / "docs"
OPERATIONS, LIMITS, CLIENT = (
    (DOCS / f"{name}.md").read_text(encoding="utf-8")
    for name in ("operations", "limits", "write-a-client")
)
PROGRAMS = {"javascript": ("node", "orders.mjs"), "go": ("go run", "orders.go")}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The cluster that each of these pages starts."""
    (start,) = {blocks(page, "sh")[0] for page in (OPERATIONS, LIMITS, CLIENT)}
    with started(start, tmp_path_factory.mktemp("pages")) as found:
        yield found


def test_a_node_is_added_and_removed_as_the_page_says(place: Place) -> None:
    place.check(steps(OPERATIONS))


def test_the_limit_refuses_what_the_page_shows(place: Place) -> None:
    place.check(steps(LIMITS))


@pytest.mark.parametrize("language", PROGRAMS)
def test_a_program_of_the_page_writes_and_reads(place: Place, language: str) -> None:
    command, name = PROGRAMS[language]
    if shutil.which(command.split()[0]) is None:
        pytest.skip(f"{command.split()[0]} is not installed")
    (program,) = blocks(CLIENT, language)
    (place.directory / name).write_text(program, encoding="utf-8")
    done = subprocess.run(
        [*command.split(), name, f"orders-{language}"],
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
        cwd=place.directory,
        # The first node does not exist, so the first request of all goes to another one.
        env={**os.environ, "MILENA_URL": ",".join(["http://127.0.0.1:1", *place.urls])},
    )
    (printed,) = blocks(CLIENT, "text")
    assert done.stdout == printed, done.stderr
    # A dead URL is told at the first failure, and not at every attempt.
    warnings = done.stderr.splitlines()
    assert len(warnings) == 1
    assert "http://127.0.0.1:1/admin/topics" in warnings[0]
    assert warnings[0].endswith("; trying again")


def test_the_settings_that_tuning_names_exist() -> None:
    tuning = OPERATIONS.split("## Tuning\n")[1].split("\n## ")[0]
    named = set(re.findall(r"`([a-z_.]+[_.][a-z_.]+)`", tuning))
    of_producers = {"linger_ms"}
    assert len(named) > 15
    assert named <= {*OPTIONS, *KEYS, *of_producers}
