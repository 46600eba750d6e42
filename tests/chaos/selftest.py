"""Test that the chaos suite reports every bug of the fake cluster, and nothing in the correct one; test the network.

    python -m tests.chaos.selftest

The correct variant must pass under each kind of fault. Each variant with a bug must be reported with that bug's
anomaly. This needs root for disks and networks, and fifteen minutes. ``test_selftest`` is the part that needs neither.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.fake import BUGS, TRANSACTION_BUGS
from tests.chaos.report import NOTES, Verdict

ROOT = Path(__file__).resolve().parents[2]
RUN_TIMEOUT_S = 300
OWN = "own"
"""The value of ``expect`` for the anomaly in ``BUGS``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of the fake cluster, and the anomaly that must be reported; None for none."""

    bug: str
    scenario: str
    seconds: float = 14.0
    seed: int = 7
    node_count: int = 3
    disk: str = "dir"
    network: str = "none"
    expect: str | None = OWN

    @property
    def expected(self) -> str | None:
        """Return the anomaly that must be reported."""
        return BUGS[self.bug] if self.expect == OWN else self.expect

    def command(self, work: Path) -> list[str]:
        """Return the command line of the run."""
        return [
            *(sys.executable, "-m", "tests.chaos.run", "--target", f"fake:{self.bug}"),
            *("--scenario", self.scenario, "--seconds", f"{self.seconds:g}"),
            *("--seed", str(self.seed), "--nodes", str(self.node_count)),
            *("--disk", self.disk, "--network", self.network, "--work", str(work)),
        ]

    def __str__(self) -> str:
        """Return a description for people."""
        where = [x for x in (self.disk, self.network) if x not in ("dir", "none")]
        return " ".join([self.bug, self.scenario, *where])


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a trial."""

    verdict: Verdict
    found: dict[str, int]
    text: str

    def is_as_expected(self, expected: str | None) -> bool:
        """Return whether the run is safe if nothing is expected, else whether the anomaly was reported."""
        if expected is None:
            return self.verdict is Verdict.GOOD
        wanted = Verdict.GOOD if expected in NOTES else Verdict.UNSAFE
        return self.verdict is wanted and expected in self.found


