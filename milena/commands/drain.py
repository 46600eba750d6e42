"""``milena drain``: makes one node hand over its leaderships before it is stopped."""

from dataclasses import replace
from typing import NamedTuple

import click

from milena.cluster.admin import AdminClient
from milena.cluster.view import ClusterView, PartitionView, TopicView
from milena.commands import output
from milena.commands.options import JSON, Duration, confirm
from milena.commands.target import EXIT_DEGRADED, ClusterTarget

NAMED_MAX = 3
"""The names of a long list that a sentence has."""


class Drained(NamedTuple):
    """The result of a drain. ``left`` is what the node still leads.

    The node is asked for it, and for its id, only after a drain that failed.
    """

    is_drained: bool
    node_id: int | None
    left: list[tuple[str, PartitionView]]


@click.command()
@click.option("--timeout", "drain_s", default=30.0, show_default=True, metavar="SECONDS",
              type=Duration("s", least=0.1, most=300), help="Longest wait for other leaders: 30, 2m.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask, even if writes to topics will be refused.")
@JSON
@click.pass_obj
def drain(target: ClusterTarget, drain_s: float, yes: bool, is_json: bool) -> None:
    """Make the node at --url hand over its leaderships, before it is stopped. Exit 1 if it still leads partitions.

    The node still responds to requests, but it is no longer ready, and its replicas do not count as in sync until it
    is started again. If topics then have too few in-sync replicas for writes, the command asks first.
    """
    if not yes:
        _confirm_refused_writes(target)
    waiting = replace(target, timeout_s=drain_s + target.timeout_s)

    async def work(client: AdminClient) -> Drained:
        is_drained = await client.drain(timeout_ms=round(drain_s * 1000))
        if is_drained:
            return Drained(is_drained, None, [])
        node_id, view = await client.node_id(), await client.cluster()
        left = [(topic.name, p) for topic, p in view.partitions() if p.leader == node_id]
        return Drained(is_drained, node_id, left)

    done = waiting.run(work)
    output.show(
        is_json,
        {
            "is_drained": done.is_drained,
            "left": [{"topic": topic, "partition": p.partition} for topic, p in done.left],
        },
        _drained_text(done, drain_s),
    )
    if not done.is_drained:
        raise click.exceptions.Exit(EXIT_DEGRADED)


def _drained_text(done: Drained, drain_s: float) -> str:
    if done.is_drained:
        return "drained"
    if not done.left:
        return f"not drained within {drain_s:g} s: replicas of node {done.node_id} still count as in sync"
    count = len(done.left)
    partitions = "1 partition" if count == 1 else f"{count} partitions"
    names = output.some([f"{topic}-{p.partition}" for topic, p in done.left], NAMED_MAX)
    return f"not drained: node {done.node_id} still leads {partitions}, which no other node can lead: {names}"


def _confirm_refused_writes(target: ClusterTarget) -> None:
    """Ask, if draining the node leaves topics with too few in-sync replicas for acks=all."""

    async def look(client: AdminClient) -> tuple[int, ClusterView]:
        return await client.node_id(), await client.cluster()

    node_id, view = target.run(look)
    topics = refusing_topics(view, node_id)
    if not topics:
        return
    count = "1 topic" if len(topics) == 1 else f"{len(topics)} topics"
    why = f"draining node {node_id} stops writes to {count} ({output.some(topics, NAMED_MAX)})"
    less = "fewer replicas than min.insync.replicas would be in sync"
    confirm(f"{why}: {less}. Drain it?", f"{why}: {less}", yes=False, if_not="not drained")


def refusing_topics(view: ClusterView, node_id: int) -> list[str]:
    """Return the topics with a partition that takes writes with acks=all now, but not without this node."""
    return [
        topic.name
        for topic in view.topics
        if any(_refuses(topic, p, node_id) for p in topic.partitions)
    ]


def _refuses(topic: TopicView, partition: PartitionView, node_id: int) -> bool:
    # A node that alone is in sync keeps its partition: no other node can lead it.
    others = len(partition.isr) - 1
    return node_id in partition.isr and 0 < others < topic.min_insync_replicas <= others + 1
