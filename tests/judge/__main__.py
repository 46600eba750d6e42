"""Start a cluster and judge it: `python -m tests.judge --seconds 600 --seed 1 --ports 12000`."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.judge.client import Request, Response, SocketTransport
from tests.judge.cluster import READY_S, Cluster
from tests.judge.driver import Driver, Plan, plan
from tests.judge.faults import Storm
from tests.judge.known import KNOWN
from tests.judge.paths.kafka import KafkaPath
from tests.judge.rules import Finding, Verdicts
from tests.judge.world import ADMIN

PORT = 12_000
"""Below the ports that Linux gives to outgoing connections: one of them could hold the port of a node that restarts."""


def main() -> int:
    """Run the judge; the exit code is 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.judge", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long new episodes start")
    parser.add_argument(
        "--seed", default=str(int(time.time())), help="decides steps and faults; default: the time"
    )
    parser.add_argument("--ports", type=int, default=PORT, help="first port; 0 chooses free ones")
    parser.add_argument("--episode", type=int, help="run this one alone")
    parser.add_argument("--kinds", default="", help="steps to draw from, separated by commas")
    parser.add_argument("--source", default=".", help="the tree whose nodes are judged")
    parser.add_argument(
        "--faults", default="", help="break nodes in each episode, by these faults: kill,clock"
    )
    parser.add_argument("--calm", action="store_true", help="break no nodes")
    parser.add_argument(
        "--shrink", action="store_true", help="leave out steps that a finding does not need"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder of the cluster")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="milena-judge-"))
    cluster = Cluster(folder, args.ports or _free_port(), source=Path(args.source).resolve())
    print(f"seed {args.seed}, nodes in {folder}", flush=True)
    run = Run(cluster, args)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        cluster.start()
        run.all()
    finally:
        run.summarize()
        cluster.stop(keep=args.keep)
    return 1 if run.verdicts.findings else 0


def _free_port() -> int:
    """Return a first port whose followers are free, too; it differs between judges that run at the same time."""
    for place in range(250):
        first = PORT + (os.getpid() + place) % 250 * 10
        if all(_is_free(first + more + node) for more in (0, 100, 200) for node in range(4)):
            return first
    raise RuntimeError(f"no free ports from {PORT} on")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@dataclass
class Run:
    """Runs episodes on one cluster."""

    cluster: Cluster
    args: argparse.Namespace
    verdicts: Verdicts = field(default_factory=lambda: Verdicts(KNOWN))
    statuses: dict[str, int] = field(default_factory=dict)
    episodes: int = 0

    def all(self) -> None:
        """Run episodes until the time is over."""
        self.transport = SocketTransport(self.cluster.addresses())
        self.driver = Driver(self.transport, sorted(self.cluster.nodes), self.verdicts)
        self.driver.kafka = KafkaPath(self.cluster.kafka_servers())
        own = (("Authorization", ADMIN.authorization),)
        while not self.driver.cluster_id:
            asked = self.transport.exchange(1, [Request("GET", "/v3/clusters", own)])[0]
            if isinstance(asked, Response) and asked.status == 200:
                self.driver.cluster_id = json.loads(asked.body)["data"][0]["cluster_id"]
        kinds = [kind for kind in self.args.kinds.split(",") if kind]
        until = time.monotonic() + self.args.seconds
        number = self.args.episode or 0
        while time.monotonic() < until:
            episode = plan(f"{self.args.seed}/{number}", kinds=kinds)
            if self.args.calm or self.args.faults:
                episode = replace(episode, is_stormy=bool(self.args.faults))
            found = self.episode(episode)
            if found and self.args.shrink:
                self.shrink(episode, {finding.rule for finding in found})
            number += 1
            if self.args.episode is not None:
                break

    def episode(self, episode: Plan, *, is_told: bool = True) -> list[Finding]:
        """Run one episode and return its findings."""
        before = len(self.verdicts.findings)
        self.episodes += 1
        world = self.driver.world(
            episode, f"j{self.episodes}-{time.time_ns() // 1_000_000 % 10_000_000}"
        )
        world.is_apart = self.cluster.is_apart
        self._set_mode("required" if episode.is_closed else "off")
        self.driver.prepare(episode, world)
        storm = Storm(self.cluster, random.Random(f"{episode.seed} faults"))
        storm.kinds = [kind for kind in self.args.faults.split(",") if kind]
        if episode.is_stormy:
            storm.start()
        self.driver.run(episode, world)
        is_healed = storm.stop()
        self.verdicts.local.step = f"{episode.seed} steps"
        for node in self.cluster.died():
            self.verdicts.check(
                "J-alive",
                self.cluster.may_stop(node),
                "process",
                f"node {node} alive",
                self.cluster.last_words(node),
            )
            self.cluster.launch(node)
            is_healed = self.cluster.wait_ready()
        got = "; ".join(storm.told) if is_healed else self.cluster.all_last_words()
        self.verdicts.check("J-available", is_healed, "/readyz", f"ready within {READY_S} s", got)
        self.driver.end(episode, world)
        for status, count in world.statuses.items():
            self.statuses[status] = self.statuses.get(status, 0) + count
        found = self.verdicts.findings[before:]
        if is_told:
            for finding in found:
                print(finding.line(), flush=True)
            if found and storm.told:
                print(f"{episode.seed} faults: {'; '.join(storm.told)}", flush=True)
        return found

    def shrink(self, episode: Plan, rules: set[str]) -> None:
        """Leave out steps while one of the rules is still broken, in at most 24 trials; print the shortest episode."""
        steps, size, trials = episode.steps, max(1, len(episode.steps) // 2), 0
        while size and trials < 24:
            for at in range(0, len(steps), size):
                trials += 1
                fewer = (*steps[:at], *steps[at + size :])
                trial = replace(episode, seed=f"{episode.seed}~{trials}", steps=fewer)
                found = self.episode(trial, is_told=False)
                del self.verdicts.findings[len(self.verdicts.findings) - len(found) :]
                if rules & {finding.rule for finding in found}:
                    steps = fewer
                    break
            else:
                size //= 2
        told = ", ".join(f"{step.kind}({step.worker}:{step.seed})" for step in steps)
        print(
            f"{episode.seed} still breaks {sorted(rules)} with {len(steps)} steps: {told}",
            flush=True,
        )

    def _set_mode(self, mode: str) -> None:
        """Enable or disable access control, and wait until every node applies that."""
        own = (("Authorization", ADMIN.authorization),)
        headers = (*own, ("Content-Type", "application/json"))
        put = Request("PUT", "/access", headers, json.dumps({"mode": mode}).encode())
        until = time.monotonic() + 30
        nodes = sorted(self.cluster.nodes)
        while time.monotonic() < until:
            self.transport.exchange(nodes[0], [put])
            told = [
                self.transport.exchange(node, [Request("GET", "/access", own)])[0] for node in nodes
            ]
            if all(
                isinstance(answer, Response) and f'"{mode}"'.encode() in answer.body
                for answer in told
            ):
                return
            time.sleep(0.2)

    def summarize(self) -> None:
        """Print the number of episodes and checks, and the findings."""
        found, known = len(self.verdicts.findings), len(self.verdicts.known)
        checks = sum(self.verdicts.checks.values())
        print(
            f"{self.episodes} episodes, {checks} checks, {found} findings, {known} of known faults"
        )
        print(
            "answers: "
            + ", ".join(f"{status} {count}" for status, count in sorted(self.statuses.items()))
        )
        print(
            "checks: "
            + ", ".join(f"{rule} {count}" for rule, count in sorted(self.verdicts.checks.items()))
        )


if __name__ == "__main__":
    sys.exit(main())
