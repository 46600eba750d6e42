"""Console blocks of documents, run as a reader would type them, on a cluster that they start.

A block in the language ``console`` holds commands and what they print: a command begins with ``$``, goes on in lines
that begin with ``>``, and all of a document's commands share one shell. In what is printed, ``…`` stands for anything
within a line, and a line with nothing else for any number of lines.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from loadtest.local_cluster import free_ports
from loadtest.node_process import NodeProcess
from tests.support.live_cluster import call, eventually, ok

FIRST_PORT, NODES = 8082, 3
PEER_PORTS_FROM = 10
"""How far above the API's ports: further than the most nodes that ``milena dev`` starts."""
_MILENA = re.compile(r"^milena\b|\.venv/bin/milena\b")
STEP_END = "=== end of step ==="


def blocks(text: str, language: str) -> list[str]:
    """What stands between fences of this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@dataclass
class Step:
    """A command and what it should print."""

    command: str
    expected: str = ""

    def check(self, printed: str) -> None:
        # Bodies end without a newline, which a document cannot show; headers end with a return, likewise.
        printed = printed.replace("\r", "").strip("\n")
        assert re.fullmatch(self.pattern, printed), (
            f"$ {self.command}\nprints\n{printed}\nbut the document says\n{self.expected}"
        )

    @property
    def pattern(self) -> str:
        first, *rest = self.expected.strip("\n").split("\n")
        return _line(first) + "".join(
            r"(?:\n[\s\S]*)?" if line == "…" else "\n" + _line(line) for line in rest
        )


def _line(text: str) -> str:
    return ".*".join(map(re.escape, text.split("…")))


def steps(text: str) -> list[Step]:
    """The commands of a document, in order."""
    found: list[Step] = []
    for line in "".join(blocks(text, "console")).splitlines(keepends=True):
        if line.startswith("$ "):
            found.append(Step(line[2:].rstrip("\n")))
        elif line.startswith("> ") and not found[-1].expected:
            found[-1].command += "\n" + line[2:].rstrip("\n")
        else:
            found[-1].expected += line
    return found


def free_run(length: int) -> int:
    """The first of so many free ports in a row."""
    ports = free_ports(20 * length)
    return next(p for p in ports if {*range(p, p + length)} <= {*ports})


@dataclass
class Place:
    """Where commands are run: those of the document with other ports, in another directory."""

    first_port: int
    directory: Path

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{self.first_port + n}" for n in range(NODES)]

    def adapt(self, text: str) -> str:
        """A command, or what it should print, for this place."""
        text = re.sub(_MILENA, f"{sys.executable} -m milena", text)
        return re.sub(
            r"\b(808[2-4])\b", lambda m: str(int(m[1]) - FIRST_PORT + self.first_port), text
        )

    def run(self, commands: list[str]) -> list[str]:
        """What each command prints."""
        script = "".join(f"{self.adapt(c)}\necho '{STEP_END}'\n" for c in commands)
        own_bin = Path(sys.executable).parent
        done = subprocess.run(
            ["bash", "-u", "-c", script],
            # A reader sees both on one screen.
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
            cwd=self.directory,
            env={
                **os.environ,
                "PATH": f"{own_bin}:{os.environ['PATH']}",
                "MILENA_URL": self.urls[0],
            },
        )
        return done.stdout.split(f"{STEP_END}\n")[:-1]

    def check(self, walk: list[Step]) -> None:
        """Run the commands in one shell; each must print what the document says."""
        printed = self.run([step.command for step in walk])
        assert len(printed) == len(walk)
        for step, output in zip(walk, printed, strict=True):
            Step(step.command, self.adapt(step.expected)).check(output)


@dataclass
class Node:
    """What ``call`` needs to know."""

    url: str


@contextmanager
def started(command: str, directory: Path) -> Iterator[Place]:
    """The cluster of three that a document's command starts, ready for requests."""
    first_port = free_run(PEER_PORTS_FROM + NODES)
    place = Place(first_port, directory)
    words = place.adapt(command).replace(" dev-data", f" {directory / 'dev-data'}").split()
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
        for node in map(Node, place.urls):
            eventually(lambda at=node: is_up(at))
        yield place
    finally:
        process.stop()
