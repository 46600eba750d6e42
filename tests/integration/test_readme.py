"""The README is true: its walk with curl is run line by line, its links lead somewhere, its make targets exist."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.config.sources import load_config
from tests.support.http.console import RUN_S_MAX, Place, Step, blocks, started, steps

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
README = DOCUMENTS[0].read_text(encoding="utf-8")


def section(title: str) -> str:
    """What stands under a heading of the README."""
    return README.split(f"## {title}\n")[1].split("\n## ")[0]


HEAD = README.split("\n## ")[0]
WALK = section("A walk with curl")
LINES = section("Lines in, lines out")
FIRST_LINES = 30
"""A reader sees them at once; a page starts with something to run."""
INDEX = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")

# -- the walk --------------------------------------------------------------------------------------


def walk() -> list[Step]:
    return steps(WALK)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The cluster that the README starts, at its top and before its walk."""
    (start,) = blocks(WALK, "sh")
    assert blocks(HEAD, "sh") == [f"make .venv\n{start}"]
    with started(start, tmp_path_factory.mktemp("walk")) as found:
        yield found


# These run in the order of the page, on one cluster, as a reader does.


def test_a_record_is_written_and_read_as_the_first_lines_say(place: Place) -> None:
    assert len(steps(HEAD)) == 2
    place.check(steps(HEAD))


def test_the_walk_with_curl_prints_what_the_readme_says(place: Place) -> None:
    assert len(walk()) > 8
    place.check(walk())


def test_lines_go_in_and_come_out_and_a_program_reads_them_as_the_readme_says(place: Place) -> None:
    place.check(steps(LINES))
    (program,) = blocks(section("From Python"), "python")
    said = [comment.strip() for comment in re.findall(r"print\(.*\)  # (.*)", program)]
    printed = subprocess.run(
        [sys.executable, "-c", place.adapt(program)],
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert printed.stdout.splitlines() == said, printed.stderr


def test_the_first_task_of_the_index_runs(place: Place) -> None:
    place.check(steps(INDEX))


def test_every_page_is_in_the_index() -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)", INDEX))
    assert linked == {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}


def test_every_page_begins_with_a_task() -> None:
    for path in (ROOT / "docs").glob("*.md"):
        first = path.read_text(encoding="utf-8").splitlines()[:FIRST_LINES]
        assert any(line.startswith("```") for line in first), path.name


def test_the_retry_on_another_node_is_part_of_the_walk() -> None:
    """The walk shows what is special; whoever shortens it should notice."""
    commands = [step.command for step in walk()]
    keyed = [command for command in commands if "Idempotency-Key" in command]
    assert len(keyed) == 2
    assert len({re.sub("808[2-4]", "", command) for command in keyed}) == 1
    assert keyed[0] != keyed[1], "the second goes to another node"


# -- links and targets -----------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """Names that headings have on the pages that show them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = document.parent / name if name else document
        assert path.exists(), f"{document.name}: {target}"
        if anchor:
            assert anchor in anchors(path.read_text(encoding="utf-8")), f"{document.name}: {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_folder_and_file_of_ours_that_is_named_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for name in re.findall(
        r"`((?:storage|raft_meta|http_api|node|milena|loadtest|tests|docs|helm|spark_ext|examples)/[\w./]*)`",
        text,
    ):
        assert (ROOT / name).exists(), f"{document.name} names {name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_make_target_that_is_named_exists(document: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w.-]+):(?!=)", makefile, re.MULTILINE))
    text = document.read_text(encoding="utf-8")
    code = blocks(text, "sh") + re.findall(r"`(make [^`]+)`", text)
    for line in "\n".join(code).splitlines():
        command = shlex.split(line, comments=True) if line.startswith("make") else []
        if command[:1] == ["make"]:
            named = [word for word in command[1:] if "=" not in word]
            assert {*named} <= targets, f"{document.name}: {line}"


def test_every_folder_of_the_project_is_on_the_map() -> None:
    folders = {
        path.name
        for path in ROOT.iterdir()
        if path.is_dir() and not path.name.startswith(".") and any(path.glob("*.py"))
    }
    for folder in folders | {"docs"}:
        assert f"`{folder}/`" in README, folder


def test_the_options_of_a_cluster_on_three_machines_are_accepted() -> None:
    (block,) = blocks(section("A cluster on three machines"), "sh")
    words = block.replace("\\\n", " ").split("milena start")[1].split()
    flags = {
        flag.removeprefix("--").replace("-", "_"): value
        for flag, value in zip(words[::2], words[1::2], strict=True)
    }
    assert len(flags) == 5
    config = load_config(None, {"MILENA_CLUSTER_SECRET": "long enough"}, flags)
    assert len(config.peers) == 3
