"""``milena users``: the users of a cluster, and their passwords."""

import sys
from collections.abc import Sequence
from functools import partial

import click

from milena.cluster.access_views import UserView
from milena.cluster.admin import AdminClient
from milena.cluster.credentials import SECRET_BYTES_MAX, password_of
from milena.commands import output
from milena.commands.access import output as access_output
from milena.commands.options import JSON, NAME, YES, CommandGroup, delete_each
from milena.commands.target import ClusterTarget
from milena.errors import TargetExistsError, TargetNotFoundError
from milena.model.secret import Secret

STANDARD_INPUT = "-"


@click.group(cls=CommandGroup)
def users() -> None:
    """List, create, change and delete users."""


@users.command("list")
@JSON
@click.pass_obj
def list_users(target: ClusterTarget, is_json: bool) -> None:
    """List all users."""
    found = target.run(lambda client: client.access.users())
    output.show_list(is_json, found, access_output.users_text, "no users")


@users.command("create")
@click.argument("names", type=NAME, metavar="NAME...", nargs=-1, required=True)
@click.option("--superuser", "is_superuser", is_flag=True,
              help="Give the user all rights, whatever entries say.")  # fmt: skip
@click.option("--password-file", "file", metavar="FILE",
              help="A file with the password; - is standard input.  [default: ask]")  # fmt: skip
@click.option(
    "--no-password",
    is_flag=True,
    help="Create the user without a password: it signs in with tokens.",
)
@click.option("--scram", "has_scram", is_flag=True,
              help="Let Kafka clients sign in by SCRAM with the password.")  # fmt: skip
@JSON
@click.pass_obj
def create_user(
    target: ClusterTarget,
    *,
    names: Sequence[str],
    is_superuser: bool,
    file: str | None,
    no_password: bool,
    has_scram: bool,
    is_json: bool,
) -> None:
    """Create users, one after the other. It stops at the first that cannot be created.

    Entries refer to a user as User:NAME, and set the permissions: milena acls add.
    """
    if no_password and file is not None:
        raise click.UsageError("say either --password-file or --no-password")
    if no_password and has_scram:
        raise click.UsageError("--scram needs a password: leave out --no-password")
    each = list(dict.fromkeys(names))
    if file is not None and len(each) > 1:
        raise click.UsageError(
            "--password-file is for one user: leave it out to be asked for each, or give --no-password"
        )
    # All passwords are typed before the first user is created: a Ctrl-C at a prompt then creates none.
    passwords = {
        name: None if no_password else _password(file, name, or_else=", or --no-password")
        for name in each
    }

    async def work(client: AdminClient, name: str, password: Secret | None) -> UserView:
        if await _is_there(client, name):
            raise TargetExistsError(
                f"user {name} is there already: milena users change {name} sets its password",
                status=409,
            )
        return await client.access.put_user(
            name, password=password, is_superuser=is_superuser, scram=has_scram or None
        )

    for name, password in passwords.items():
        _show(target.run(partial(work, name=name, password=password)), "created", is_json)


@users.command("change")
@click.argument("name", type=NAME)
@click.option("--superuser/--no-superuser", "is_superuser", default=None,
              help="Give the user all rights, or take them; does not ask for a password.")  # fmt: skip
@click.option("--password-file", "file", metavar="FILE",
              help="A file with the new password; - is standard input.  [default: ask]")  # fmt: skip
@click.option("--keep-previous", is_flag=True,
              help="Accept the former password, too, until the next change.")  # fmt: skip
@click.option("--revoke-tokens", is_flag=True,
              help="Delete the user's tokens, too. Without this they stay valid.")  # fmt: skip
@click.option("--scram/--no-scram", "has_scram", default=None,
              help="Let Kafka clients sign in by SCRAM with the new password, or no longer; "
              "--no-scram does not ask for a password.")  # fmt: skip
@JSON
@click.pass_obj
def change_user(
    target: ClusterTarget,
    *,
    name: str,
    is_superuser: bool | None,
    file: str | None,
    keep_previous: bool,
    revoke_tokens: bool,
    has_scram: bool | None,
    is_json: bool,
) -> None:
    """Change the password of the user NAME, or make NAME a superuser, or no longer one."""
    is_other_meant = is_superuser is not None or has_scram is False
    is_password_meant = not is_other_meant or file is not None or keep_previous or bool(has_scram)
    password = _password(file, name) if is_password_meant else None

    async def work(client: AdminClient) -> UserView:
        # Without this check, a mistyped name would become a user.
        await client.access.user(name)
        return await client.access.put_user(
            name,
            password=password,
            is_superuser=is_superuser,
            keep_previous=keep_previous,
            revoke_tokens=revoke_tokens,
            scram=has_scram,
        )

    changed = target.run(work)
    _show(changed, "changed", is_json)
    if password is not None and changed.token_count:
        click.echo("its tokens stay good: --revoke-tokens deletes them", err=True)


@users.command("delete")
@click.argument("names", type=NAME, metavar="NAME...", nargs=-1, required=True)
@YES
@JSON
@click.pass_obj
def delete_users(target: ClusterTarget, names: Sequence[str], yes: bool, is_json: bool) -> None:
    """Delete users, their tokens and entries."""
    delete_each(
        target,
        "user",
        names,
        lambda client, name: client.access.delete_user(name),
        loss="its tokens and entries are deleted, too",
        yes=yes,
        is_json=is_json,
    )


async def _is_there(client: AdminClient, name: str) -> bool:
    try:
        await client.access.user(name)
    except TargetNotFoundError:
        return False
    return True


def _password(file: str | None, name: str, *, or_else: str = "") -> Secret:
    """Return the password in the file, or the one that the user types twice without echo."""
    where = "standard input" if file == STANDARD_INPUT else file or "the password"
    try:
        raw = _typed(name, or_else) if file is None else _read(file)
        return password_of(raw)
    except OSError as error:
        raise click.UsageError(f"cannot read {where}: {error.strerror}") from error
    except ValueError as error:
        raise click.UsageError(f"{where}: {error}") from None


def _typed(name: str, or_else: str) -> bytes:
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"there is no terminal to ask for a password: give --password-file FILE, - for standard input{or_else}"
        )
    typed: str = click.prompt(
        f"Password of {name}", hide_input=True, confirmation_prompt="Once more", err=True
    )
    return typed.encode(errors="surrogateescape")


def _read(file: str) -> bytes:
    if file != STANDARD_INPUT:
        with open(file, "rb") as opened:
            return opened.read(SECRET_BYTES_MAX + 1)
    if sys.stdin.isatty():
        raise click.UsageError(
            "standard input is a terminal, which would show the password: leave out --password-file to be asked"
        )
    return sys.stdin.buffer.read(SECRET_BYTES_MAX + 1)


def _show(user: UserView, done: str, is_json: bool) -> None:
    output.show(is_json, output.plain(user), f"{done} {access_output.user_text(user)}")
