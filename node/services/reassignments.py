"""Moves of replicas that clients request from any node: plans, proposals, progress.

The image says which moves are running. Only leaders know how far the new replicas are, so this node asks them.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar

from http_api.ports.node import PlannedReassignment, ReassignmentRequest, RunningReassignment
from milena.model.errors import (
    FateUnknownError,
    MilenaError,
    NoQuorumError,
    PartitionNotFoundError,
    StaleVersionError,
)
from node.config.budgets import ANSWER_MS, BARRIER_MS, LONG_PROPOSE_MS
from node.context import NodeContext
from node.peers.messages import ask, peer_handler
from node.replica.runner import PartitionRunner
from node.services.messages import MOVES, MovesAnswer, MovesRequest, ReplicaProgress
from node.services.reassignment_plans import (
    cancel_steps,
    plan,
    running_keys,
    running_move,
    target_of,
)
from raft_meta.machine import codec
from raft_meta.machine.commands import ReassignPartitions, StepReassignments
from raft_meta.machine.image import PartitionKey
from raft_meta.machine.topics import reassignments

logger = logging.getLogger(__name__)

ROWS_MAX = 2_000
"""Largest number of partitions in one command. At about 100 bytes each, it stays well below the limit of 1 MiB."""
CANCEL_TRIES = 5
"""Attempts to cancel a move. A cancel names the partition's epoch. If the ISR changes, the epoch rises and the cancel
is refused."""

T = TypeVar("T")


class ReassignmentService:
    """Implements ``http_api.ports.node.ReassignmentsPort``."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self.on_moves = peer_handler(MOVES, self._tell_moves)
        """Handles another node's question for the progress of replicas that are added where this node leads."""

    # -- requests for moves ----------------------------------------------------------------------

    async def reassign(self, request: ReassignmentRequest) -> Sequence[PlannedReassignment]:
        """Plan and check the moves. Unless the request is a dry run, propose them."""
        image = await self._node.metadata.barrier(timeout_ms=BARRIER_MS)
        # Planning thousands of partitions takes seconds, so it runs on a thread.
        planned = await asyncio.get_running_loop().run_in_executor(
            self._node.pool, plan, image, request
        )
        if request.is_dry_run:
            return planned
        possible = [row for row in planned if row.error is None]
        moves = [row for row in possible if not row.is_cancelled]
        answers = {row.key: row for row in await self._move(moves, request)}
        cancels = [row.key for row in possible if row.is_cancelled]
        answers |= {row.key: row for row in await self._cancel(cancels)}
        gone = PartitionNotFoundError("the topic was deleted meanwhile")
        rows = [
            row if row.error is not None else answers.get(row.key) or row.refused(gone)
            for row in planned
        ]
        return rows if request.is_each_alone else _raised_if_nothing(rows)

    async def _move(
        self, rows: Sequence[PlannedReassignment], request: ReassignmentRequest
    ) -> list[PlannedReassignment]:
        done: list[PlannedReassignment] = []
        for part in _parts(rows):
            targets = tuple(target_of(row, request) for row in part)
            codes = await self._propose(ReassignPartitions(targets=targets))
            done += [row.refused(_refusal(code)) for row, code in zip(part, codes, strict=True)]
        return done

    # -- cancelling ------------------------------------------------------------------------------

    async def cancel(
        self, topic: str | None, partition: int | None
    ) -> Sequence[PlannedReassignment]:
        """Cancel all moves, the moves of a topic, or one move."""
        image = await self._node.metadata.barrier(timeout_ms=BARRIER_MS)
        keys = running_keys(image, topic, partition)
        return _raised_if_nothing(await self._cancel(keys))

    async def _cancel(self, keys: Collection[PartitionKey]) -> list[PlannedReassignment]:
        """Cancel moves. If a partition's epoch has changed, try again. A move that has ended is refused."""
        pending, done = list(keys), list[PlannedReassignment]()
        for left in reversed(range(CANCEL_TRIES)):
            if not pending:
                break
            image = await self._node.metadata.barrier(timeout_ms=BARRIER_MS)
            steps, refused = cancel_steps(image, pending)
            done += refused
            pending = []
            for part in _parts(steps):
                codes = await self._propose(StepReassignments(steps=tuple(s for _, s in part)))
                for (row, _), code in zip(part, codes, strict=True):
                    if code == StaleVersionError.code and left:
                        pending.append(row.key)
                    else:
                        done.append(row.refused(_refusal(code)))
        return done

    async def _propose(self, command: ReassignPartitions | StepReassignments) -> tuple[str, ...]:
        try:
            codes = await self._node.metadata.propose(command, timeout_ms=LONG_PROPOSE_MS)
        except NoQuorumError as error:
            raise NoQuorumError(f"cannot move replicas: {error.message}") from error
        except FateUnknownError as error:
            raise FateUnknownError(
                f"moving replicas: {error.message}; it may yet happen"
            ) from error
        assert isinstance(codes, tuple), codes
        return codes

    # -- progress --------------------------------------------------------------------------------

    async def running(self) -> Sequence[RunningReassignment]:
        """Return the running moves, with the progress that leaders report."""
        image = self._node.metadata.image
        under_way = reassignments.running(image)
        leaders = sorted({state.leader for _, state in under_way if state.leader is not None})
        answers = await asyncio.gather(*(self._ask(leader) for leader in leaders))
        known = {
            (row.topic_id, row.partition, row.broker_id): row for rows in answers for row in rows
        }
        return [running_move(image, key, state, known) for key, state in under_way]

    async def _ask(self, broker_id: int) -> Sequence[ReplicaProgress]:
        """Ask a leader for its progress reports; return none if it does not answer."""
        if broker_id == self._node.metadata.node_id:
            return list(self._led_here())
        try:
            answer = await ask(
                self._node.peers, broker_id, MOVES, MovesRequest(), timeout_ms=ANSWER_MS
            )
        except MilenaError as error:
            logger.info("progress of moves unknown broker_id=%d: %s", broker_id, error)
            return ()
        return answer.rows

    def _led_here(self) -> Iterable[ReplicaProgress]:
        for runner in self._node.replicas:
            state, leader = runner.state, runner.leader
            if state is None or leader is None or state.moving is None:
                continue
            for broker_id in state.replicas:
                if broker_id in state.moving.former or broker_id in state.isr:
                    continue
                progress = leader.followers.get(broker_id)
                end = 0 if progress is None else progress.stored_end
                yield _progress(runner, broker_id, end)

    async def _tell_moves(self, request: MovesRequest) -> MovesAnswer:
        del request
        return MovesAnswer(rows=tuple(self._led_here()))


def _progress(runner: PartitionRunner, broker_id: int, stored_end: int) -> ReplicaProgress:
    log = runner.log
    start, end = log.log_start_offset, log.log_end_offset
    left = max(0, end - max(stored_end, start))
    bytes_left = log.size_bytes * left // (end - start) if end > start else 0
    return ReplicaProgress(
        topic_id=runner.topic_id,
        partition=runner.partition,
        broker_id=broker_id,
        offsets_left=left,
        bytes_left=bytes_left,
    )


def _refusal(code: str) -> MilenaError | None:
    """Return the error for an error code of the state machine; None for an empty code."""
    if not code:
        return None
    return codec.error_of(code, f"the partition changed meanwhile ({code}); look again and retry")


def _raised_if_nothing(rows: list[PlannedReassignment]) -> Sequence[PlannedReassignment]:
    """Return the rows. If every row was refused, raise the first error."""
    errors = [row.error for row in rows if row.error is not None]
    if errors and len(errors) == len(rows):
        raise errors[0]
    return rows


def _parts(rows: Sequence[T]) -> Iterable[Sequence[T]]:
    for first in range(0, len(rows), ROWS_MAX):
        yield rows[first : first + ROWS_MAX]