def run_trial(trial: Trial, work: Path) -> Finding:
    """Run a trial in its own process."""
    done = subprocess.run(
        trial.command(work),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    report = work / "report.json"
    if not report.exists():
        return Finding(Verdict.INCONCLUSIVE, {}, done.stdout + done.stderr)
    told = json.loads(report.read_text())
    return Finding(Verdict(told["verdict"]), told["found"], done.stdout + done.stderr)


EASY = (
    Trial(bug="none", scenario="kill-leader"),
    Trial(bug="lose-acked", scenario="kill-all"),
    *(
        Trial(bug=bug, scenario="none", seconds=4)
        for bug in (
            "reorder",
            "wrong-offset",
            "damage",
            "skip",
            "double",
            "fail-visible",
            "stale-node",
        )
    ),
    Trial(bug="transactions", scenario="kill-leader"),
    *(
        Trial(bug=bug, scenario="none", seconds=6)
        for bug in TRANSACTION_BUGS
        if bug != "transactions"
    ),
)
"""Trials that do not need root; they take three minutes."""

SLOW = (
    Trial(bug="dirty-read", scenario="kill-leader"),
    Trial(bug="none", scenario="pause-leader"),
    Trial(bug="none", scenario="kill-all"),
    Trial(bug="none", scenario="stop-leader"),
    Trial(bug="none", scenario="rolling-restart"),
    Trial(bug="none", scenario="pause-blink"),
    Trial(bug="none", scenario="kill-all-ten", seconds=40),
    Trial(bug="none", scenario="storm"),
    Trial(bug="transactions", scenario="kill-all"),
    Trial(bug="transactions", scenario="pause-leader"),
    Trial(bug="transactions", scenario="storm"),
    # A single node without checksums cannot survive damage to its disk.
    Trial(bug="none", scenario="torn-tail", node_count=1, seed=4, expect="lost-write"),
    Trial(bug="none", scenario="bit-flip", node_count=1, expect="damaged-record"),
    Trial(bug="none", scenario="emptied-directory", node_count=1, expect="lost-write"),
)
AS_ROOT = (
    Trial(bug="none", scenario="power-leader", node_count=1, disk="loop"),
    Trial(bug="no-fsync", scenario="power-leader", node_count=1, disk="loop"),
    # The page cache survives a killed process, so only a power cut reveals a missing sync.
    Trial(bug="no-fsync", scenario="kill-leader", node_count=1, disk="loop", expect=None),
    Trial(bug="none", scenario="power-all", node_count=1, disk="loop"),
    Trial(bug="none", scenario="disk-full", node_count=1, disk="loop"),
    Trial(bug="ignore-full", scenario="disk-full", node_count=1, disk="loop"),
    Trial(bug="none", scenario="disk-full", node_count=1, disk="tmpfs"),
    Trial(bug="none", scenario="isolate-leader", network="netns"),
    Trial(bug="none", scenario="halves", network="netns"),
    Trial(bug="none", scenario="flaky-net", network="netns"),
    Trial(bug="none", scenario="power-split", node_count=1, disk="loop", network="netns"),
    Trial(bug="lose-acked", scenario="storm", network="netns"),
    Trial(bug="split-brain", scenario="none", network="netns", expect=None),
    Trial(bug="split-brain", scenario="split-leader", network="netns"),
    Trial(bug="split-brain", scenario="halves", network="netns"),
)

PROBE = """
import subprocess, sys, time
from tests.chaos.disks import enter_mount_namespace
from tests.chaos.network import CLIENT, Network, Rule, address_of

SERVER = '''
import socket
listener = socket.create_server(("0.0.0.0", 99))
while True:
    connection, _ = listener.accept()
    connection.send(b"x")
    connection.close()
'''
ASK = '''
import socket, sys, time
began = time.monotonic()
try:
    socket.create_connection((sys.argv[1], 99), 1).recv(1)
    print(time.monotonic() - began)
except OSError:
    print(-1)
'''

enter_mount_namespace()
network = Network(2, 1)
inside = lambda place, *words: ["ip", "netns", "exec", network.namespace_of(place), sys.executable, "-c", *words]
servers = [subprocess.Popen(inside(place, SERVER)) for place in (1, 2)]
pairs = [(1, 2), (2, 1), (CLIENT, 1), (CLIENT, 2)]


def ask(source, destination):
    words = inside(source, ASK, address_of(destination))
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def unreachable():
    return {pair for pair in pairs if ask(*pair) < 0}


try:
    time.sleep(1)
    assert unreachable() == set(), "healthy"
    network.cut([1], [2])
    assert unreachable() == {(1, 2), (2, 1)}, "cut"
    network.heal()
    assert unreachable() == set(), "healed"
    network.cut([1], [2, CLIENT], is_one_way=True)
    assert unreachable() == {(1, 2), (2, 1), (CLIENT, 1)}, "one-way"
    network.heal()
    network.rule(1, 2, Rule(delay_ms=200))
    assert 0.2 < ask(1, 2) < 1, "delay"
    network.rule(1, 2, Rule(loss_share=1.0))
    assert ask(1, 2) < 0, "loss"
finally:
    for server in servers:
        server.kill()
        server.wait()
    network.close()
"""


def probe_network() -> str:
    """Check that the network's faults take effect; return a description of what is wrong, or an empty text."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def problems(trials: tuple[Trial, ...]) -> Iterator[str]:
    """Run all trials; yield a sentence for each unexpected result."""
    with tempfile.TemporaryDirectory() as directory:
        for number, trial in enumerate(trials):
            finding = run_trial(trial, Path(directory) / str(number))
            is_good = finding.is_as_expected(trial.expected)
            found = ", ".join(sorted(finding.found)) or "nothing"
            print(
                f"{'ok ' if is_good else 'BAD'} {trial}: {finding.verdict.name}, {found}",
                flush=True,
            )
            if not is_good:
                yield f"{trial}: expected {trial.expected}\n{finding.text}"


def main() -> int:
    """Run the whole self-test."""
    wrong = list(problems(EASY + SLOW + AS_ROOT))
    network = probe_network()
    wrong += [f"network: {network}"] if network else []
    print(*wrong, "all good" if not wrong else f"{len(wrong)} problems", sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
