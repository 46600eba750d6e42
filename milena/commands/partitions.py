"""``milena partitions``: moves replicas and leadership of single partitions."""

from collections.abc import Sequence
from typing import Unpack

import click

from milena.cluster.admin import AdminClient
from milena.cluster.moves import RequestedMove
from milena.cluster.view import NodeView, PartitionView
from milena.commands import output
from milena.commands.options import JSON, NAME, CommandGroup, Number, Parsed
from milena.commands.rebalance import MoveKeywords, MoveOptions, move_options, run_moves
from milena.commands.target import ClusterTarget, no_such_partition
from milena.records import TopicPartition


@click.group(cls=CommandGroup)
def partitions() -> None:
    """Move replicas and leadership of single partitions."""


def _node_ids(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and 0 < int(word) < 1 << 31 for word in words):
        raise ValueError(f"{text!r} is not a list of node ids: write 1,2,3")
    found = [int(word) for word in words]
    if len(set(found)) < len(found):
        raise ValueError(f"{text!r} names a node twice")
    return found


@partitions.command("move")
@click.argument("topic", type=NAME)
@click.option("--partition", "-p", "numbers", type=Number(min=0), multiple=True,
              required=True, metavar="N", help="The partition; may be repeated.")  # fmt: skip
@click.option("--to", "node_ids", required=True, type=Parsed(_node_ids), metavar="IDS",
              help="The new nodes of the partition, as 1,2,4; the first is the preferred leader.")  # fmt: skip
@move_options
@click.pass_obj
def move(
    target: ClusterTarget,
    topic: str,
    numbers: Sequence[int],
    node_ids: list[int],
    **said: Unpack[MoveOptions],
) -> None:
    """Move a partition of TOPIC to the given nodes.

    The number of nodes is its new number of replicas. The move continues in the background; the partition stays
    available.
    """

    async def work(client: AdminClient, options: MoveKeywords) -> list[RequestedMove]:
        wanted = {TopicPartition(topic, number): node_ids for number in numbers}
        return await client.move_replicas(wanted, **options)

    run_moves(target, work, said)


@partitions.command("lead")
@click.argument("topic", type=NAME)
@click.option("--partition", "-p", "number", type=Number(min=0), required=True,
              metavar="N", help="The partition.")  # fmt: skip
@click.option("--by", "node_id", type=Number(min=1), required=True, metavar="ID",
              help="The node to prefer; it must hold a replica.")  # fmt: skip
@JSON
@click.pass_obj
def lead(target: ClusterTarget, topic: str, number: int, node_id: int, is_json: bool) -> None:
    """Make a node the preferred leader of a partition of TOPIC.

    This changes no leader at once. If the node's replica is in sync, the cluster makes the node the leader when it
    balances leaders next: by default within a minute (leader_balance_interval_ms). A node that is draining is refused.
    """

    async def work(client: AdminClient) -> tuple[PartitionView, NodeView | None]:
        found = (await client.topic(topic)).partitions
        partition = next((p for p in found if p.partition == number), None)
        if partition is None:
            raise no_such_partition(topic, len(found), number)
        if node_id not in partition.replicas:
            raise click.UsageError(
                f"node {node_id} holds no replica of {topic}-{number}; these do: "
                f"{output.ids(partition.replicas)}. milena partitions move gives it one"
            )
        nodes = {node.node_id: node for node in (await client.cluster()).nodes}
        preferred = nodes.get(node_id)
        if preferred is not None and preferred.is_live and preferred.is_draining:
            able = [n for n in partition.replicas if n in nodes and not nodes[n].is_draining]
            choice = f", or choose one of {output.ids(able)}" if able else ""
            raise click.ClickException(
                f"node {node_id} is draining and leads nothing until it is started again: start it again{choice}"
            )
        others = [node for node in partition.replicas if node != node_id]
        (done,) = await client.move_replicas({TopicPartition(topic, number): [node_id, *others]})
        if done.error is not None:
            raise click.ClickException(f"{topic}-{number}: {done.error}")
        return partition, preferred

    partition, preferred = target.run(work)
    output.show(
        is_json,
        {"topic": topic, "partition": number, "leader": partition.leader, "preferred": node_id},
        f"node {node_id} is the preferred leader of {topic}-{number}. {_waits_for(partition, node_id, preferred)}",
    )


def _waits_for(partition: PartitionView, node_id: int, node: NodeView | None) -> str:
    """Return when a preferred leader becomes the leader."""
    if partition.leader == node_id:
        return "It leads it already"
    now = "It has no leader" if partition.leader is None else f"Node {partition.leader} leads it"
    obstacles = ""
    if node is None or not node.is_live:
        obstacles = f"node {node_id} is up, its replica is in sync, and "
    elif node_id not in partition.isr:
        obstacles = f"the replica of node {node_id} is in sync, and "
    return f"{now} until {obstacles}the cluster balances leaders next, by default within a minute"
