"""Measure the cost of many partitions: their creation, their idle time, and the failover of a killed node's leaders.

    python -m loadtest.bench.many_partitions [--partitions 1000] [--topics 1] [--nodes 3] [--json FILE]

The benchmark starts one cluster of real nodes on this machine. Its phases: create the topics, and wait until every
replica is in sync; leave the nodes idle; kill -9 one node, and wait until other nodes lead its partitions and accept
writes; start the node again, and wait until all its replicas are in sync.

If other programs use the machine, times say little; CPU is that of the nodes alone. The exit code is 1 if the creation
took longer than ``--create-limit``.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import psutil

from loadtest.bench.measuring.process_cpu import tree_cpu_s
from loadtest.cluster.local_cluster import LocalCluster, LocalNode
from milena.cluster.admin import AdminClient
from milena.cluster.http import HttpCall, HttpSession, json_of
from milena.cluster.view import ClusterView
from milena.commands import output
from milena.errors import AnswerError, ClientError, UnreachableError

POLL_S = 0.1
SETTLE_S = 3.0
"""Seconds to wait after the creation, until checkpoints and preferred leaders are done."""
TIMEOUT_S = 300.0
REQUEST_PARTITIONS_MAX = 1_000
"""The most partitions that one request may create."""
WRITES_AT_ONCE = 32
CREATIONS_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFigures:
    """The figures of a phase, by running node: ``cpu_s`` of the phase, and ``rss_mb`` at its end."""

    phase: str
    wall_s: float
    cpu_s: dict[int, float]
    rss_mb: dict[int, float]

    @property
    def cpu_percent(self) -> float:
        """Return the CPU use of the busiest node, in percent of one core."""
        return 100 * max(self.cpu_s.values()) / self.wall_s


class Phases:
    """Measures one phase after the other of a running cluster."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.measured: list[PhaseFigures] = []
        self._cluster = cluster
        self.restart()

    def restart(self) -> None:
        """Start the measurement of the next phase now."""
        self._began_s = time.monotonic()
        self._cpu = {node.node_id: _cpu_s(node) for node in self._running()}

    def end(self, phase: str) -> PhaseFigures:
        """End a phase and return its figures; the next phase starts now."""
        wall_s = time.monotonic() - self._began_s
        running = self._running()
        measured = PhaseFigures(
            phase=phase,
            wall_s=wall_s,
            cpu_s={n.node_id: _cpu_s(n) - self._cpu.get(n.node_id, 0.0) for n in running},
            rss_mb={n.node_id: _rss_mb(n) for n in running},
        )
        self.measured.append(measured)
        self.restart()
        return measured

    def _running(self) -> list[LocalNode]:
        return [node for node in self._cluster.nodes if node.process.is_running]


def _cpu_s(node: LocalNode) -> float:
    assert node.process.pid is not None, "the node was started"
    return tree_cpu_s(node.process.pid)


def _rss_mb(node: LocalNode) -> float:
    return float(psutil.Process(node.process.pid).memory_info().rss / (1 << 20))


async def measure(
    cluster: LocalCluster, *, partitions: int, topics: int, replication: int, idle_s: float
) -> list[PhaseFigures]:
    """Run all phases on a cluster that is ready and empty; return their figures."""
    survivor, victim = cluster.nodes[0], cluster.nodes[-1]
    phases = Phases(cluster)
    async with AdminClient(survivor.url, timeout_s=60) as admin:
        await asyncio.sleep(idle_s)
        phases.end("idle, empty")
        await _create(admin, partitions=partitions, topics=topics, replication=replication)
        phases.end("create: answered")
        view = await admin.cluster()
        assert len(list(view.partitions())) == partitions, "the node that answered knows them all"
        # The metadata show all replicas in sync from the start. Only a write proves that the replicas exist.
        await _write_each(survivor, [(t.name, p.partition) for t, p in view.partitions()])
        phases.end("create: each written to")
        await asyncio.sleep(SETTLE_S)
        phases.restart()
        await asyncio.sleep(idle_s)
        phases.end("idle")
        view = await admin.cluster()
        led = [(t.name, p.partition) for t, p in view.partitions() if p.leader == victim.node_id]
        victim.process.kill()
        phases.restart()
        await _until(admin, lambda view: _led_by_others(view, victim.node_id) == partitions)
        phases.end(f"kill -9: {len(led)} leaders elsewhere")
        await _write_each(survivor, led)
        phases.end("kill -9: each written to")
        victim.process.start()
        await cluster.wait_ready(victim)
        await _until(admin, lambda view: _in_sync(view) == partitions)
        phases.end("restart: all in sync")
    return phases.measured


