"""``milena tokens``: secrets that act for users."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from milena.cluster.access_views import NewToken, TokenGrant, TokenView
from milena.cluster.admin import AdminClient
from milena.commands import output
from milena.commands.access import output as access_output
from milena.commands.access.words import parse_grant
from milena.commands.options import JSON, NAME, YES, CommandGroup, Parsed, delete_each
from milena.commands.target import ClusterTarget
from milena.commands.times import parse_duration

_USER = click.option(
    "--user", type=NAME, metavar="NAME", help="The user of the tokens.  [default: you]"
)
_TOKEN_PREFIX = "mln_"  # noqa: S105  # how tokens begin, and none


@click.group(cls=CommandGroup)
def tokens() -> None:
    """List, create and delete tokens."""


@tokens.command("list")
@_USER
@JSON
@click.pass_obj
def list_tokens(target: ClusterTarget, user: str | None, is_json: bool) -> None:
    """List a user's tokens, the oldest first."""

    async def work(client: AdminClient) -> list[TokenView]:
        return await client.access.tokens(await _whose(client, user))

    found = target.run(work)
    output.show_list(is_json, found, access_output.tokens_text, "no tokens")


@tokens.command("create")
@_USER
@click.option("--note", metavar="TEXT", help="A note for the list, such as what the token is for.")
@click.option("--lifetime", "lifetime_ms", type=Parsed(parse_duration), metavar="TIME",
              help="When the token expires: 90d, 12h (ms, s, m, h, d, w).  [default: the cluster's]")  # fmt: skip
@click.option("--grant", "grants", multiple=True, type=Parsed(parse_grant), metavar="OPERATIONS:TYPE:NAME",
              help="Only these rights, as READ,WRITE:TOPIC:orders, or orders-* for a prefix; may be repeated."
                   "  [default: what its user may]")  # fmt: skip
@click.option("--out", metavar="FILE",
              help="Write the token to this new file, which only you may read.")  # fmt: skip
@JSON
@click.pass_obj
def create_token(
    target: ClusterTarget,
    *,
    user: str | None,
    note: str | None,
    lifetime_ms: int | None,
    grants: Sequence[TokenGrant],
    out: str | None,
    is_json: bool,
) -> None:
    """Create a token, and print it.

    The token is shown only once: no node can show it again.
    """

    async def work(client: AdminClient) -> NewToken:
        return await client.access.create_token(
            await _whose(client, user), note=note, lifetime_ms=lifetime_ms, grants=grants or None
        )

    made = target.run(work) if out is None else _written(out, lambda: target.run(work))
    told = output.named(made.view)
    sentence = access_output.token_text(made.view)
    if out is not None:
        click.echo(output.as_json({**told, "file": out}) if is_json else f"{sentence}: in {out}")
    elif is_json:
        click.echo(output.as_json({**told, "token": made.token.reveal()}))
    else:
        click.echo(sentence, err=True)
        click.echo(made.token.reveal())


@tokens.command("delete")
@click.argument("token_ids", type=NAME, metavar="ID...", nargs=-1, required=True)
@_USER
@YES
@JSON
@click.pass_obj
def delete_tokens(
    target: ClusterTarget, token_ids: Sequence[str], user: str | None, yes: bool, is_json: bool
) -> None:
    """Delete tokens by their ID, as the list shows it.

    Nodes refuse calls with a deleted token.
    """
    if any(token_id.startswith(_TOKEN_PREFIX) for token_id in token_ids):
        raise click.UsageError("this is a token: give its id, which milena tokens list shows")

    async def delete(client: AdminClient, token_id: str) -> None:
        await client.access.delete_token(await _whose(client, user), token_id)

    delete_each(
        target,
        "token",
        token_ids,
        delete,
        loss="calls with it are refused from then on",
        yes=yes,
        is_json=is_json,
    )


async def _whose(client: AdminClient, user: str | None) -> str:
    if user is not None:
        return user
    found = await client.access.state()
    if found.user is None:
        raise click.UsageError(f"you are {found.principal}, and no user: say --user NAME")
    return found.user


def _written(out: str, make: Callable[[], NewToken]) -> NewToken:
    """Return a new token, with its secret in a new file.

    The file is made first: a name that is taken costs no token.
    """
    path = Path(out)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise click.UsageError(f"{out} is there already: name a file that is not") from None
    except OSError as error:
        raise click.UsageError(f"cannot write {out}: {error.strerror}") from error
    made = None
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            made = make()
            file.write(f"{made.token.reveal()}\n")
    except BaseException as error:
        path.unlink(missing_ok=True)
        if made is None or not isinstance(error, OSError):
            raise
        view = made.view
        raise click.ClickException(
            f"cannot write {out}: {error.strerror}; the token was shown nowhere: "
            f"milena tokens delete {view.token_id} --user {view.user}"
        ) from error
    return made
