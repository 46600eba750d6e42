"""Sends ends of transactions and reports of finished markers to the quorum, many in one command."""

import asyncio
import logging
from collections.abc import Sequence
from itertools import islice

from milena.model.clock import Clock
from milena.model.contained import ContainedErrors, EntryPoint
from milena.model.errors import (
    DrainingError,
    GroupNotEmptyError,
    InvalidProducerError,
    MemberFencedError,
    MemberNotFoundError,
    MilenaError,
    PartitionNotFoundError,
    StaleLeaderEpochError,
    StaleMemberEpochError,
    StaleProducerEpochError,
    TooManyTransactionsError,
    TopicNotFoundError,
    TopicNotTransactionalError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionNotFoundError,
)
from node.config.budgets import PROPOSE_MS
from node.metadata.batched_proposals import BatchedProposals
from node.metadata.store import MetadataStore
from raft_meta.machine import codec
from raft_meta.machine.commands import (
    EndTransactions,
    FinishedMarker,
    FinishMarkers,
    TransactionEnd,
)
from raft_meta.machine.image import PartitionKey
from raft_meta.machine.transactions import ENDS_PER_COMMAND_MAX, MARKERS_PER_COMMAND_MAX
from storage.state.transactions import Identity

logger = logging.getLogger(__name__)

COMMAND_BYTES_MAX = 256 << 10
"""Largest size of a command in bytes, well below the quorum's limit of 1 MiB."""
QUEUED_MAX = 20_000
"""Largest number of ends that wait. Each belongs to a waiting request."""
FINISH_EVERY_MS = 100
"""The pause before each command for finished markers. A client that waits until readers see its transaction does not
wait for this command: this node asks the partitions' leaders. Only clients beyond ``ASKING_MAX`` of ``sight.py`` do."""

_END_BYTES = 40
_EXTENT_BYTES = 60
_OFFSET_BYTES = 100


_Marker = tuple[PartitionKey, Identity]


def abort_of(producer_id: int, producer_epoch: int) -> TransactionEnd:
    """Return the end that aborts the transaction of this producer id and epoch."""
    return TransactionEnd(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_commit=False,
        is_keyed=False,
        extents=(),
        offsets=(),
    )


