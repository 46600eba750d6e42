"""Test consumer groups while nodes are killed, paused and disconnected, and while members break down.

    python -m tests.chaos.groups --scenario kill-leader --seconds 60 --seed 7 --work chaos-runs/groups

The scenarios and the writers are those of ``run``. Two groups read the topic: one of members that send heartbeats, and
one of REST consumers together with one such member. ``tests.support.groups.checker`` checks their histories. Exit
codes: 0 fine, 1 a safety violation, 2 not live, 3 inconclusive.
"""

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import aiohttp
import click

from tests.chaos.adapter import Adapter
from tests.chaos.cluster import Cluster
from tests.chaos.disks import enter_mount_namespace
from tests.chaos.history import History, Started
from tests.chaos.nemesis import Nemesis
from tests.chaos.network import Network
from tests.chaos.report import Verdict
from tests.chaos.run import FAULTS_END_S, create_topics, wait_up
from tests.chaos.scenarios import Cycle, plan
from tests.chaos.setup import DiskKind, NetworkKind, Setup, milena_setup
from tests.chaos.workload import WorkloadRunner
from tests.support.groups.checker import NOTED_ONLY, Finding, findings
from tests.support.groups.history import Commit, Fate, Fenced, GroupHistory, Processed
from tests.support.groups.members import Clock, Habits, Member, RefusedError, UnknownError
from tests.support.groups.over_http import HttpGroupApi, HttpRestApi
from tests.support.groups.rest_members import RestMember

PARTITIONS = 6
WRITERS, READERS = 6, 1
REQUESTS_PER_S = 8.0
DRAIN_S = 60.0
POLL_S = 0.2
HABITS = Habits(session_s=3.0, turn_s=0.15, harm_chance=0.008)


@dataclass(slots=True)
class Troop:
    """A group and its members."""

    group: str
    history: GroupHistory = field(default_factory=GroupHistory)
    members: list[Member | RestMember] = field(default_factory=list)

    @property
    def is_of_members(self) -> bool:
        """Return whether the group has no REST consumers."""
        return all(isinstance(member, Member) for member in self.members)


class GroupWorkload:
    """Runs the members of both groups."""

    def __init__(
        self, session: aiohttp.ClientSession, setup: Setup, urls: list[str], *, members: int
    ) -> None:
        rng = random.Random(f"{setup.seed}/groups")
        clock = Clock(time.monotonic, asyncio.sleep)
        self.troops = [Troop("members"), Troop("mixed")]
        self._topic = setup.topic
        self._calls = {
            troop.group: HttpGroupApi(
                session, urls, group=troop.group, topic=setup.topic, rng=random.Random(rng.random())
            )
            for troop in self.troops
        }
        rest = HttpRestApi(
            session, urls, group="mixed", topic=setup.topic, rng=random.Random(rng.random())
        )
        own, mixed = self.troops
        for number in range(members):
            own.members.append(
                Member(
                    f"m{number}", self._calls["members"], own.history, clock,
                    random.Random(rng.random()), HABITS,
                )
            )  # fmt: skip
            mixed.members.append(
                RestMember(
                    f"r{number}", rest, mixed.history, clock, random.Random(rng.random()), HABITS
                )
            )
        mixed.members.append(
            Member(
                "x0",
                self._calls["mixed"],
                mixed.history,
                clock,
                random.Random(rng.random()),
                HABITS,
            )
        )

    def start(self) -> list["asyncio.Task[None]"]:
        """Start all members; return their tasks."""
        return [
            asyncio.create_task(member.run()) for troop in self.troops for member in troop.members
        ]

    async def finish(self, ends: dict[int, int]) -> None:
        """Stop the members' breakdowns; wait until all records are read and committed, or time out."""
        for troop in self.troops:
            troop.history.ends = dict(ends)
            for member in troop.members:
                member.is_calm = True
        deadline_s = time.monotonic() + DRAIN_S
        for troop in self.troops:
            while not await self._is_done(troop) and time.monotonic() < deadline_s:
                await asyncio.sleep(POLL_S)
            troop.history.is_drained = True
            if troop.is_of_members:
                troop.history.survivors = tuple(member.name for member in troop.members)
        for troop in self.troops:
            for member in troop.members:
                member.is_over = True

    async def _is_done(self, troop: Troop) -> bool:
        try:
            committed = await troop.members[-1].look()
        except (RefusedError, UnknownError):
            return False
        is_read = all(committed.get(p, 0) == end for p, end in troop.history.ends.items())
        if not is_read or not troop.is_of_members:
            return is_read
        own = [member.owned for member in troop.members if isinstance(member, Member)]
        return set().union(*own) == set(troop.history.ends) and all(own)


async def ends_of(setup: Setup, cluster: Cluster) -> dict[int, int]:
    """Return the end offset of each partition."""
    found = {}
    async with aiohttp.ClientSession() as session:
        for partition in range(setup.partitions):
            path = f"/topics/{setup.topic}/partitions/{partition}/offsets"
            while partition not in found:
                with contextlib.suppress(aiohttp.ClientError, TimeoutError, LookupError):
                    async with session.get(cluster.nodes[0].url + path) as response:
                        found[partition] = int((await response.json())["end_offset"])
                await asyncio.sleep(POLL_S)
    return found


