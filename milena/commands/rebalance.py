"""``milena rebalance`` and ``milena reassignments``: move replicas to other nodes."""

import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypedDict, TypeVar, Unpack

import click
from tqdm import tqdm

from milena.cluster.admin import AdminClient
from milena.cluster.moves import Move, RequestedMove
from milena.commands import output
from milena.commands.options import JSON, NAME, Amount, CommandGroup, Number
from milena.commands.target import EXIT_REFUSED, ClusterTarget
from milena.errors import AnswerError, UnreachableError
from milena.fields import Json
from milena.model.clock import SystemClock

F = TypeVar("F", bound=Callable[..., None])

POLL_MS = 500
PATIENCE_MS = 60_000
"""How long the node that is asked for progress may be silent. It may restart; the moves continue all the same."""


_DRY_RUN = click.option("--dry-run", is_flag=True, help="Only show what would move.")
_THROTTLE = click.option("--throttle", type=Amount(min=0), metavar="BYTES",
                         help="Most bytes a second from a node to new replicas.  [default: the node's]")  # fmt: skip
_CONCURRENT = click.option("--max-concurrent", type=Amount(min=0), metavar="N",
                           help="The partitions that move at a time; 0: all.  [default: 10]")  # fmt: skip
_WAIT = click.option(
    "--wait", "is_waiting", is_flag=True, help="Return when all moves are complete."
)


class MoveKeywords(TypedDict):
    """The arguments of a request for moves."""

    dry_run: bool
    throttle: int | None
    max_concurrent: int | None


class MoveOptions(MoveKeywords):
    """The options of every command that moves replicas."""

    is_waiting: bool
    is_json: bool


def move_options(command: F) -> F:
    """Give a command the options of ``MoveOptions``."""
    for option in (JSON, _WAIT, _CONCURRENT, _THROTTLE, _DRY_RUN):
        command = option(command)
    return command


def run_moves(
    target: ClusterTarget,
    request: Callable[[AdminClient, MoveKeywords], Awaitable[list[RequestedMove]]],
    said: MoveOptions,
) -> None:
    """Request moves, print them, and wait for them if the user wants to."""
    keywords = MoveKeywords(
        dry_run=said["dry_run"], throttle=said["throttle"], max_concurrent=said["max_concurrent"]
    )
    is_waiting = said["is_waiting"] and not said["dry_run"]

    async def work(client: AdminClient) -> tuple[list[RequestedMove], float]:
        moves = await request(client, keywords)
        clock = SystemClock()
        began_ms = clock.now_ms()
        if is_waiting:
            await _arrived(client, [move for move in moves if move.error is None])
        return moves, (clock.now_ms() - began_ms) / 1000

    moves, took_s = target.run(work)
    show_moves(moves, dry_run=said["dry_run"], is_json=said["is_json"])
    if is_waiting and any(_changes(move) for move in moves) and not said["is_json"]:
        click.echo(f"arrived after {took_s:.1f} s")
    _exit_if_refused(moves)


def show_moves(
    moves: Sequence[RequestedMove], *, dry_run: bool, is_json: bool, none: str = "nothing to move"
) -> None:
    """Print requested moves."""
    text = _planned_text(moves, dry_run=dry_run) if moves else none
    output.show(is_json, _planned_json(moves, dry_run=dry_run), text)


@click.command()
@click.option("--drain", "node_id", type=Number(min=1), metavar="NODE",
              help="Only move everything away from this node; as milena nodes drain NODE.")  # fmt: skip
@move_options
@click.pass_obj
def rebalance(target: ClusterTarget, node_id: int | None, **said: Unpack[MoveOptions]) -> None:
    """Move as few replicas as possible to balance the cluster, or all replicas away from one node.

    Nodes that were added get their share. All partitions stay available. The moves continue in the background.
    """
    run_moves(target, lambda client, options: client.rebalance(drain=node_id, **options), said)


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
@JSON
@click.pass_obj
def list_reassignments(target: ClusterTarget, is_json: bool) -> None:
    """List the moves in progress, and how much is left of each."""
    moves = target.run(lambda client: client.reassignments())
    output.show_list(is_json, moves, _running_text, "no moves in progress", _running_json)


@reassignments.command("cancel")
@click.option(
    "--topic", type=NAME, metavar="NAME", help="Only moves of this topic.  [default: all]"
)
@click.option("--partition", "-p", type=Number(min=0), metavar="N",
              help="Only this partition of the topic.")  # fmt: skip
@JSON
@click.pass_obj
def cancel_reassignments(
    target: ClusterTarget, topic: str | None, partition: int | None, is_json: bool
) -> None:
    """Cancel moves in progress, and return the replicas to their former nodes."""
    if partition is not None and topic is None:
        raise click.UsageError("--partition needs --topic")
    moves = target.run(lambda client: client.cancel_reassignments(topic, partition))
    show_moves(moves, dry_run=False, is_json=is_json, none="no moves in progress")
    _exit_if_refused(moves)


def _exit_if_refused(moves: Iterable[RequestedMove]) -> None:
    if any(move.error is not None for move in moves):
        raise click.exceptions.Exit(EXIT_REFUSED)


def _changes(move: RequestedMove) -> bool:
    return move.is_cancelled or move.before != move.after


def _planned_text(moves: Sequence[RequestedMove], *, dry_run: bool) -> str:
    verb = "cancelled" if moves[0].is_cancelled else "would move" if dry_run else "moving"
    taken = [move for move in moves if move.error is None]
    changed = [move for move in taken if _changes(move)]
    copies = sum(len(move.added) for move in changed if not move.is_cancelled)
    summary = f"{verb} {len(changed)} partitions" + (f", {copies} new replicas" if copies else "")
    same = len(taken) - len(changed)
    if same and not changed:
        summary = "nothing would change" if dry_run else "nothing changes"
    elif same:
        summary += f"; {same} {'stays as it is' if same == 1 else 'stay as they are'}"
    rows = [(m.topic, m.partition, output.ids(m.before), output.ids(m.after)) for m in moves]
    refused = [f"{m.topic}-{m.partition}: {m.error}" for m in moves if m.error is not None]
    table = output.table(("TOPIC", "PARTITION", "FROM", "TO"), rows)
    return "\n".join([table, *refused, summary])


def _planned_json(moves: Iterable[RequestedMove], *, dry_run: bool) -> Json:
    rows: list[Json] = [output.named(move, before="from", after="to") for move in moves]
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
    added: list[Json] = [output.named(replica, node_id="node") for replica in move.added]
    return {**output.named(move, before="from", after="to"), "added": added}
