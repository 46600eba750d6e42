"""``milena rebalance`` and ``milena reassignments``: move replicas to other nodes."""

import sys
from collections.abc import Iterable, Sequence

import click
from tqdm import tqdm

from milena.cluster.admin import AdminClient
from milena.cluster.moves import Move, RequestedMove
from milena.commands import output
from milena.commands.options import CommandGroup, byte_rate
from milena.commands.target import EXIT_REFUSED, ClusterTarget
from milena.errors import AnswerError, UnreachableError
from milena.fields import Json
from milena.model.clock import SystemClock

POLL_MS = 500
PATIENCE_MS = 60_000
"""How long the node that is asked for progress may be silent. It may restart; the moves continue all the same."""


@click.command()
@click.option("--drain", "node_id", type=click.IntRange(min=1), metavar="NODE",
              help="Only move everything away from this node.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only say what would move.")
@click.option("--throttle", callback=byte_rate, metavar="BYTES",
              help="Most bytes a second that a node sends to new replicas (50M); default: its own.")  # fmt: skip
@click.option("--max-concurrent", type=click.IntRange(min=0), metavar="N",
              help="Partitions that move at a time; 0 for all of them. Default: 10.")  # fmt: skip
@click.option("--wait", "is_waiting", is_flag=True, help="Come back when everything has arrived.")
@click.option("--json", "is_json", is_flag=True, help="For programs.")
@click.pass_obj
def rebalance(
    target: ClusterTarget,
    *,
    node_id: int | None,
    dry_run: bool,
    throttle: int | None,
    max_concurrent: int | None,
    is_waiting: bool,
    is_json: bool,
) -> None:
    """Move as few replicas as possible to balance the cluster, or all replicas away from one node.

    Nodes that were added get their share. All partitions stay available. The moves continue in the background.
    """

    async def work(client: AdminClient) -> tuple[list[RequestedMove], float]:
        moves = await client.rebalance(
            drain=node_id, dry_run=dry_run, throttle=throttle, max_concurrent=max_concurrent
        )
        clock = SystemClock()
        began_ms = clock.now_ms()
        if is_waiting and not dry_run:
            await _arrived(client, [move for move in moves if move.error is None])
        return moves, (clock.now_ms() - began_ms) / 1000

    moves, took_s = target.run(work)
    if is_json:
        click.echo(output.as_json(_planned_json(moves, dry_run=dry_run)))
    else:
        click.echo(_planned_text(moves, dry_run=dry_run))
        if is_waiting and moves and not dry_run:
            click.echo(f"arrived after {took_s:.1f} s")
    _exit_if_refused(moves)


async def _arrived(client: AdminClient, moves: Sequence[RequestedMove]) -> None:
    """Wait until none of the moves is in progress; on a terminal, show how many bytes are left."""
    wanted = {(move.topic, move.partition) for move in moves}
    clock = SystemClock()
    heard_ms = clock.now_ms()
    with tqdm(
        desc="moving", unit="B", unit_scale=True, file=sys.stderr, disable=not sys.stderr.isatty()
    ) as bar:
        while True:
            try:
                running = [
                    move
                    for move in await client.reassignments()
                    if (move.topic, move.partition) in wanted
                ]
                heard_ms = clock.now_ms()
            except (UnreachableError, AnswerError):
                if clock.now_ms() - heard_ms > PATIENCE_MS:
                    raise
                await clock.sleep(POLL_MS)
                continue
            if not running:
                bar.update((bar.total or bar.n) - bar.n)
                return
            _show(bar, running, len(wanted))
            await clock.sleep(POLL_MS)


def _show(bar: "tqdm[object]", running: Sequence[Move], count: int) -> None:
    """Update the bar. Its total is the most that was seen to be left: moves that wait have no known size yet."""
    left = sum(move.bytes_left or 0 for move in running)
    bar.total = max(bar.total or 0, bar.n + left)
    bar.set_postfix_str(f"{count - len(running)} of {count} partitions")
    bar.update(max(0, bar.total - left - bar.n))


