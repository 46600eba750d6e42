"""``milena access``: shows and sets the access mode, and shows the user that the cluster takes this client for."""

import click

from milena.commands import output
from milena.commands.access import output as access_output
from milena.commands.options import CommandGroup
from milena.commands.target import ClusterTarget
from milena.model.access import AccessMode


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option("--json", "is_json", is_flag=True, help="For programs.")
@click.pass_context
def access(ctx: click.Context, is_json: bool) -> None:
    """Show the access mode and who you are; set the mode."""
    if ctx.invoked_subcommand is not None:
        if is_json:
            raise click.UsageError(f"say --json after {ctx.invoked_subcommand}")
        return
    target: ClusterTarget = ctx.obj
    view = target.run(lambda client: client.access.state())
    if is_json:
        click.echo(output.as_json(access_output.access_json(view)))
    else:
        click.echo(access_output.access_text(view))


@access.command("set")
@click.argument("mode", type=click.Choice([mode.value for mode in AccessMode]))
@click.option("--json", "is_json", is_flag=True, help="For programs.")
@click.pass_obj
def set_mode(target: ClusterTarget, mode: str, is_json: bool) -> None:
    """Set the access mode.

    off: everyone may do everything. optional: a call that would be refused is logged and done. required: it is refused.

    The mode does not change while no superuser has a password, because then no user could administer the cluster.
    """
    view = target.run(lambda client: client.access.set_mode(AccessMode(mode)))
    if is_json:
        click.echo(output.as_json(access_output.access_json(view)))
    else:
        click.echo(access_output.access_text(view))
