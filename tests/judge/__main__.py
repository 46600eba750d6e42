"""Judge a cluster that is started for it: `python -m tests.judge --seconds 600 --seed 1 --ports 48000`."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.judge.client import Request, Response, SocketTransport
from tests.judge.cluster import Cluster
from tests.judge.driver import Driver, plan
from tests.judge.faults import Storm
from tests.judge.known import KNOWN
from tests.judge.rules import Verdicts
from tests.judge.world import ADMIN


def main() -> int:
    """Run the judge; the exit code is 1 where there are findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.judge", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", default=str(int(time.time())))
    parser.add_argument("--ports", type=int, default=48000)
    parser.add_argument("--episode", type=int, help="run this one alone")
    parser.add_argument("--kinds", default="", help="steps to draw from, separated by commas")
    parser.add_argument("--source", default=".", help="the tree whose nodes are judged")
    parser.add_argument("--keep", action="store_true", help="keep the folder of the cluster")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="milena-judge-"))
    cluster = Cluster(folder, args.ports, source=Path(args.source).resolve())
    verdicts = Verdicts(KNOWN)
    print(f"seed {args.seed}, nodes in {folder}", flush=True)
    try:
        cluster.start()
        judge(cluster, verdicts, args)
    finally:
        cluster.stop(keep=args.keep)
    return 1 if verdicts.findings else 0


def set_mode(transport: SocketTransport, nodes: list[int], mode: str) -> None:
    """Open or close the cluster, and wait until every node has heard of it."""
    own = (("Authorization", ADMIN.authorization),)
    put = Request(
        "PUT",
        "/access",
        (*own, ("Content-Type", "application/json")),
        json.dumps({"mode": mode}).encode(),
    )
    until = time.monotonic() + 30
    while time.monotonic() < until:
        transport.exchange(nodes[0], [put])
        told = [transport.exchange(node, [Request("GET", "/access", own)])[0] for node in nodes]
        if all(
            isinstance(answer, Response) and f'"{mode}"'.encode() in answer.body for answer in told
        ):
            return
        time.sleep(0.2)


def judge(cluster: Cluster, verdicts: Verdicts, args: argparse.Namespace) -> None:
    """Run episodes until the time is over."""
    transport = SocketTransport(cluster.addresses())
    driver = Driver(transport, sorted(cluster.nodes), verdicts)
    asked = transport.exchange(
        1, [Request("GET", "/v3/clusters", (("Authorization", ADMIN.authorization),))]
    )[0]
    assert isinstance(asked, Response), asked
    driver.cluster_id = json.loads(asked.body)["data"][0]["cluster_id"]
    until = time.monotonic() + args.seconds
    number, told = args.episode or 0, 0
    statuses: dict[str, int] = {}
    while time.monotonic() < until:
        episode = plan(
            f"{args.seed}/{number}", kinds=[kind for kind in args.kinds.split(",") if kind]
        )
        world = driver.world(episode, f"j{args.seed}-{number}-{int(time.time()) % 100000}")
        set_mode(transport, sorted(cluster.nodes), "required" if episode.is_closed else "off")
        driver.prepare(episode, world)
        storm = Storm(cluster, random.Random(f"{episode.seed} faults"))
        if episode.is_stormy:
            storm.start()
        driver.run(episode, world)
        if not storm.stop():
            verdicts.check(
                "J-available",
                False,
                "readyz",
                "every node ready within 60 s",
                "; ".join(storm.told),
            )
        driver.end(episode, world)
        if verdicts.findings[told:] and storm.told:
            print(f"{episode.seed} faults: {'; '.join(storm.told)}", flush=True)
        for node in cluster.died():
            verdicts.check("J-alive", False, "process", f"node {node} alive", "its process ended")
            cluster.launch(node)
            cluster.wait_ready(60)
        for finding in verdicts.findings[told:]:
            print(finding.line(), flush=True)
        told = len(verdicts.findings)
        for status, count in world.statuses.items():
            statuses[status] = statuses.get(status, 0) + count
        number += 1
        if args.episode is not None:
            break
    print(
        f"{number} episodes, {sum(verdicts.checks.values())} checks, {len(verdicts.findings)} findings, "
        f"{len(verdicts.known)} of known faults; answers {dict(sorted(statuses.items()))}"
    )
    print(
        "checks by rule: "
        + ", ".join(f"{rule} {count}" for rule, count in sorted(verdicts.checks.items()))
    )


if __name__ == "__main__":
    sys.exit(main())