async def _create(admin: AdminClient, *, partitions: int, topics: int, replication: int) -> None:
    counts = [partitions // topics + (i < partitions % topics) for i in range(topics)]
    room = asyncio.Semaphore(CREATIONS_AT_ONCE)

    async def create(name: str, count: int) -> None:
        async with room:
            first = min(count, REQUEST_PARTITIONS_MAX)
            await admin.create_topic(name, partitions=first, replication_factor=replication)
            for wanted in range(first + REQUEST_PARTITIONS_MAX, count, REQUEST_PARTITIONS_MAX):
                await admin.add_partitions(name, wanted)
            if count > first:
                await admin.add_partitions(name, count)

    async with asyncio.TaskGroup() as group:
        for number, count in enumerate(counts):
            group.create_task(create(f"many-{number:04}", count))


def _in_sync(view: ClusterView) -> int:
    return sum(p.leader is not None and not p.is_under_replicated for _, p in view.partitions())


def _led_by_others(view: ClusterView, node_id: int) -> int:
    return sum(p.leader not in {None, node_id} for _, p in view.partitions())


async def _until(admin: AdminClient, condition: Callable[[ClusterView], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            if condition(await admin.cluster()):
                return
        except UnreachableError:
            pass
        if time.monotonic() > deadline_s:
            raise click.ClickException(f"it did not happen within {TIMEOUT_S:g} s")
        await asyncio.sleep(POLL_S)


async def _write_each(node: LocalNode, places: Sequence[tuple[str, int]]) -> None:
    """Write one record to each partition, with retries until it is accepted."""
    room = asyncio.Semaphore(WRITES_AT_ONCE)
    body = json.dumps({"records": [{"value": "x"}]}).encode()

    async def write(http: HttpSession, topic: str, partition: int) -> None:
        call = HttpCall(method="POST", path=f"/topics/{topic}/partitions/{partition}", body=body)
        async with room:
            while True:
                try:
                    json_of(await http.send(call), "produce")
                except AnswerError as error:
                    if error.status < 500:
                        raise
                except ClientError:
                    pass
                else:
                    return
                await asyncio.sleep(POLL_S)

    async with HttpSession(node.url, timeout_s=30) as http, asyncio.TaskGroup() as group:
        for topic, partition in places:
            group.create_task(write(http, topic, partition))


def table(measured: Sequence[PhaseFigures]) -> str:
    """Return the report for people."""
    return output.table(
        ("PHASE", "WALL S", "CPU S A NODE", "CPU % BUSIEST", "RSS MB A NODE"),
        [
            (
                m.phase,
                f"{m.wall_s:.1f}",
                " ".join(f"{m.cpu_s[i]:.2f}" for i in sorted(m.cpu_s)),
                f"{m.cpu_percent:.1f}",
                " ".join(f"{m.rss_mb[i]:.0f}" for i in sorted(m.rss_mb)),
            )
            for m in measured
        ],
    )


@click.command()
@click.option("--partitions", default=1000, show_default=True, type=click.IntRange(min=1))
@click.option("--topics", default=1, show_default=True, type=click.IntRange(min=1))
@click.option("--nodes", default=3, show_default=True, type=click.Choice(["1", "3", "5"]))
@click.option("--replication", default=3, show_default=True, type=click.IntRange(min=1))
@click.option("--idle", "idle_s", default=10.0, show_default=True, metavar="SECONDS")
@click.option("--create-limit", "limit_s", default=30.0, show_default=True, metavar="SECONDS")
@click.option("--directory", type=click.Path(path_type=Path), help="For data and logs; kept.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Figures for programs.")
def main(
    *,
    partitions: int,
    topics: int,
    nodes: str,
    replication: int,
    idle_s: float,
    limit_s: float,
    directory: Path | None,
    json_path: Path | None,
) -> None:
    """Measure what many partitions cost on nodes of this machine."""

    async def run(where: Path) -> list[PhaseFigures]:
        async with LocalCluster(where, node_count=int(nodes)) as cluster:
            return await measure(
                cluster,
                partitions=partitions,
                topics=topics,
                replication=min(replication, int(nodes)),
                idle_s=idle_s,
            )

    with tempfile.TemporaryDirectory(prefix="many-partitions-") as temporary:
        measured = asyncio.run(run(directory or Path(temporary)))
    click.echo(f"{partitions} partitions in {topics} topics on {nodes} nodes\n")
    click.echo(table(measured))
    created_s = sum(m.wall_s for m in measured if m.phase.startswith("create"))
    if json_path is not None:
        figures = {
            "partitions": partitions,
            "topics": topics,
            "nodes": int(nodes),
            "created_s": created_s,
            "phases": [asdict(m) for m in measured],
        }
        json_path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if created_s > limit_s:
        click.echo(f"\ncreation took {created_s:.1f} s, more than {limit_s:g} s", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
