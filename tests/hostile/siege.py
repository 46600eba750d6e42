"""Attacks one after the other on a running cluster, with a decent client beside them, and the judgement."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from loadtest.cluster.local_cluster import LocalCluster
from tests.hostile.attacks import Attack, Outcomes, Scale, prepare
from tests.hostile.victim import TOPIC, DecentClient, Footprint, SignIn, Tally, footprint

RSS_GROWTH_MAX = 640 << 20
"""While an attack runs: the bodies that may be under way (512 MiB), and what is made of a few of them."""
RSS_REST_MAX = 200 << 20
"""What may be left of it once all is over, above what a node takes that has seen no attack."""
DESCRIPTORS_REST_MAX = 16
WATCH_S = 0.05


@dataclass(slots=True)
class Assault:
    """One attack as it went. Memory in bytes, of the attacked node."""

    name: str
    seconds: float
    outcomes: Outcomes
    tally: Tally
    rss_before: int
    rss_peak: int

    def __str__(self) -> str:
        return (
            f"{self.name:24}{self.seconds:6.1f} s  {dict(self.outcomes)}  memory "
            f"{self.rss_before >> 20} -> {self.rss_peak >> 20} MB  decent client: {self.tally}"
        )


async def besiege(
    cluster: LocalCluster,
    attacks: Sequence[Attack],
    scale: Scale,
    report: Callable[[object], None] = lambda _: None,
    *,
    authorization: str = "",
    sign_in: SignIn | None = None,
) -> list[Assault]:
    """Run them all, then judge. ``authorization`` and ``sign_in``: those of the decent client on a closed cluster.

    Raises:
        AssertionError: the node lost something, kept something, or kept others waiting.
    """
    prepare()
    client = DecentClient(cluster, cluster.nodes[0], authorization=authorization, sign_in=sign_in)
    await _create(cluster, client, TOPIC)
    await _create(cluster, client, "large")
    quiet = await _calm(client)
    report(f"{'before any attack':24}        decent client: {quiet}")
    before = footprint(cluster.nodes)
    assaults = []
    for attack in attacks:
        assault = await _assault(cluster, client, attack, scale)
        report(assault)
        assaults.append(assault)
    await _judge(cluster, client, before, assaults, scale)
    return assaults


async def _create(cluster: LocalCluster, client: DecentClient, topic: str) -> None:
    body = {
        "topic_name": topic,
        "partitions_count": 1,
        "replication_factor": len(cluster.nodes),
    }
    status, content = await client.request("POST", "/admin/topics", json.dumps(body).encode())
    assert status in (200, 201), content


async def _calm(client: DecentClient) -> Tally:
    async with client.writing() as tally:
        await asyncio.sleep(1)
    return tally


async def _assault(
    cluster: LocalCluster, client: DecentClient, attack: Attack, scale: Scale
) -> Assault:
    node = cluster.nodes[0]
    before = footprint([node])
    stop = asyncio.Event()
    peaks: list[int] = []
    async with client.writing() as tally:
        watching = asyncio.create_task(_watch(cluster, stop, peaks))
        began = time.perf_counter()
        outcomes = await attack(node, scale)
        seconds = time.perf_counter() - began
        while not tally.latencies:
            # An attack may be over before anybody could write beside it.
            await asyncio.sleep(WATCH_S)
        stop.set()
        await watching
    return Assault(
        attack.__name__.replace("_", "-"),
        seconds,
        outcomes,
        tally,
        before.rss[0],
        max(peaks, default=0),
    )


async def _watch(cluster: LocalCluster, stop: asyncio.Event, peaks: list[int]) -> None:
    while not stop.is_set():
        peaks.append(footprint(cluster.nodes[:1]).rss[0])
        with suppress(TimeoutError):
            async with asyncio.timeout(WATCH_S):
                await stop.wait()


async def _judge(
    cluster: LocalCluster,
    client: DecentClient,
    before: Footprint,
    assaults: list[Assault],
    scale: Scale,
) -> None:
    assert all(node.process.is_running for node in cluster.nodes), "a node died"
    found = await client.read_back()
    kept = set(found)
    missing = [value for value in client.written if value not in kept]
    assert not missing, f"{len(missing)} acknowledged writes are lost, the first is {missing[0]}"
    strangers = kept.difference(client.written, client.uncertain)
    assert not strangers, f"{len(strangers)} values that the client never sent"
    assert len(found) == len(kept), "a value is there twice"
    after = await _settled(cluster, before)
    for node, was, now in zip(cluster.nodes, before.descriptors, after.descriptors, strict=True):
        assert now <= was + DESCRIPTORS_REST_MAX, (
            f"node {node.node_id} had {was} descriptors and keeps {now}"
        )
    for node, was, now in zip(cluster.nodes, before.rss, after.rss, strict=True):
        assert now <= was + RSS_REST_MAX, (
            f"node {node.node_id} had {was >> 20} MB and keeps {now >> 20} MB"
        )
    for assault in assaults:
        growth = assault.rss_peak - assault.rss_before
        assert growth < RSS_GROWTH_MAX, f"memory grew by {growth >> 20} MB: {assault}"
        assert not assault.tally.not_signed_in, (
            f"a decent client was not let in: {assault.tally.not_signed_in}"
        )
        assert assault.tally.acknowledged, f"no write came through: {assault}"
        assert assault.tally.slowest < scale.latency_s_max, f"others waited: {assault}"


async def _settled(cluster: LocalCluster, before: Footprint) -> Footprint:
    """As soon as there is as little as before, at the latest when idle connections are given up."""
    end = time.monotonic() + 90
    while True:
        now = footprint(cluster.nodes)
        has_settled = all(
            new <= old + rest
            for olds, news, rest in (
                (before.descriptors, now.descriptors, DESCRIPTORS_REST_MAX),
                (before.rss, now.rss, RSS_REST_MAX),
            )
            for old, new in zip(olds, news, strict=True)
        )
        if has_settled or time.monotonic() > end:
            return now
        await asyncio.sleep(0.2)
