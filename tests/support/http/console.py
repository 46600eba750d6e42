"""Run the ``console`` blocks of documents like a reader, on a cluster that the document's first command starts.

A block in the language ``console`` has commands and their output. A command starts with ``$``; its further lines start
with ``>``. All commands of a document run in one shell. In an output, ``…`` stands for any text within a line, and a
line with only ``…`` for any number of lines.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from loadtest.cluster.local_cluster import free_ports
from loadtest.cluster.node_process import NodeProcess
from tests.support.clusters.live_cluster import SESSION_MS, call, eventually, ok

FIRST_PORT, FIRST_PEER_PORT, NODES = 8082, 7082, 3
"""The first ports and the number of nodes in the documents; a document may add one node."""
PEER_PORTS_FROM = 10
"""The distance from API ports to peer ports; it is larger than the most nodes that ``milena dev`` starts."""
_MILENA = re.compile(r"^milena\b(?!:)|\.venv/bin/milena\b")
RUN_S_MAX = 600
"""The timeout of all commands of a document, in s: dozens of processes start one after the other."""
STEP_END = "=== end of step ==="
END_JOBS = "trap 'kill $(jobs -p) 2>/dev/null' EXIT\n"
"""A command that ends the processes that the document started, at the end of its shell."""
PATIENT = f"""
from milena.cli import main
from node.process import dev

plan = dev.plan_nodes
patience = {{
    "broker_session_ms": "{SESSION_MS}",
    "election_timeout_ms_min": "2500",
    "election_timeout_ms_max": "3500",
}}
dev.plan_nodes = lambda *, options, **rest: plan(options={{**options, **patience}}, **rest)
main()
"""
"""A ``milena`` command with a longer session timeout: a stall of the machine must not make requests fail.

The documents' curl commands do not repeat a request that was refused for a moment.
"""


def blocks(text: str, language: str) -> list[str]:
    """Return the texts between fences of this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@dataclass
class Step:
    """A command and its expected output."""

    command: str
    expected: str = ""

    def check(self, printed: str) -> None:
        # A document cannot show that a body ends without a newline, or that header lines end with a carriage return.
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
    """Return the commands of a document, in order."""
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
    """Return the first of ``length`` consecutive free ports."""
    run = free_ports(1)
    while len(run) < length:
        (port,) = free_ports(1)
        run = [*run, port] if port == run[-1] + 1 else [port]
    return run[0]


@dataclass
class Place:
    """The environment for the commands: another directory and other ports than in the document."""

    first_port: int
    directory: Path

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{self.first_port + n}" for n in range(NODES)]

    def adapt(self, text: str) -> str:
        """Replace the document's ports in a command or an output."""
        text = re.sub(_MILENA, f"{sys.executable} -m milena", text)
        here = {
            **{FIRST_PORT + n: self.first_port + n for n in range(NODES + 1)},
            **{
                FIRST_PEER_PORT + n: self.first_port + PEER_PORTS_FROM + n for n in range(NODES + 1)
            },
        }
        return re.sub(r"\b[78]08\d\b", lambda m: str(here.get(int(m[0]), m[0])), text)

    def run(self, commands: list[str]) -> list[str]:
        """Return the output of each command."""
        steps_of_shell = [f"{self.adapt(c)}\necho '{STEP_END}'\n" for c in commands]
        script = "".join([END_JOBS, *steps_of_shell])
        own_bin = Path(sys.executable).parent
        done = subprocess.run(
            ["bash", "-u", "-c", script],
            # Merge standard error into the output, as on a reader's terminal.
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_S_MAX,
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
    """A node with a URL, for ``call``."""

    url: str


@contextmanager
def started(
    command: str, directory: Path, *, headers: Mapping[str, str] | None = None
) -> Iterator[Place]:
    """Start the cluster of a document's command, and wait until it is ready; ``headers`` are its credentials."""
    first_port = free_run(PEER_PORTS_FROM + NODES + 1)
    place = Place(first_port, directory)
    words = place.adapt(command).replace(" dev-data", f" {directory / 'dev-data'}").split()
    assert words[1:3] == ["-m", "milena"], words
    words[1:3] = ["-c", PATIENT]
    words += ["--base-peer-port", str(first_port + PEER_PORTS_FROM)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MILENA_")}
    # Run the nodes from the sources, like those of all other tests.
    environment["MILENA_PURE"] = "1"
    process = NodeProcess(words, environment=environment, log_path=directory / "dev.log")
    process.start()

    def is_up(node: Node) -> bool:
        if not process.is_running:
            pytest.fail(process.log_tail())
        is_ready = call(node, "GET /readyz").status == 200
        brokers = call(node, "GET /brokers", headers=headers)
        return is_ready and ok(brokers) == {"brokers": [1, 2, 3]}

    try:
        for node in map(Node, place.urls):
            eventually(partial(is_up, node))
        yield place
    finally:
        process.stop()
