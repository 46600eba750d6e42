"""Conduct one run, from an empty directory to a report. With a network or small disks it needs its own process.

python -m tests.chaos.run --scenario kill-leader --seconds 60 --seed 7 --work chaos-runs/x
"""

import asyncio
import contextlib
import signal
import sys
from dataclasses import replace
from pathlib import Path

import click

from tests.chaos.adapter import Adapter, ApiError
from tests.chaos.checker import check
from tests.chaos.cluster import Cluster
from tests.chaos.disks import enter_mount_namespace
from tests.chaos.fake import TRANSACTION_BUGS
from tests.chaos.history import History, Meta, Started
from tests.chaos.nemesis import Nemesis
from tests.chaos.network import Network
from tests.chaos.report import Report, Verdict
from tests.chaos.scenarios import Cycle, UnknownScenarioError, has_quorum, plan
from tests.chaos.setup import Client, DiskKind, NetworkKind, Setup, fake_setup, milena_setup
from tests.chaos.workload import WorkloadRunner

POLL_S = 0.1
CREATE_ATTEMPTS = 50
LEADER_ATTEMPTS = 100
FAULTS_END_S = 45.0
"""The longest wait after the workload for the end of a cycle, in s."""
IDEMPOTENT_RETRIES = 3


class StartError(Exception):
    """The cluster did not start, so there is nothing to check."""


async def wait_up(setup: Setup, cluster: Cluster, adapter: Adapter) -> None:
    """Wait until every node serves.

    Raises:
        StartError: a node exited, or did not serve in time.
    """
    for _ in range(int(setup.start_timeout_s / POLL_S)):
        ready = await asyncio.gather(*(adapter.is_ready(n.url) for n in cluster.nodes))
        if all(ready):
            return
        for node in cluster.nodes:
            if not node.is_up:
                tail = node.process.log_tail(800)
                raise StartError(f"node {node.node_id} exited while starting:\n{tail}")
        await asyncio.sleep(POLL_S)
    raise StartError(f"not ready after {setup.start_timeout_s:g} s; see the nodes' logs")


async def create_topics(setup: Setup, cluster: Cluster, adapter: Adapter, nemesis: Nemesis) -> None:
    """Create the topics, while the metadata quorum may still elect a leader; wait for the first topic's leaders."""
    for name, partitions in setup.topics.items():
        await create_topic(setup, cluster, adapter, name, partitions)
    for partition in range(setup.partitions):
        for _ in range(LEADER_ATTEMPTS):
            if await nemesis.leader(partition) is not None:
                break
            await asyncio.sleep(POLL_S)


async def create_topic(
    setup: Setup, cluster: Cluster, adapter: Adapter, name: str, partitions: int
) -> None:
    """Create one topic, through any node.

    Raises:
        StartError: no node created it.
    """
    for attempt in range(CREATE_ATTEMPTS):
        try:
            await adapter.create_topic(
                cluster.nodes[attempt % len(cluster.nodes)].url,
                name,
                partitions=partitions,
                replication_factor=setup.replication_factor,
                configs=setup.configs,
            )
            return
        except ApiError as error:
            if attempt == CREATE_ATTEMPTS - 1:
                raise StartError(str(error)) from error
            await asyncio.sleep(2 * POLL_S)


async def conduct(setup: Setup, cluster: Cluster, history: History, cycles: list[Cycle]) -> None:
    """Start, write and read under faults, heal, and read everything back."""
    async with Adapter(ready_path=cluster.target.ready_path) as adapter:
        cluster.start()
        await wait_up(setup, cluster, adapter)
        nemesis = Nemesis(setup, cluster, adapter, history)
        await create_topics(setup, cluster, adapter, nemesis)
        workload = WorkloadRunner(setup, cluster, adapter, history)
        history.add(Started(at_s=history.now_s()))
        faults = asyncio.create_task(nemesis.run(cycles))
        try:
            await workload.run()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(faults, FAULTS_END_S)
        finally:
            faults.cancel()
        await nemesis.heal()
        await workload.read_finally()


