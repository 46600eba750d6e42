"""Measure the cost of many consumers: REST consumers, members that send heartbeats, and idle event streams.

    python -m loadtest.bench.consumers [--consumers 10000] [--groups 1000] [--streams 1000] [--json FILE]

The benchmark starts one cluster of three real nodes on this machine. REST consumers are created, with the calls spread
over the nodes; they read once, and then are idle. Members of other groups send heartbeats as often as the cluster
responds. Streams (server-sent events) wait for records that do not come.

For each phase the report has the time, the nodes' CPU and memory, the calls, and the new entries of the Raft log: a
heartbeat and a read must add none. If other programs use the machine, times say little; CPU is that of the nodes alone.
"""

import asyncio
import itertools
import json
import re
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp
import click

from loadtest.bench.many_partitions import PhaseFigures, Phases
from loadtest.cluster.local_cluster import LocalCluster
from milena.cluster.admin import AdminClient
from milena.commands import output

AT_ONCE = 64
"""The number of calls in flight."""
PARTITIONS = 12
SETTLE_S = 5.0
SESSION_MS = 300_000
"""The longest session timeout, in ms: a busy machine must not make a member lose its session."""
EVENTS = "text/event-stream"
ATTEMPTS = 20
RETRY_S = 0.5
NODES = 3
CONFLICT = 409