class TransactionEnds:
    """Two queues: ends, and finished markers. Each has one command in flight at a time. Owned by the data loop."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        clock: Clock,
        contained: ContainedErrors,
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self._contained = contained
        self._ends: BatchedProposals[TransactionEnd] = BatchedProposals(
            propose=self._propose_ends,
            size_of=_size,
            changes_max=ENDS_PER_COMMAND_MAX,
            bytes_max=COMMAND_BYTES_MAX,
            contained=contained,
            task="transaction-ends",
        )
        self._finished: dict[_Marker, None] = {}
        self._finishing: asyncio.Task[None] | None = None
        self._is_closed = False

    async def end(self, end: TransactionEnd) -> None:
        """End a transaction; return when it has ended as requested. Repeating the call is harmless.

        Raises:
            StaleProducerEpochError, TransactionNotFoundError: no transaction with this producer id and epoch is open.
            TransactionAbortedError, TransactionCommittedError: the transaction has ended with the other outcome.
            TooManyTransactionsError, RequestTooLargeError, InvalidRequestError: the transaction is still open.
            StaleLeaderEpochError: the transaction is still open. A partition has another leader than the end names.
            MilenaError of another kind: the commit was refused, and the transaction is aborted.
            NoQuorumError, DrainingError: nothing was decided.
            FateUnknownError: the transaction may have ended.
        """
        if len(self._ends) >= QUEUED_MAX:
            raise TooManyTransactionsError("too many transactions wait for the quorum; try again")
        await self._ends.add(end)

    async def _propose_ends(self, ends: Sequence[TransactionEnd]) -> list[MilenaError | None]:
        codes = await self._metadata.propose(
            EndTransactions(ends=tuple(ends)), timeout_ms=PROPOSE_MS
        )
        assert isinstance(codes, tuple), codes
        return [
            _error_of(end, code) if code else None for end, code in zip(ends, codes, strict=True)
        ]

    def is_finishing(self, key: PartitionKey, identity: Identity) -> bool:
        """Return whether a marker is queued to be reported to the quorum."""
        return (key, identity) in self._finished

    def finish(self, key: PartitionKey, identity: Identity) -> None:
        """Report to the quorum that a marker is committed. The caller repeats this until the image shows it."""
        if self._is_closed:
            return
        self._finished[key, identity] = None
        if self._finishing is None:
            self._finishing = asyncio.get_running_loop().create_task(self._run_markers())

    async def _run_markers(self) -> None:
        while self._finished:
            await self._clock.sleep(FINISH_EVERY_MS)
            taken = list(islice(self._finished, MARKERS_PER_COMMAND_MAX))
            markers = tuple(_message_of(*key, *identity) for key, identity in taken)
            try:
                await self._metadata.propose(FinishMarkers(markers=markers), timeout_ms=PROPOSE_MS)
            except Exception as error:  # noqa: BLE001 - the queue must not stop with those in it
                # The endings are still in the image, so the next check of the image reports these markers again.
                refusal: Exception = error
                if not isinstance(error, MilenaError):
                    refusal = self._contained.report(
                        EntryPoint.TASK, error, "task", "transaction-markers"
                    )
                logger.info("finished markers not told, again later: %s", refusal)
                self._finished.clear()
                break
            for marker in taken:
                del self._finished[marker]
        self._finishing = None

    async def close(self) -> None:
        """Refuse the ends that still wait, and stop."""
        self._is_closed = True
        if self._finishing is not None:
            # If a report is lost, the partition's next leader repeats it.
            self._finishing.cancel()
        await self._ends.close(
            lambda: DrainingError("this node is stopping; the transaction is still open")
        )
        if self._finishing is not None:
            await asyncio.gather(self._finishing, return_exceptions=True)


def _size(end: TransactionEnd) -> int:
    return (
        _END_BYTES
        + _EXTENT_BYTES * len(end.extents)
        + sum(
            _OFFSET_BYTES + len(commit.group_id) + len(offset.metadata.encode())
            for commit in end.offsets
            for offset in commit.offsets
        )
    )


def _message_of(
    topic_id: str, partition: int, producer_id: int, producer_epoch: int
) -> FinishedMarker:
    return FinishedMarker(
        topic_id=topic_id,
        partition=partition,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


_WHYS = {
    TransactionAbortedError.code: "was aborted: its time was over, or it was told to; begin again",
    TransactionCommittedError.code: "is committed, and stays so",
    TransactionNotFoundError.code: "never started, or is forgotten",
    StaleProducerEpochError.code: "is over: another one has started under its id",
    StaleLeaderEpochError.code: "is still open: a partition has another leader by now; commit it again",
    TooManyTransactionsError.code: "is still open: too many are just being ended; try again",
    InvalidProducerError.code: "has the last epoch of its producer, which carries none: begin again",
    TopicNotTransactionalError.code: "was aborted: one of its topics takes no transactions by now",
    TopicNotFoundError.code: "was aborted: one of its topics is gone",
    PartitionNotFoundError.code: "was aborted: one of its partitions is not there",
    MemberNotFoundError.code: "was aborted: the group has no such member, or no longer; join again",
    MemberFencedError.code: "was aborted: another process has taken over the member's instance id; stop",
    StaleMemberEpochError.code: "was aborted: its offsets are not the member's to commit any more; heartbeat first",
    GroupNotEmptyError.code: "was aborted: the group has members, and only they commit",
}
"""Messages by error code. The state machine returns only the code of a refusal."""


def _error_of(end: TransactionEnd, code: str) -> MilenaError:
    name = f"transaction {end.producer_id}:{end.producer_epoch}"
    why = _WHYS.get(code)
    if why is not None:
        return codec.error_of(code, f"{name} {why}")
    return codec.error_of(code, f"{name} was aborted, since its commit was refused: {code}")
