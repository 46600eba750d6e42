"""``milena nodes``: lists the cluster's nodes, and removes one that is gone."""

import click

from milena.commands import output
from milena.commands.options import CommandGroup
from milena.commands.target import ClusterTarget


@click.group(cls=CommandGroup)
def nodes() -> None:
    """List nodes, and remove one that is gone for good."""


@nodes.command("list")
@click.option("--json", "is_json", is_flag=True, help="For programs.")
@click.pass_obj
def list_nodes(target: ClusterTarget, is_json: bool) -> None:
    """List every node that is registered, alive or not."""
    view = target.cluster()
    click.echo(output.as_json(output.nodes_json(view)) if is_json else output.nodes_text(view))


@nodes.command("remove")
@click.argument("node_id", type=click.IntRange(min=1))
@click.option("--json", "is_json", is_flag=True, help="For programs.")
@click.pass_obj
def remove_node(target: ClusterTarget, node_id: int, is_json: bool) -> None:
    """Remove the node NODE_ID, which was scaled away or will not return.

    Refused while the node is alive, holds replicas, or is a voter of the metadata quorum. If it is started again, it
    joins again.
    """
    target.run(lambda client: client.remove_node(node_id))
    click.echo(output.as_json({"removed": node_id}) if is_json else f"removed node {node_id}")