_COMMIT_INDEX = re.compile(r"^milena_raft_commit_index(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The figures of a phase, and the number of calls in it."""

    measured: PhaseFigures
    calls: int
    raft_entries: int

    @property
    def calls_per_s(self) -> float:
        """Return the average number of calls per second."""
        return self.calls / self.measured.wall_s


class ConsumerCaller:
    """Makes calls, each to the next node."""

    def __init__(self, session: aiohttp.ClientSession, urls: Sequence[str]) -> None:
        self._session = session
        self._urls = urls
        self._round = itertools.cycle(urls)
        self._room = asyncio.Semaphore(AT_ONCE)
        self.calls = 0

    async def call(self, method: str, path: str, body: object = None) -> bytes:
        """Make a call until it succeeds; return its body. A node's temporary refusal is retried.

        Raises:
            click.ClickException: the call failed for good.
        """
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        async with self._room:
            said = ""
            for attempt in range(ATTEMPTS):
                url = next(self._round) + path
                async with self._session.request(method, url, data=data, headers=headers) as answer:
                    found = await answer.read()
                if answer.status < 300 or (attempt and answer.status == CONFLICT):
                    # The name is taken by an earlier attempt of this call, whose fate was unknown.
                    self.calls += 1
                    return found
                said = f"{method} {path}: {answer.status} {found.decode(errors='replace')[:200]}"
                if answer.status < 500:
                    break
                await asyncio.sleep(RETRY_S)
        raise click.ClickException(said)

    async def stream(self, number: int, path: str) -> aiohttp.ClientResponse:
        """Return a response whose body stays open."""
        url = self._urls[number % len(self._urls)] + path
        for _ in range(ATTEMPTS):
            answer = await self._session.get(url, headers={"Accept": EVENTS})
            if answer.status == 200:
                return answer
            answer.close()
            await asyncio.sleep(RETRY_S)
        raise click.ClickException(f"GET {path}: no stream within {ATTEMPTS} attempts")

    async def raft_entries(self) -> int:
        """Return how many entries the Raft log has had."""
        text = (await self.call("GET", "/metrics")).decode()
        found = _COMMIT_INDEX.search(text)
        if found is None:
            raise click.ClickException("/metrics does not tell the commit index")
        return int(float(found[1]))


class Bench:
    """Runs phases on a cluster, and keeps their figures."""

    def __init__(self, cluster: LocalCluster, caller: ConsumerCaller, *, idle_s: float) -> None:
        self._phases = Phases(cluster)
        self._caller = caller
        self._idle_s = idle_s
        self.counted: list[Counted] = []

    async def phase(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Do the work of a phase, and measure it."""
        entries = await self._caller.raft_entries()
        calls = self._caller.calls
        self._phases.restart()
        await work()
        measured = self._phases.end(name)
        click.echo(f"{name}: {measured.wall_s:.1f} s", err=True)
        done = self._caller.calls - calls
        grown = await self._caller.raft_entries() - entries
        self.counted.append(Counted(measured=measured, calls=done, raft_entries=grown))

    async def idle(self) -> None:
        """Wait without any calls."""
        await asyncio.sleep(self._idle_s)


async def together(work: Iterable[Awaitable[object]]) -> None:
    """Await all of the work."""
    await asyncio.gather(*work)


async def measure(
    cluster: LocalCluster,
    *,
    consumers: int,
    groups: int,
    members: int,
    streams: int,
    idle_s: float,
    beat_s: float,
) -> list[Counted]:
    """Run all phases on a cluster that is ready and empty; return their figures."""
    urls = [node.url for node in cluster.nodes]
    limits = aiohttp.ClientTimeout(total=None, sock_connect=30)
    async with (
        AdminClient(urls[0], timeout_s=60) as admin,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limits) as session,
    ):
        await admin.create_topic("busy", partitions=PARTITIONS, replication_factor=NODES)
        caller = ConsumerCaller(session, urls)
        bench = Bench(cluster, caller, idle_s=idle_s)
        await bench.phase("idle, empty", bench.idle)
        if consumers:
            await _rest_consumers(bench, caller, consumers, groups)
        if members:
            await _members(bench, caller, members, beat_s)
        if streams:
            await _streams(bench, caller, streams)
    return bench.counted


async def _rest_consumers(bench: Bench, caller: ConsumerCaller, count: int, groups: int) -> None:
    at = [f"/consumers/rest-{n % groups}/instances/c{n}" for n in range(count)]

    async def make(number: int) -> None:
        body = {"name": f"c{number}", "format": "json"}
        await caller.call("POST", f"/consumers/rest-{number % groups}", body)

    async def subscribe(number: int) -> None:
        await caller.call("POST", f"{at[number]}/subscription", {"topics": ["busy"]})

    async def read(number: int) -> None:
        await caller.call("GET", f"{at[number]}/records?timeout=1")

    await bench.phase(f"{count} REST consumers: made", lambda: together(map(make, range(count))))
    await bench.phase("subscribed", lambda: together(map(subscribe, range(count))))
    await asyncio.sleep(SETTLE_S)
    await bench.phase("each reads once", lambda: together(map(read, range(count))))
    await bench.phase("each reads again", lambda: together(map(read, range(count))))
    await bench.phase("idle", bench.idle)


async def _members(bench: Bench, caller: ConsumerCaller, count: int, beat_s: float) -> None:
    """Measure members that send heartbeats for ``beat_s`` seconds, ``AT_ONCE`` at a time, without a pause."""
    size = max(1, min(PARTITIONS, count))
    beats: list[dict[str, object]] = [{} for _ in range(count)]
    waiting: set[int] = set()

    async def beat(number: int) -> None:
        sent = beats[number] or {
            "member_id": f"m{number}",
            "member_epoch": 0,
            "topics": ["busy"],
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": SESSION_MS,
            "owned": [],
        }
        path = f"/groups/beat-{number // size}/heartbeat"
        found = json.loads(await caller.call("POST", path, sent))
        beats[number] = {
            "member_id": found["member_id"],
            "member_epoch": found["member_epoch"],
            "owned": found["assignment"],
        }
        (waiting.add if found["pending"] else waiting.discard)(number)

    async def settle() -> None:
        before: list[dict[str, object]] = []
        while beats != before or waiting:
            before = list(beats)
            await together(map(beat, range(count)))

    async def keep_beating() -> None:
        end_s = time.monotonic() + beat_s

        async def some(first: int) -> None:
            for number in itertools.cycle(range(first, count, AT_ONCE)):
                if time.monotonic() > end_s:
                    return
                await beat(number)

        await together(map(some, range(min(AT_ONCE, count))))

    await bench.phase(f"{count} members: joined", settle)
    await bench.phase("beating", keep_beating)


async def _streams(bench: Bench, caller: ConsumerCaller, count: int) -> None:
    open_streams: list[aiohttp.ClientResponse] = []

    async def follow(number: int) -> None:
        path = f"/topics/busy/partitions/{number % PARTITIONS}/records?offset=latest"
        open_streams.append(await caller.stream(number, path))

    await bench.phase(f"{count} streams: opened", lambda: together(map(follow, range(count))))
    await bench.phase("streams idle", bench.idle)
    for answer in open_streams:
        answer.close()


def table(counted: Sequence[Counted]) -> str:
    """Return the report for people."""
    return output.table(
        ("PHASE", "WALL S", "CALLS/S", "RAFT ENTRIES", "CPU % A NODE", "RSS MB A NODE"),
        [
            (
                c.measured.phase,
                f"{c.measured.wall_s:.1f}",
                f"{c.calls_per_s:.0f}" if c.calls else "-",
                str(c.raft_entries),
                " ".join(
                    f"{100 * cpu_s / c.measured.wall_s:.1f}"
                    for _, cpu_s in sorted(c.measured.cpu_s.items())
                ),
                " ".join(f"{mb:.0f}" for _, mb in sorted(c.measured.rss_mb.items())),
            )
            for c in counted
        ],
    )


@click.command(help=__doc__)
@click.option("--consumers", default=10_000, show_default=True, type=click.IntRange(min=0))
@click.option("--groups", default=1_000, show_default=True, type=click.IntRange(min=1))
@click.option("--members", default=1_000, show_default=True, type=click.IntRange(min=0))
@click.option("--streams", default=1_000, show_default=True, type=click.IntRange(min=0))
@click.option("--idle", "idle_s", default=30.0, show_default=True, metavar="SECONDS")
@click.option("--beat", "beat_s", default=10.0, show_default=True, metavar="SECONDS")
@click.option("--directory", type=click.Path(path_type=Path), help="For data and logs; kept.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Figures for programs.")
def main(
    *,
    consumers: int,
    groups: int,
    members: int,
    streams: int,
    idle_s: float,
    beat_s: float,
    directory: Path | None,
    json_path: Path | None,
) -> None:
    """Measure what many consumers cost on nodes of this machine."""

    async def run(where: Path) -> list[Counted]:
        async with LocalCluster(where, node_count=NODES) as cluster:
            return await measure(
                cluster,
                consumers=consumers,
                groups=groups,
                members=members,
                streams=streams,
                idle_s=idle_s,
                beat_s=beat_s,
            )

    with tempfile.TemporaryDirectory(prefix="consumers-") as temporary:
        counted = asyncio.run(run(directory or Path(temporary)))
    click.echo(f"{consumers} REST consumers in {groups} groups on {NODES} nodes\n")
    click.echo(table(counted))
    if json_path is not None:
        phases = [asdict(c) for c in counted]
        json_path.write_text(json.dumps({"phases": phases}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
