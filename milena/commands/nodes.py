"""``milena nodes``: lists the cluster's nodes, empties one, and removes one that is gone."""

import asyncio
from typing import Unpack

import click

from milena.cluster.admin import AdminClient
from milena.cluster.moves import RequestedMove
from milena.cluster.node_exam import NodeExam
from milena.cluster.view import ClusterView
from milena.commands import output
from milena.commands.options import JSON, YES, CommandGroup, Number, confirm
from milena.commands.rebalance import MoveOptions, move_options, run_moves, show_moves
from milena.commands.target import ClusterTarget
from milena.model.clock import SystemClock


@click.group(cls=CommandGroup)
def nodes() -> None:
    """List nodes, empty one, and remove one that is gone for good."""


@nodes.command("list")
@JSON
@click.pass_obj
def list_nodes(target: ClusterTarget, is_json: bool) -> None:
    """List every registered node: state, role, rack, version.

    Each node is asked at its own URL for its version, and whether it is a voter of the metadata quorum. A dash means
    that it did not say.
    """

    async def work(client: AdminClient) -> tuple[ClusterView, list[NodeExam]]:
        view = await client.cluster()
        clock = SystemClock()
        return view, await asyncio.gather(*(client.examine(node, clock) for node in view.nodes))

    view, exams = target.run(work)
    target.warn_if_old(view)
    output.show(is_json, output.node_list_json(exams), output.node_list_text(view, exams))


@nodes.command("drain")
@click.argument("node_id", metavar="ID", type=Number(min=1))
@click.option("--undo", is_flag=True,
              help="Cancel the moves away from the node that are not complete.")  # fmt: skip
@YES
@move_options
@click.pass_obj
def drain_node(
    target: ClusterTarget, node_id: int, undo: bool, yes: bool, **said: Unpack[MoveOptions]
) -> None:
    """Move all replicas away from the node ID, before it is removed. The node may be alive or dead.

    The moves continue in the background, and all partitions stay available. New topics may still be placed on it. To
    move only leadership, before a restart: milena drain.
    """
    if undo:
        if any((said["dry_run"], said["throttle"], said["max_concurrent"], said["is_waiting"])):
            raise click.UsageError("--undo takes no other option than --json")
        moves = target.run(lambda client: _undo(client, node_id))
        none = f"no move away from node {node_id} is in progress; milena rebalance gives it replicas again"
        show_moves(moves, dry_run=False, is_json=said["is_json"], none=none)
        return
    confirm(
        f"Move all replicas away from node {node_id}?",
        f"this moves all replicas away from node {node_id}",
        yes or said["dry_run"],
        if_not="not drained",
    )
    run_moves(target, lambda client, options: client.rebalance(drain=node_id, **options), said)


async def _undo(client: AdminClient, node_id: int) -> list[RequestedMove]:
    """Cancel the moves that take a replica away from a node."""
    cancelled = []
    for move in await client.reassignments():
        if node_id in move.before and node_id not in move.after:
            cancelled += await client.cancel_reassignments(move.topic, move.partition)
    return cancelled


@nodes.command("remove")
@click.argument("node_id", metavar="ID", type=Number(min=1))
@JSON
@click.pass_obj
def remove_node(target: ClusterTarget, node_id: int, is_json: bool) -> None:
    """Remove the node ID, which was scaled away or will not return.

    Refused while the node is alive, holds replicas, or is a voter of the metadata quorum. If it is started again, it
    joins again.
    """
    target.run(lambda client: client.remove_node(node_id))
    output.show(is_json, {"removed": node_id}, f"removed node {node_id}")
