"""``milena status --watch``: looks at a cluster repeatedly, and shows what happened between two looks."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from milena.cluster.admin import AdminClient
from milena.cluster.group_admin import PartitionLag, total_lag
from milena.cluster.group_views import GroupSummary
from milena.cluster.node_metrics import MetricsView
from milena.cluster.view import ClusterView
from milena.commands import output
from milena.errors import ClientError
from milena.model.clock import Clock

QUESTIONS_MAX = 16
"""The most nodes or groups that are asked at a time."""
ROWS_MAX = 20
"""The most topics and groups that are shown: those with the most traffic or lag."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """A group and its total lag. ``lag`` is None if it is unknown in a partition.

    ``known_lag`` is the lag of the partitions where it is known.
    """

    summary: GroupSummary
    lag: int | None
    known_lag: int = 0
    is_known: bool = True
    """True if all its partitions reported; also true for a group that has committed nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A cluster at one moment.

    ``metrics`` are those of nodes that responded. ``groups`` is None if no node reported them.
    """

    at_ms: float
    view: ClusterView
    metrics: dict[int, MetricsView] = field(default_factory=dict)
    groups: tuple[GroupLag, ...] | None = ()


async def watch(
    client: AdminClient, show: Callable[[str], None], clock: Clock, *, interval_ms: float
) -> None:
    """Look and show until cancelled. If the cluster does not respond, say so and try again."""
    former: Look | None = None
    while True:
        try:
            look = await take_look(client, clock)
        except ClientError as error:
            show(f"no view of the cluster: {error.message}")
        else:
            show(look_text(look, former))
            former = look
        await clock.sleep(interval_ms)


async def take_look(client: AdminClient, clock: Clock) -> Look:
    """Return the cluster as one node knows it, and the counters of each node.

    Raises:
        ClientError: no node gave a view of the cluster.
    """
    view = await client.cluster()
    turn = asyncio.Semaphore(QUESTIONS_MAX)
    live = [node for node in view.nodes if node.is_live]

    async def metrics(url: str) -> MetricsView | None:
        async with turn:
            return await _unless_failed(client.node_metrics(url))

    answers = await asyncio.gather(*(metrics(node.url) for node in live))
    found = {
        node.node_id: answer
        for node, answer in zip(live, answers, strict=True)
        if answer is not None
    }
    at_ms = clock.now_ms()
    summaries = await _unless_failed(client.groups())
    if summaries is None:
        return Look(at_ms=at_ms, view=view, metrics=found, groups=None)

    async def group(summary: GroupSummary) -> GroupLag:
        async with turn:
            rows = await _unless_failed(group_lags(summary.group_id))
        lags = [row.lag for row in rows or () if row.lag is not None]
        return GroupLag(
            summary=summary,
            lag=total_lag(rows or []),
            known_lag=sum(lags),
            is_known=rows is not None and len(lags) == len(rows),
        )

    async def group_lags(group_id: str) -> list[PartitionLag]:
        return await client.group_lags(await client.group(group_id))

    groups = await asyncio.gather(*map(group, summaries))
    return Look(at_ms=at_ms, view=view, metrics=found, groups=tuple(groups))


async def _unless_failed(answer: Awaitable[T]) -> T | None:
    try:
        return await answer
    except ClientError:
        return None


@dataclass(slots=True)
class Traffic:
    """Traffic of a node or a topic, per second."""

    records_in: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0

    def cells(self) -> tuple[int, int, int]:
        """Return the numbers for a table."""
        return round(self.records_in), round(self.bytes_in), round(self.bytes_out)


NO_RATES = (None, None, None)


def rates(look: Look, former: Look) -> tuple[dict[int, Traffic], dict[str, Traffic]]:
    """Return what happened per second between two looks, by node and by topic.

    A counter that fell belongs to a replica that was opened again. Its new value is then the difference.
    """
    seconds = max(0.001, (look.at_ms - former.at_ms) / 1000)
    nodes: dict[int, Traffic] = {}
    topics: dict[str, Traffic] = {}
    for node_id in look.metrics.keys() & former.metrics.keys():
        node = nodes.setdefault(node_id, Traffic())
        before = former.metrics[node_id].partitions
        for where, values in look.metrics[node_id].partitions.items():
            old = before.get(where, {})
            topic = topics.setdefault(where.topic, Traffic())
            for name in ("records_in", "bytes_in", "bytes_out"):
                now, then = values.get(f"{name}_total", 0.0), old.get(f"{name}_total", 0.0)
                rate = (now - then if now >= then else now) / seconds
                setattr(node, name, getattr(node, name) + rate)
                setattr(topic, name, getattr(topic, name) + rate)
    return nodes, topics


def look_text(look: Look, former: Look | None) -> str:
    """Return nodes and topics with their rates, groups with their lag, and the verdict.

    Without a former look there are no rates.
    """
    view = look.view
    by_node, by_topic = ({}, {}) if former is None else rates(look, former)
    leads = view.leads()
    nodes = output.table(
        ("NODE", "STATE", "LEADS", "RECORDS IN/S", "BYTES IN/S", "BYTES OUT/S", "ROLE"),
        [
            (
                n.node_id,
                output.node_state(
                    n, is_current=view.is_current, has_answered=n.node_id in look.metrics
                ),
                leads[n.node_id],
                *(by_node[n.node_id].cells() if n.node_id in by_node else NO_RATES),
                "controller" if n.node_id == view.controller_id else "",
            )
            for n in view.nodes
        ],
    )
    parts = [output.heading(view), nodes]
    if view.topics:
        parts.append(_topics(view, by_topic))
    parts.append(_groups(look.groups))
    parts.append(output.verdict(view.health()))
    return "\n\n".join(part for part in parts if part)


def _topics(view: ClusterView, by_topic: dict[str, Traffic]) -> str:
    # Busy topics come first. Without rates, the order stays that of the view: by name.
    ordered = sorted(
        view.topics, key=lambda t: -by_topic[t.name].bytes_in if t.name in by_topic else 0.0
    )
    rows = [
        (
            t.name,
            len(t.partitions),
            *(by_topic[t.name].cells() if t.name in by_topic else NO_RATES),
            sum(p.is_under_replicated for p in t.partitions),
            sum(p.leader is None for p in t.partitions),
        )
        for t in ordered[:ROWS_MAX]
    ]
    headings = ("TOPIC", "PARTITIONS", "RECORDS IN/S", "BYTES IN/S", "BYTES OUT/S")
    text = output.table((*headings, "UNDER-REPLICATED", "LEADERLESS"), rows)
    return text + _more(len(view.topics), "topics")


def _groups(groups: tuple[GroupLag, ...] | None) -> str:
    if groups is None:
        return "groups: no answer"
    if not groups:
        return ""
    # An unknown lag may be the largest.
    ordered = sorted(groups, key=lambda g: (g.lag is not None, -(g.lag or 0), g.summary.group_id))
    rows = [
        (g.summary.group_id, g.summary.state, g.summary.member_count, g.lag)
        for g in ordered[:ROWS_MAX]
    ]
    return output.table(("GROUP", "STATE", "MEMBERS", "LAG"), rows) + _more(len(groups), "groups")


def _more(count: int, things: str) -> str:
    return f"\n… and {count - ROWS_MAX} more {things}" if count > ROWS_MAX else ""
