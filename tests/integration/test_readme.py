"""The README is true: its walk with curl is run line by line, its links lead somewhere, its make targets exist."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from loadtest.local_cluster import free_ports
from loadtest.node_process import NodeProcess
from node.config import load_config
from tests.support.live_cluster import call, eventually, ok

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = DOCUMENTS[0].read_text(encoding="utf-8")
WALK = README.split("## A walk with curl")[1].split("\n## ")[0]
FIRST_PORT, NODES = 8082, 3
PEER_PORTS_FROM = 10
"""How far above the API's ports: further than the most nodes that ``milena dev`` starts."""
STEP_END = "=== end of step ==="


def blocks(text: str, language: str) -> list[str]:
    """What stands between fences of this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


# -- the walk --------------------------------------------------------------------------------------


@dataclass
class Step:
    """A command of the walk and what it should print; ``…`` stands for anything within a line."""

    command: str
    expected: str = ""

    def check(self, printed: str) -> None:
        # Bodies end without a newline, which the README cannot show.
        pattern = ".*".join(re.escape(piece) for piece in self.expected.strip("\n").split("…"))
        assert re.fullmatch(pattern, printed.strip("\n")), (
            f"$ {self.command}\nprints\n{printed}\nbut the README says\n{self.expected}"
        )


def steps() -> list[Step]:
    found: list[Step] = []
    for line in "".join(blocks(WALK, "console")).splitlines(keepends=True):
        if line.startswith("$ "):
            found.append(Step(line[2:].rstrip("\n")))
        else:
            found[-1].expected += line
    return found


def free_run(length: int) -> int:
    """The first of so many free ports in a row."""
    ports = free_ports(20 * length)
    return next(p for p in ports if {*range(p, p + length)} <= {*ports})


@dataclass
class Place:
    """Where the walk takes place: the README's commands with other ports and another directory."""

    first_port: int

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{self.first_port + n}" for n in range(NODES)]

    def adapt(self, command: str) -> str:
        """The command, for this place."""
        command = command.replace(".venv/bin/milena", f"{sys.executable} -m milena")
        return re.sub(
            r"\b(808[2-4])\b", lambda m: str(int(m[1]) - FIRST_PORT + self.first_port), command
        )

    def run(self, commands: list[str]) -> list[str]:
        """What each command prints; they share one shell, as its user's do."""
        script = "".join(f"{self.adapt(c)}\necho '{STEP_END}'\n" for c in commands)
        own_bin = Path(sys.executable).parent
        done = subprocess.run(
            ["bash", "-u", "-c", script],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={
                **os.environ,
                "PATH": f"{own_bin}:{os.environ['PATH']}",
                "MILENA_URL": self.urls[0],
            },
        )
        assert not done.stderr, done.stderr
        return done.stdout.split(f"{STEP_END}\n")[:-1]


@dataclass
class Node:
    """What ``call`` needs to know."""

    url: str


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The cluster that the README starts."""
    directory = tmp_path_factory.mktemp("walk")
    first_port = free_run(PEER_PORTS_FROM + NODES)
    found = Place(first_port)
    (start,) = blocks(WALK, "sh")
    words = found.adapt(start).replace(" dev-data", f" {directory / 'dev-data'}").split()
    words += ["--base-peer-port", str(first_port + PEER_PORTS_FROM)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MILENA_")}
    process = NodeProcess(words, environment=environment, log_path=directory / "dev.log")
    process.start()

    def is_up(node: Node) -> bool:
        if not process.is_running:
            pytest.fail(process.log_tail())
        is_ready = call(node, "GET /readyz").status == 200
        return is_ready and ok(call(node, "GET /brokers")) == {"brokers": [1, 2, 3]}

    try:
        for node in map(Node, found.urls):
            eventually(lambda at=node: is_up(at))
        yield found
    finally:
        process.stop()


def test_the_walk_with_curl_prints_what_the_readme_says(place: Place) -> None:
    walk = steps()
    assert len(walk) > 8
    printed = place.run([step.command for step in walk])
    assert len(printed) == len(walk)
    for step, output in zip(walk, printed, strict=True):
        step.check(output)


def test_the_retry_on_another_node_is_part_of_the_walk() -> None:
    """The walk shows what is special; whoever shortens it should notice."""
    commands = [step.command for step in steps()]
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
        r"`((?:storage|raft_meta|http_api|node|milena|loadtest|tests|docs|helm|spark_ext)/[\w./]*)`",
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
        command = line.partition("#")[0].split()
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
    section = README.split("## A cluster on three machines")[1].split("\n## ")[0]
    (block,) = blocks(section, "sh")
    words = block.replace("\\\n", " ").split("milena start")[1].split()
    flags = {
        flag.removeprefix("--").replace("-", "_"): value
        for flag, value in zip(words[::2], words[1::2], strict=True)
    }
    assert len(flags) == 5
    config = load_config(None, {"MILENA_CLUSTER_SECRET": "long enough"}, flags)
    assert len(config.peers) == 3