async def conduct(
    setup: Setup, cluster: Cluster, history: History, cycles: list[Cycle], members: int
) -> list[Troop]:
    """Start, run the members under faults, heal, and finish; return the groups."""
    connections = aiohttp.TCPConnector(limit=0)
    async with (
        Adapter(ready_path=cluster.target.ready_path) as adapter,
        aiohttp.ClientSession(connector=connections) as session,
    ):
        cluster.start()
        await wait_up(setup, cluster, adapter)
        nemesis = Nemesis(setup, cluster, adapter, history)
        await create_topics(setup, cluster, adapter, nemesis)
        writers = WorkloadRunner(setup, cluster, adapter, history)
        urls = [node.url for node in cluster.nodes]
        workload = GroupWorkload(session, setup, urls, members=members)
        history.add(Started(at_s=history.now_s()))
        tasks = workload.start()
        faults = asyncio.create_task(nemesis.run(cycles))
        try:
            await writers.run()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(faults, FAULTS_END_S)
            await nemesis.heal()
            await wait_up(setup, cluster, adapter)
            await workload.finish(await ends_of(setup, cluster))
        finally:
            faults.cancel()
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
    return workload.troops


@dataclass(slots=True)
class GroupReport:
    """The findings about the groups of a run."""

    found: list[Finding]
    figures: dict[str, int]

    @property
    def verdict(self) -> Verdict:
        """Return the verdict: starvation is a liveness fault, all others are safety faults."""
        names = {name for name, _ in self.found} - NOTED_ONLY
        if any(not name.startswith("starved") for name in names):
            return Verdict.UNSAFE
        if names:
            return Verdict.NOT_LIVE
        return Verdict.GOOD if self.figures["processed"] else Verdict.INCONCLUSIVE

    def lines(self) -> Iterator[str]:
        """Yield the lines of a report for people."""
        for name, text in self.found[:20]:
            yield f"{name}: {text}"[:400]
        yield ", ".join(f"{count} {what}" for what, count in self.figures.items())
        yield f"verdict: {self.verdict.name}"


def judge(troops: list[Troop]) -> GroupReport:
    """Check all groups of a run."""
    found = [finding for troop in troops for finding in findings(troop.history)]
    histories = [troop.history for troop in troops]
    commits = [e for h in histories for e in h.of(Commit) if isinstance(e, Commit)]
    figures = {
        "records": sum(sum(h.ends.values()) for h in histories),
        "processed": sum(
            len(e.values) for h in histories for e in h.of(Processed) if isinstance(e, Processed)
        ),
        **{f"commits {fate}": sum(c.fate is fate for c in commits) for fate in Fate},
        "fenced heartbeats": sum(1 for h in histories for _ in h.of(Fenced)),
        "breakdowns of members": sum(len(m.harms) for troop in troops for m in troop.members),
    }
    return GroupReport(found, figures)


def run_once(setup: Setup, work: Path, *, members: int, is_kept: bool) -> GroupReport:
    """Conduct a run in a new directory, and check it."""
    cycles = plan(setup.scenario, setup.seconds, setup.seed, setup.disk, setup.network)
    work.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        network = None
        if setup.network is NetworkKind.NETNS or setup.disk is not DiskKind.DIR:
            enter_mount_namespace()
        if setup.network is NetworkKind.NETNS:
            network = Network(setup.node_count, setup.seed)
            stack.callback(network.close)
        cluster = Cluster(setup, work, network)
        stack.callback(cluster.close)
        history = stack.enter_context(History(work / "history.jsonl"))
        troops = asyncio.run(conduct(setup, cluster, history, cycles, members))
        report = judge(troops)
    for troop in troops:
        lines = [f"{type(e).__name__} {e}\n" for e in troop.history.events]
        (work / f"group-{troop.group}.txt").write_text("".join(lines))
    (work / "groups.json").write_text(json.dumps(asdict(report), indent=1) + "\n")
    if report.verdict is Verdict.GOOD and not is_kept:
        cluster.remove_data()
    return report


@click.command(help=__doc__)
@click.option("--scenario", default="kill-leader", show_default=True)
@click.option("--seconds", type=float, default=60.0, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--members", type=click.IntRange(1, PARTITIONS), default=4, show_default=True)
@click.option("--disk", type=click.Choice([k.value for k in DiskKind]), default="dir")
@click.option("--network", type=click.Choice([k.value for k in NetworkKind]), default="none")
@click.option("--work", type=click.Path(path_type=Path), required=True, help="A new directory.")
@click.option("--keep", "is_kept", is_flag=True, help="Keep the data of a good run.")
def main(
    scenario: str,
    seconds: float,
    seed: int,
    members: int,
    disk: str,
    network: str,
    work: Path,
    is_kept: bool,
) -> None:
    """Run one scenario with one seed; see the module."""
    setup = milena_setup(scenario, seconds, seed)
    workload = replace(
        setup.workload,
        writers=WRITERS,
        readers=READERS,
        requests_per_s=REQUESTS_PER_S,
        transactions_per_s=0.0,
    )
    setup = replace(
        setup,
        partitions=PARTITIONS,
        workload=workload,
        disk=DiskKind(disk),
        network=NetworkKind(network),
    )
    report = run_once(setup, work.resolve(), members=members, is_kept=is_kept)
    print(*report.lines(), sep="\n")
    sys.exit(report.verdict)


if __name__ == "__main__":
    main()
