"""``milena transactions``: lists open and hanging transactions, and aborts one."""

from collections.abc import Sequence

import click

from milena.cluster.transactions import TransactionsView, TransactionView
from milena.commands import output
from milena.commands.options import JSON, NAME, YES, CommandGroup, Duration, Number, confirm
from milena.commands.target import EXIT_DEGRADED, ClusterTarget
from milena.errors import TargetNotFoundError
from milena.fields import Json
from milena.model.clock import SystemClock


@click.group(cls=CommandGroup)
def transactions() -> None:
    """List, describe and abort open transactions."""


@transactions.command("list")
@click.option("--older-than", "older_than_s", type=Duration("s"), metavar="SECONDS",
              help="Only those that are open for longer.")  # fmt: skip
@JSON
@click.pass_obj
def list_transactions(target: ClusterTarget, older_than_s: float | None, is_json: bool) -> None:
    """List the open transactions, the oldest first."""
    older_than_ms = None if older_than_s is None else round(older_than_s * 1000)
    told = target.run(lambda client: client.transactions(older_than_ms=older_than_ms))
    _warn_of_silent(told)
    _show(told.transactions, is_json)


@transactions.command("describe")
@click.argument("name", type=NAME, metavar="ID")
@JSON
@click.pass_obj
def describe_transaction(target: ClusterTarget, name: str, is_json: bool) -> None:
    """Show the open transaction ID, a producer's id or name, and what it has written to each partition."""
    told = target.run(lambda client: client.transactions())
    _warn_of_silent(told)
    wanted = [
        found
        for found in told.transactions
        if name in (str(found.producer_id), found.transactional_id)
    ]
    if not wanted:
        raise TargetNotFoundError(f"no transaction of {name} is open", status=404)
    if is_json:
        click.echo(output.as_json([_json(found) for found in wanted]))
        return
    for found in wanted:
        click.echo(
            f"transaction {found.producer_id}:{found.producer_epoch}: {found.state}, of "
            f"{found.transactional_id or 'one request'}, open for {_seconds(found):.1f} s of "
            f"{found.timeout_ms / 1000:.1f} s"
        )
        rows = [(p.topic, p.partition, p.first_offset, p.records, p.leader) for p in found.parts]
        click.echo(output.table(("TOPIC", "PARTITION", "FROM OFFSET", "RECORDS", "LEADER"), rows))


@transactions.command("find-hanging")
@JSON
@click.pass_obj
def find_hanging(target: ClusterTarget, is_json: bool) -> None:
    """List transactions that are past their timeout; exit 1 if there are any, or if a node does not answer.

    Leaders abort these transactions within a second. One that stays is blocked by a partition that cannot be written,
    or by the metadata quorum: milena doctor says which.
    """
    told = target.run(lambda client: client.transactions())
    _warn_of_silent(told)
    found = [one for one in told.transactions if _seconds(one) * 1000 > one.timeout_ms]
    _show(found, is_json, "no transaction is past its timeout")
    if found or told.silent_nodes:
        raise click.exceptions.Exit(EXIT_DEGRADED)


@transactions.command("abort")
@click.argument("producer_id", type=Number(min=0), metavar="ID")
@click.argument("producer_epoch", type=Number(min=0), metavar="EPOCH")
@YES
@JSON
@click.pass_obj
def abort_transaction(
    target: ClusterTarget, producer_id: int, producer_epoch: int, yes: bool, is_json: bool
) -> None:
    """Abort the transaction of producer ID under EPOCH, as the list shows them.

    Its client gets the error at its commit.
    """
    name = f"{producer_id}:{producer_epoch}"
    confirm(
        f"Abort transaction {name}?",
        f"nothing counts of what {name} wrote",
        yes,
        if_not="not aborted",
    )
    target.run(lambda client: client.abort_transaction(producer_id, producer_epoch))
    output.show(is_json, {"aborted": name}, f"aborted transaction {name}")


def _warn_of_silent(told: TransactionsView) -> None:
    silent = told.silent_nodes
    if silent:
        nodes = f"node {silent[0]}" if len(silent) == 1 else f"nodes {output.ids(silent)}"
        click.echo(
            f"no answer from {nodes}: transactions that are known only there are missing", err=True
        )


def _show(
    found: Sequence[TransactionView], is_json: bool, if_none: str = "no transactions"
) -> None:
    output.show_list(is_json, found, _text, if_none, _json)


def _text(found: Sequence[TransactionView]) -> str:
    rows = [
        (
            one.producer_id,
            one.producer_epoch,
            one.transactional_id,
            one.state,
            f"{_seconds(one):.1f} s",
            f"{one.timeout_ms / 1000:.1f} s",
            len(one.parts),
            sum(part.records for part in one.parts),
        )
        for one in found
    ]
    headings = ("ID", "EPOCH", "NAME", "STATE", "OPEN FOR", "TIMEOUT", "PARTITIONS", "RECORDS")
    return output.table(headings, rows)


def _seconds(found: TransactionView) -> float:
    """Return how long the transaction is open, by the clocks of its leader and of this machine."""
    return max(0.0, (SystemClock().wall_ms() - found.began_ms) / 1000)


def _json(found: TransactionView) -> dict[str, Json]:
    return output.named(found, parts="partitions")
