"""``milena access``: shows and sets the access mode, and shows the user that the cluster takes this client for."""

import click

from milena.cluster.access_views import AccessView
from milena.cluster.admin import AdminClient
from milena.commands import output
from milena.commands.access import output as access_output
from milena.commands.options import JSON, CommandGroup
from milena.commands.target import ClusterTarget
from milena.model.access import AccessMode


@click.group(cls=CommandGroup, invoke_without_command=True)
@JSON
@click.pass_context
def access(ctx: click.Context, is_json: bool) -> None:
    """Show the access mode and who you are; set the mode."""
    if ctx.invoked_subcommand is not None:
        if is_json:
            raise click.UsageError(f"say --json after {ctx.invoked_subcommand}")
        return
    target: ClusterTarget = ctx.obj
    view = target.run(lambda client: client.access.state())
    output.show(is_json, output.plain(view), access_output.access_text(view))


async def _check_superuser(client: AdminClient, user: str | None) -> None:
    """Refuse to close an open cluster without the credentials that could open it again.

    While the mode is off, nodes ignore credentials. In other modes, nodes refuse callers without the right to set it.

    Raises:
        click.UsageError: the caller gives no name of a superuser.
    """
    if (await client.access.state()).mode != AccessMode.OFF:
        return
    named = [found for found in await client.access.users() if found.name == user]
    if not (named and named[0].is_superuser and named[0].password_count):
        who = (
            "you give no --user"
            if user is None
            else f"user {user} is not a superuser with a password"
        )
        raise click.UsageError(
            f"mode required would lock you out: {who}. Give --user and --password-file of a superuser; "
            "milena users create NAME --superuser creates one. To set the mode all the same: --yes"
        )


@access.command("set")
@click.argument("mode", metavar="MODE", type=click.Choice([mode.value for mode in AccessMode]))
@click.option("--yes", is_flag=True, help="Set the mode even if it locks you out.")
@JSON
@click.pass_obj
def set_mode(target: ClusterTarget, mode: str, yes: bool, is_json: bool) -> None:
    """Set the access mode.

    off: everyone may do everything. optional: a call that would be refused is logged and done. required: it is refused.

    The mode does not change while no superuser has a password, because then no user could administer the cluster.

    To set required while the mode is off, name a superuser with --user. Otherwise you might lock yourself out.
    """

    async def work(client: AdminClient) -> AccessView:
        if mode == AccessMode.REQUIRED and not yes:
            await _check_superuser(client, target.credentials.user)
        return await client.access.set_mode(AccessMode(mode))

    view = target.run(work)
    output.show(is_json, output.plain(view), access_output.access_text(view))