def run_once(setup: Setup, work: Path, *, is_kept: bool) -> Report:
    """Conduct a run in a new directory, check it, and write its report."""
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
        history.add(
            Meta(
                at_s=0.0,
                scenario=setup.scenario,
                seed=setup.seed,
                has_quorum=has_quorum(setup.scenario),
                is_idempotent=setup.workload.is_idempotent,
                goals=setup.goals,
            )
        )
        asyncio.run(conduct(setup, cluster, history, cycles))
        # Check before the disks are unmounted, because a small disk's data must be kept if the run is not good.
        report = check(history.events)
    (work / "report.json").write_text(report.as_json())
    (work / "report.txt").write_text("\n".join(report.lines()) + "\n")
    if report.verdict is Verdict.GOOD and not is_kept:
        cluster.remove_data()
    return report


def make_setup(target: str, scenario: str, seconds: float, seed: int, node_count: int) -> Setup:
    """Return the setup of a target: ``milena`` or ``fake:BUG``."""
    if target == "milena":
        return milena_setup(scenario, seconds, seed)
    bug = target.partition(":")[2]
    return fake_setup(
        bug,
        scenario,
        seconds,
        seed,
        node_count=node_count,
        has_transactions=bug in TRANSACTION_BUGS,
    )


@click.command()
@click.option("--target", default="milena", show_default=True)
@click.option("--scenario", required=True)
@click.option("--seconds", type=float, default=60.0, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--nodes", "node_count", type=int, default=3, help="Of the stand-in cluster.")
@click.option("--disk", type=click.Choice([k.value for k in DiskKind]), default="dir")
@click.option("--network", type=click.Choice([k.value for k in NetworkKind]), default="none")
@click.option("--acks", default="all", show_default=True, help="Comma-separated: mixed at random.")
@click.option("--idempotent", "is_idempotent", is_flag=True, help="With retries.")
@click.option(
    "--no-transactions", "is_plain", is_flag=True, help="Writes without transactions alone."
)
@click.option("--clients", default="", help="The interfaces; default: of the target.")
@click.option("--no-goals", "has_no_goals", is_flag=True, help="Judge safety, not time.")
@click.option("--work", type=click.Path(path_type=Path), required=True, help="A new directory.")
@click.option("--keep", "is_kept", is_flag=True, help="Keep the data of a good run.")
def main(
    target: str,
    scenario: str,
    seconds: float,
    seed: int,
    node_count: int,
    disk: str,
    network: str,
    acks: str,
    is_idempotent: bool,
    is_plain: bool,
    clients: str,
    has_no_goals: bool,
    work: Path,
    is_kept: bool,
) -> None:
    """Conduct one run, and print its report; the exit code is the verdict."""
    # Exit on SIGTERM like on an error, so that processes are stopped and disks are unmounted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    setup = make_setup(target, scenario, seconds, seed, node_count)
    workload = replace(
        setup.workload,
        acks=tuple(acks.split(",")),
        is_idempotent=is_idempotent,
        retries=IDEMPOTENT_RETRIES if is_idempotent else 0,
        clients=tuple(map(Client, clients.split(","))) if clients else setup.workload.clients,
        transactions_per_s=0.0 if is_plain else setup.workload.transactions_per_s,
    )
    if has_no_goals:
        setup = replace(setup, goals=replace(setup.goals, recovery_s=None, after_heal_s=None))
    setup = replace(setup, disk=DiskKind(disk), network=NetworkKind(network), workload=workload)
    try:
        report = run_once(setup, work.resolve(), is_kept=is_kept)
    except (StartError, UnknownScenarioError) as error:
        print(f"{scenario}, seed {seed}: {error}", file=sys.stderr)
        sys.exit(Verdict.NOT_LIVE)
    print(*report.lines(), sep="\n")
    sys.exit(report.verdict)


if __name__ == "__main__":
    main()