@click.group(cls=CommandGroup)
def reassignments() -> None:
    """Show and cancel moves of replicas to other nodes."""


@reassignments.command("list")
@click.option("--json", "is_json", is_flag=True, help="For programs.")
@click.pass_obj
def list_reassignments(target: ClusterTarget, is_json: bool) -> None:
    """List the moves in progress, and how much is left of each."""
    moves = target.run(lambda client: client.reassignments())
    if is_json:
        click.echo(output.as_json([_running_json(move) for move in moves]))
    elif moves:
        click.echo(_running_text(moves))
    else:
        click.echo("nothing is on the move", err=True)


@reassignments.command("cancel")
@click.option("--topic", metavar="NAME", help="Only of this topic; default all.")
@click.option("--partition", "-p", type=click.IntRange(min=0), metavar="N",
              help="Only this partition of the topic.")  # fmt: skip
@click.option("--json", "is_json", is_flag=True, help="For programs.")
@click.pass_obj
def cancel_reassignments(
    target: ClusterTarget, topic: str | None, partition: int | None, is_json: bool
) -> None:
    """Cancel moves in progress, and return the replicas to their former nodes."""
    if partition is not None and topic is None:
        raise click.UsageError("--partition needs --topic")
    moves = target.run(lambda client: client.cancel_reassignments(topic, partition))
    if is_json:
        click.echo(output.as_json(_planned_json(moves, dry_run=False)))
    else:
        click.echo(_planned_text(moves, dry_run=False) if moves else "nothing is on the move")
    _exit_if_refused(moves)


def _exit_if_refused(moves: Iterable[RequestedMove]) -> None:
    if any(move.error is not None for move in moves):
        raise click.exceptions.Exit(EXIT_REFUSED)


def _planned_text(moves: Sequence[RequestedMove], *, dry_run: bool) -> str:
    if not moves:
        return "nothing to move"
    verb = "cancelled" if moves[0].is_cancelled else "would move" if dry_run else "moving"
    taken = [move for move in moves if move.error is None]
    copies = sum(len(move.added) for move in taken if not move.is_cancelled)
    summary = f"{verb} {len(taken)} partitions" + (f", {copies} new replicas" if copies else "")
    rows = [(m.topic, m.partition, output.ids(m.before), output.ids(m.after)) for m in moves]
    refused = [f"{m.topic}-{m.partition}: {m.error}" for m in moves if m.error is not None]
    table = output.table(("TOPIC", "PARTITION", "FROM", "TO"), rows)
    return "\n".join([table, *refused, summary])


def _planned_json(moves: Iterable[RequestedMove], *, dry_run: bool) -> Json:
    rows: list[Json] = [
        {
            "topic": move.topic,
            "partition": move.partition,
            "from": [*move.before],
            "to": [*move.after],
            "is_cancelled": move.is_cancelled,
            "error": move.error,
        }
        for move in moves
    ]
    return {"dry_run": dry_run, "partitions": rows}


def _running_text(moves: Iterable[Move]) -> str:
    return output.table(
        ("TOPIC", "PARTITION", "STATE", "FROM", "TO", "IN-SYNC", "BYTES-LEFT"),
        [
            (
                move.topic,
                move.partition,
                move.state.replace("_", " "),
                output.ids(move.before),
                output.ids(move.after),
                output.ids(move.isr),
                move.bytes_left,
            )
            for move in moves
        ],
    )


def _running_json(move: Move) -> Json:
    return {
        "topic": move.topic,
        "partition": move.partition,
        "state": move.state,
        "from": [*move.before],
        "to": [*move.after],
        "isr": [*move.isr],
        "added": [
            {
                "node": replica.node_id,
                "is_in_sync": replica.is_in_sync,
                "offsets_left": replica.offsets_left,
                "bytes_left": replica.bytes_left,
            }
            for replica in move.added
        ],
    }
