"""``milena acls``: access control entries, which say who may do what."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypedDict, TypeVar, Unpack

import click

from milena.cluster.access_views import AclEntry, AclFilter, acl_json
from milena.cluster.admin import AdminClient
from milena.commands import output
from milena.commands.access import output as access_output
from milena.commands.access.words import AclWords, parse_operations, parse_principal
from milena.commands.options import JSON, YES, CommandGroup, Parsed, confirm
from milena.commands.target import ClusterTarget
from milena.model.access import CLUSTER_NAME, Operation, ResourceType

F = TypeVar("F", bound=Callable[..., None])

_NONE = "no entries"


@click.group(cls=CommandGroup)
def acls() -> None:
    """List, add and remove access control entries."""


_OPERATIONS = Parsed(parse_operations)
_PRINCIPAL = Parsed(parse_principal)
_WORDS = (
    click.option("--allow", "allowed", multiple=True, type=_OPERATIONS, metavar="OPERATIONS",
                 help="Operations to allow, as READ,WRITE; may be repeated."),
    click.option("--deny", "denied", multiple=True, type=_OPERATIONS, metavar="OPERATIONS",
                 help="Operations to deny, whatever other entries allow; may be repeated."),
    click.option("--topic", "topics", multiple=True, metavar="NAME",
                 help="On this topic, * for every topic; may be repeated."),
    click.option("--group", "groups", multiple=True, metavar="NAME",
                 help="On this consumer group; may be repeated."),
    click.option("--transactional-id", "transactional_ids", multiple=True, metavar="ID",
                 help="On this transactional id; may be repeated."),
    click.option("--cluster", "is_cluster", is_flag=True, help="On the cluster itself."),
    click.option("--prefixed", "is_prefixed", is_flag=True,
                 help="Names are prefixes: the entry is for every name that begins so."),
    click.option("--host", metavar="IP", help="Only for calls from this address."),
)  # fmt: skip


class AclOptions(TypedDict):
    """The values of these options and of the principal."""

    principal: str | None
    allowed: Sequence[Sequence[Operation]]
    denied: Sequence[Sequence[Operation]]
    topics: Sequence[str]
    groups: Sequence[str]
    transactional_ids: Sequence[str]
    is_cluster: bool
    is_prefixed: bool
    host: str | None


def _with_words(command: F) -> F:
    for option in reversed(_WORDS):
        command = option(command)
    return command


def _words(said: AclOptions) -> AclWords:
    resources = [
        *((ResourceType.TOPIC, name) for name in said["topics"]),
        *((ResourceType.GROUP, name) for name in said["groups"]),
        *((ResourceType.TRANSACTIONAL_ID, name) for name in said["transactional_ids"]),
        *([(ResourceType.CLUSTER, CLUSTER_NAME)] if said["is_cluster"] else []),
    ]
    return AclWords(
        principal=said["principal"],
        allowed=_once(said["allowed"]),
        denied=_once(said["denied"]),
        resources=list(dict.fromkeys(resources)),
        is_prefixed=said["is_prefixed"],
        host=said["host"],
    )


def _once(said: Sequence[Sequence[Operation]]) -> list[Operation]:
    return list(dict.fromkeys(chain.from_iterable(said)))


@acls.command("list")
@click.argument("principal", required=False, type=_PRINCIPAL)
@_with_words
@JSON
@click.pass_obj
def list_acls(target: ClusterTarget, is_json: bool, **said: Unpack[AclOptions]) -> None:
    """List entries.

    All entries, or those that match PRINCIPAL and the options. Names are exact unless you mark them as prefixes.
    """
    found = _found(target, _filters(said))
    output.show_list(is_json, found, access_output.acls_text, _NONE, acl_json)


@acls.command("add")
@click.argument("principal", type=_PRINCIPAL)
@_with_words
@JSON
@click.pass_obj
def add_acls(target: ClusterTarget, is_json: bool, **said: Unpack[AclOptions]) -> None:
    """Allow or deny operations to PRINCIPAL.

    PRINCIPAL is User:alice, or User:* for everyone. An operation that no entry allows is refused. An entry that denies
    wins over all that allow. Existing entries stay.
    """
    try:
        entries = _words(said).entries()
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    target.run(lambda client: client.access.add_acls(entries))
    if is_json:
        click.echo(output.as_json([acl_json(entry) for entry in entries]))
    else:
        _tell("added", entries)


@acls.command("remove")
@click.argument("principal", required=False, type=_PRINCIPAL)
@_with_words
@click.option("--dry-run", is_flag=True, help="Only show the entries that would be removed.")
@YES
@JSON
@click.pass_obj
def remove_acls(
    target: ClusterTarget, dry_run: bool, yes: bool, is_json: bool, **said: Unpack[AclOptions]
) -> None:
    """Remove entries.

    Removes the entries that match PRINCIPAL and the options. Names are exact unless you mark them as prefixes.
    """
    filters = _filters(said)
    if filters == [AclFilter()]:
        raise click.UsageError("say which entries: of whom, of what, or what they allow or deny")
    found = _found(target, filters) if dry_run or not yes else []
    if not dry_run:
        if found:
            click.echo(access_output.acls_text(found), err=True)
            confirm(
                f"Remove {len(found)} of the entries?",
                "what is denied by an entry may be allowed without it, and what is allowed refused",
                yes,
                if_not="not removed",
            )
        found = target.run(lambda client: _gone(client, filters))
    if is_json:
        click.echo(output.as_json(access_output.removal_json(found, dry_run=dry_run)))
    elif found:
        _tell("would remove" if dry_run else "removed", found)
    else:
        click.echo(_NONE, err=True)


def _filters(said: AclOptions) -> list[AclFilter]:
    try:
        return _words(said).filters()
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _found(target: ClusterTarget, filters: Sequence[AclFilter]) -> list[AclEntry]:
    async def work(client: AdminClient) -> list[AclEntry]:
        return [entry for wanted in filters for entry in await client.access.acls(wanted)]

    return target.run(work)


async def _gone(client: AdminClient, filters: Sequence[AclFilter]) -> list[AclEntry]:
    return [entry for wanted in filters for entry in await client.access.remove_acls(wanted)]


def _tell(done: str, entries: Sequence[AclEntry]) -> None:
    for entry in entries:
        click.echo(f"{done} {access_output.acl_text(entry)}")
