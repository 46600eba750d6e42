"""``milena quotas``: limits for users and programs of a cluster."""

import click

from milena.commands import output
from milena.commands.access import output as access_output
from milena.commands.options import JSON, NAME, CommandGroup
from milena.commands.target import ClusterTarget
from milena.commands.times import parse_amount
from milena.model.quotas import QuotaKey

USER = click.option(
    "--user",
    type=NAME,
    metavar="NAME",
    help="The user; '*': every user without a quota of its own.",
)
CLIENT_ID = click.option(
    "--client-id",
    type=NAME,
    metavar="ID",
    help="The programs with this client id; '*': every client id without a quota of its own.",
)
NONE = "none"


@click.group(cls=CommandGroup)
def quotas() -> None:
    """List, set and delete quotas.

    The most specific quota with a limit counts: that of user and client id, then of the user, then of the client id.
    Programs send their client id in the header Milena-Client-Id.
    """


@quotas.command("list")
@JSON
@click.pass_obj
def list_quotas(target: ClusterTarget, is_json: bool) -> None:
    """List all quotas."""
    found = target.run(lambda client: client.access.quotas())
    output.show_list(is_json, found, access_output.quotas_text, "no quotas")


@quotas.command("set")
@click.argument("bounds", nargs=-1, required=True, metavar="BOUND=AMOUNT...")
@USER
@CLIENT_ID
@JSON
@click.pass_obj
def set_quota(
    target: ClusterTarget,
    bounds: tuple[str, ...],
    user: str | None,
    client_id: str | None,
    is_json: bool,
) -> None:
    """Limit a user, the programs of a client id, or both; BOUND=none removes a limit.

    Rates are per node and second: request_rate, producer_byte_rate, consumer_byte_rate. Counts: connection_count and
    stream_count per node; consumer_count, the REST consumers of the cluster.
    """
    _check_named(user, client_id)
    limits = dict(_bound(text) for text in bounds)
    quota = target.run(
        lambda client: client.access.alter_quota(limits, user=user, client_id=client_id)
    )
    output.show(is_json, output.plain(quota), access_output.quota_text(quota))


@quotas.command("delete")
@USER
@CLIENT_ID
@JSON
@click.pass_obj
def delete_quota(
    target: ClusterTarget, user: str | None, client_id: str | None, is_json: bool
) -> None:
    """Delete a quota, if there is one."""
    _check_named(user, client_id)
    target.run(lambda client: client.access.delete_quota(user=user, client_id=client_id))
    told = f"no quota of {access_output.quota_owner(user, client_id)}"
    output.show(is_json, {"user": user, "client_id": client_id, "limits": {}}, told)


def _check_named(user: str | None, client_id: str | None) -> None:
    if user is None and client_id is None:
        raise click.UsageError("say whom it binds: --user NAME, --client-id ID, or both")


def _bound(text: str) -> tuple[QuotaKey, int | None]:
    name, sign, amount = text.partition("=")
    try:
        key = QuotaKey(name)
    except ValueError:
        raise click.UsageError(f"{name!r} is not a bound: {', '.join(QuotaKey)}") from None
    if amount == NONE:
        return key, None
    try:
        number = parse_amount(amount)
    except ValueError:
        number = 0
    if not sign or number < 1:
        raise click.UsageError(
            f"{text!r}: write {name}=AMOUNT, a whole number above zero such as 500 or 10M, or {name}={NONE}"
        )
    return key, number
