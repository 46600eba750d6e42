"""Transactions of Kafka clients: begin under a transactional id, enlist, stage offsets, and end.

The state is in the image (``raft_meta.machine.transactional_ids``), and each change is one command that compares it. So
any node may serve any of these calls. If a node dies amid a call, the client repeats the call at another node, which
continues from the image.

    enlist      propose the enlistment, and wait until each leader's image has it. A leader that is elected later has it
                anyway, because a later command elected it. So each leader writes the client's records under the
                identity of the right transaction, although its image may be older than that of other nodes.
    end         ask each leader how far the transaction has come, and propose the end with these extents. The command is
                refused if something was enlisted or a leader has changed since then. Then ask again.

A delayed request of an ended transaction cannot end the next one: this node reads the image by a barrier before it
decides, and cancels the call if the client's connection is gone.

Source: KIP-98, KIP-360, KIP-447, KIP-890.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from milena.model.errors import (
    DrainingError,
    MilenaError,
    NotReadyError,
    StaleLeaderEpochError,
    StaleVersionError,
    TooManyTransactionsError,
    TransactionAbortedError,
    TransactionNotFoundError,
)
from node.config.budgets import ANSWER_MS, BARRIER_MS, PROPOSE_MS, RETRY_MS, SHORT_RETRY_MS
from node.context import NodeContext
from node.metadata.batched_proposals import BatchedProposals
from node.peers.messages import Done, ask, peer_handler
from node.replication.transaction_ends import TransactionEnds
from node.services.messages import KNOWN_IMAGE, KnownImageRequest
from node.services.producers import principal_to_own
from node.services.transactions.lookup import TransactionLookup
from raft_meta.machine import codec
from raft_meta.machine.commands import (
    EnlistInTransactions,
    Enlistment,
    GroupCommit,
    InitTransactionalId,
    TransactionEnd,
)
from raft_meta.machine.image import Image, KafkaTransactionalId, PartitionKey, TransactionExtent
from raft_meta.machine.producers import ABORTED, COMMITTED
from raft_meta.machine.transactional_ids import (
    ENLISTMENTS_PER_COMMAND_MAX,
    check_client_epoch,
    client_row,
    own_producer,
)
from storage.state.transactions import Identity

COMMAND_BYTES_MAX = 256 << 10
"""Largest size of a command in bytes, well below the quorum's limit of 1 MiB."""
QUEUED_MAX = 10_000
"""Largest number of enlistments that wait. Each belongs to a waiting request."""
LEADERS_MS = 5_000
"""How long an enlistment waits until the leaders know it, in ms. This is longer than an election takes."""
END_MS = 20_000
"""How long an end is tried again while leaders change, in ms. Clients wait 30 s for a response."""
NONE_OPEN: Identity = (-1, -1)
"""Stands for the transaction of an id that has none open."""

_PARTITION_BYTES = 40
_OFFSET_BYTES = 100


class KafkaProducer(NamedTuple):
    """The producer id and epoch under which a Kafka client numbers its records."""

    producer_id: int
    producer_epoch: int


class LeaderTransaction(NamedTuple):
    """The open transaction of a client as a leader writes it into a log: its identity, and its timeout in ms."""

    identity: Identity
    timeout_ms: int


class TransactionalIds:
    """Serves transactions of Kafka clients; as a leader, finds the transaction of a record. Owned by the data loop."""

    def __init__(
        self, node: NodeContext, *, ends: TransactionEnds, lookup: TransactionLookup
    ) -> None:
        self._metadata = node.metadata
        self._clock = node.clock
        self._ends = ends
        self._lookup = lookup
        self._peer = node.peers
        self._counts = node.counts
        self._enlistments: BatchedProposals[Enlistment] = BatchedProposals(
            propose=self._propose_enlistments,
            size_of=_size,
            changes_max=ENLISTMENTS_PER_COMMAND_MAX,
            bytes_max=COMMAND_BYTES_MAX,
            contained=node.counts.contained,
            task="kafka-enlistments",
        )
        self.on_known_image = peer_handler(KNOWN_IMAGE, self._tell_known)

    # -- begin -----------------------------------------------------------------------------------

    async def begin(
        self, name: str, *, timeout_ms: int, client: KafkaProducer | None
    ) -> KafkaProducer:
        """Return the client's next id and epoch; abort what its transactional id has open.

        ``client``: the id and epoch that the client has already (KIP-360).

        Raises:
            InvalidRequestError, ConflictError, TooManyProducersError: refused.
            InvalidProducerError, StaleProducerEpochError: the client is not the present one of this id.
            NoQuorumError, FateUnknownError: not possible now; another attempt is harmless.
        """
        answer = await self._metadata.propose(
            InitTransactionalId(
                name=name,
                timeout_ms=timeout_ms,
                producer_id=-1 if client is None else client.producer_id,
                producer_epoch=-1 if client is None else client.producer_epoch,
                principal=principal_to_own(self._metadata.image),
            ),
            timeout_ms=PROPOSE_MS,
        )
        assert isinstance(answer, tuple), answer
        return KafkaProducer(*answer)

    # -- enlist ----------------------------------------------------------------------------------

    async def enlist(
        self, name: str, client: KafkaProducer, partitions: Sequence[PartitionKey]
    ) -> None:
        """Add partitions to the client's transaction; return when each leader knows it.

        Raises:
            InvalidProducerError, StaleProducerEpochError: the client is not the present one of this id.
            TopicNotFoundError, PartitionNotFoundError, TopicNotTransactionalError, RequestTooLargeError: refused.
            NotReadyError, NoQuorumError, FateUnknownError: not possible now; another attempt is harmless.
        """
        await self._enlist(_enlistment(name, client, partitions=tuple(partitions)))
        await self._tell_leaders(partitions)

    async def enlist_group(self, name: str, client: KafkaProducer, group_id: str) -> None:
        """Add a group, whose offsets the transaction may commit. Errors as of ``enlist``."""
        await self._enlist(_enlistment(name, client, groups=(group_id,)))

    async def stage(
        self, name: str, client: KafkaProducer, commit: GroupCommit, *, enlists: bool
    ) -> None:
        """Stage offsets of a group until the transaction ends. ``enlists``: the group joins by this.

        Raises:
            TransactionNotFoundError: the group is not a part of the transaction.
            MilenaError: as of ``enlist``, and as ``offsets.check_commit``.
        """
        groups = (commit.group_id,) if enlists else ()
        await self._enlist(_enlistment(name, client, groups=groups, offsets=(commit,)))

    async def _enlist(self, enlistment: Enlistment) -> None:
        if len(self._enlistments) >= QUEUED_MAX:
            raise TooManyTransactionsError("too many enlistments wait for the quorum; try again")
        await self._enlistments.add(enlistment)

    async def _propose_enlistments(
        self, enlistments: Sequence[Enlistment]
    ) -> list[MilenaError | None]:
        codes = await self._metadata.propose(
            EnlistInTransactions(enlistments=tuple(enlistments)), timeout_ms=PROPOSE_MS
        )
        assert isinstance(codes, tuple), codes
        return [
            _error_of(enlistment, code) if code else None
            for enlistment, code in zip(enlistments, codes, strict=True)
        ]

    async def _tell_leaders(self, partitions: Iterable[PartitionKey]) -> None:
        """Wait until the image of each leader is as new as the present one.

        A leader that the image does not have yet was elected by a later command, so its image is newer.

        Raises:
            NotReadyError: a leader did not answer and is still the leader.
        """
        image = self._metadata.image
        states = {key: image.partitions.get(key) for key in partitions}
        waiting = {key: state for key, state in states.items() if state is not None}
        deadline = self._clock.now_ms() + LEADERS_MS
        while True:
            leaders = {state.leader for state in waiting.values() if state.leader is not None}
            leaders.discard(self._metadata.node_id)
            answers = await asyncio.gather(
                *(self._knows(leader, image.index) for leader in sorted(leaders))
            )
            silent = {
                leader for leader, knows in zip(sorted(leaders), answers, strict=True) if not knows
            }
            present = self._metadata.image.partitions
            waiting = {
                key: state
                for key, state in waiting.items()
                if state.leader in silent
                and (now := present.get(key)) is not None
                and now.leader_epoch == state.leader_epoch
            }
            if not waiting:
                return
            if self._clock.now_ms() >= deadline:
                raise NotReadyError(
                    f"brokers {sorted(silent)} lead partitions of the transaction and do not answer; try again"
                )
            await self._clock.sleep(RETRY_MS)

    async def _knows(self, broker_id: int, index: int) -> bool:
        try:
            await ask(
                self._peer,
                broker_id,
                KNOWN_IMAGE,
                KnownImageRequest(index=index),
                timeout_ms=ANSWER_MS,
            )
        except MilenaError:
            return False
        return True

    async def _tell_known(self, request: KnownImageRequest) -> Done:
        has_index = await self._metadata.wait_until(
            lambda image: image.index >= request.index, timeout_ms=ANSWER_MS
        )
        if not has_index:
            raise NotReadyError("this node's metadata is behind")
        return Done()

    # -- as leader -------------------------------------------------------------------------------

    async def transaction_of(
        self, name: str, client: KafkaProducer, key: PartitionKey, *, enlists: bool = False
    ) -> LeaderTransaction:
        """Return the open transaction of a client that writes to this partition, which this node leads.

        ``enlists``: the partition joins by this, as of a client with KIP-890.

        Raises:
            InvalidProducerError, StaleProducerEpochError: the client is not the present one of this id.
            TransactionNotFoundError: the client has not enlisted the partition.
            MilenaError: with ``enlists``, as of ``enlist``.
            NoQuorumError: this node does not know the transaction, and no majority could be asked.
        """
        try:
            return _transaction_in(self._metadata.image, name, client, key)
        except MilenaError:
            # This node's image may be behind, for example if the client enlisted at another node a moment ago.
            image = await self._metadata.current_image()
        if not enlists:
            return _transaction_in(image, name, client, key)
        try:
            return _transaction_in(image, name, client, key)
        except TransactionNotFoundError:
            await self.enlist(name, client, [key])
        return _transaction_in(self._metadata.image, name, client, key)

    # -- end -------------------------------------------------------------------------------------

    def open_now(self, name: str) -> Identity:
        """Return the transaction of an id that is open by this node's image; ``NONE_OPEN`` if none is."""
        image = self._metadata.image
        row = image.transactional_ids.get(name)
        return NONE_OPEN if row is None or not row.is_open else _identity_of(image, row)

    async def end(
        self,
        name: str,
        client: KafkaProducer,
        *,
        is_commit: bool,
        raises_client: bool = False,
        meant: Identity | None = None,
    ) -> KafkaProducer:
        """End the client's transaction; return the id and epoch under which the client continues.

        A repeated end gets the same response. ``raises_client``: the client gets its next epoch, too (KIP-890).
        ``meant``: the only transaction that this may end; None: any.

        Raises:
            InvalidProducerError, StaleProducerEpochError: the client is not the present one of this id.
            TransactionNotFoundError: no transaction is open, and the last one did not end like this.
            TransactionAbortedError: the commit was refused, and the transaction is aborted.
            NoQuorumError, NoLeaderError, NotReadyError, TooManyTransactionsError, FateUnknownError: not possible now;
                another attempt is harmless.
        """
        deadline = self._clock.now_ms() + END_MS
        wanted = COMMITTED if is_commit else ABORTED
        refused: MilenaError | None = None
        while True:
            # The image of this node may show an earlier transaction of the client as the last one.
            image = await self._metadata.barrier(timeout_ms=BARRIER_MS)
            row = client_row(image, name, client.producer_id)
            is_repeated = raises_client and row.former_epoch == client.producer_epoch
            if not is_repeated:
                check_client_epoch(row, client.producer_epoch)
            if raises_client and not is_commit and not is_repeated and not row.is_open:
                # Nothing was enlisted, but a record of the client may be on its way. Its epoch must be over (KIP-890).
                return await self.begin(name, timeout_ms=row.timeout_ms, client=client)
            if is_repeated or not row.is_open:
                _check_ended_so(row, wanted, refused)
                return KafkaProducer(row.producer_id, row.producer_epoch)
            if meant is not None and meant != _identity_of(image, row):
                # Another attempt ended the transaction that was meant, and the client has started the next one. Or this
                # node's image was behind when the request came. Then the client asks again.
                raise NotReadyError(
                    f"the open transaction of '{name}' began after this request; nothing was ended"
                )
            try:
                await self._end(image, row, is_commit=is_commit, raises_client=raises_client)
            except (StaleLeaderEpochError, StaleVersionError) as error:
                # A leader has changed, or something was enlisted. Ask again.
                if self._clock.now_ms() >= deadline:
                    raise NotReadyError(error.message) from error
                await self._clock.sleep(SHORT_RETRY_MS)
            except MilenaError as error:
                after = self._metadata.image.transactional_ids.get(name)
                if after is not None and after.is_open and after.version == row.version:
                    raise
                # It is decided, by this call or another one. The image tells how.
                refused = error

    async def _end(
        self, image: Image, row: KafkaTransactionalId, *, is_commit: bool, raises_client: bool
    ) -> None:
        identity = _identity_of(image, row)
        extents: list[TransactionExtent] = []
        leader_epochs: list[int] = []
        if is_commit:
            for extent, leader_epoch in await asyncio.gather(
                *(self._extent(key, identity) for key in row.partitions)
            ):
                if extent is not None:
                    extents.append(extent)
                    leader_epochs.append(leader_epoch)
        end = TransactionEnd(
            producer_id=identity[0],
            producer_epoch=identity[1],
            is_commit=is_commit,
            is_keyed=False,
            extents=tuple(extents),
            offsets=(),
            leader_epochs=tuple(leader_epochs),
            version=row.version,
            raises_client=raises_client,
        )
        await self._ends.end(end)
        counts = self._counts.transactions
        if is_commit:
            counts.committed += 1
        else:
            counts.aborted += 1

    async def _extent(
        self, key: PartitionKey, identity: Identity
    ) -> tuple[TransactionExtent | None, int]:
        """Return what the transaction wrote in a partition, and under which leader epoch this is true."""
        asked = TransactionExtent(topic_id=key[0], partition=key[1], base_offset=-1, end_offset=0)
        found = await self._lookup.extent(asked, identity, is_bound=True)
        if found.end_offset < 0:
            # A former leader that does not know its successor may lack the records. The commit does not name the
            # partition, so no leader epoch would show this. The quorum must confirm the leader.
            found = await self._lookup.extent(asked, identity, is_bound=False)
            if found.end_offset < 0:
                return None, -1
            raise StaleLeaderEpochError(f"partition {key[1]} of topic {key[0]} has another leader")
        extent = TransactionExtent(
            topic_id=key[0], partition=key[1], base_offset=-1, end_offset=found.end_offset
        )
        return extent, found.leader_epoch

    async def close(self) -> None:
        """Refuse the enlistments that still wait, and stop."""
        await self._enlistments.close(
            lambda: DrainingError("this node is stopping; nothing was enlisted")
        )


def _identity_of(image: Image, row: KafkaTransactionalId) -> Identity:
    own = own_producer(image, row)
    return (own.producer_id, own.producer_epoch)


def _check_ended_so(row: KafkaTransactionalId, wanted: str, refused: MilenaError | None) -> None:
    """Refuse an end if the last transaction ended otherwise. ``refused``: why this end was not done.

    Raises:
        TransactionAbortedError: the commit was refused.
        TransactionNotFoundError: there is nothing to end.
    """
    # If nothing was enlisted, the abort of a client with KIP-890 only raised its epoch.
    is_empty_abort = wanted == ABORTED and not row.last and row.former_epoch >= 0
    if (row.last == wanted or is_empty_abort) and not row.is_open:
        return
    if refused is not None and row.last == ABORTED:
        raise TransactionAbortedError(
            f"the transaction of '{row.name}' is aborted: {refused.message}"
        ) from refused
    raise TransactionNotFoundError(
        f"transactional id '{row.name}' has no open transaction, and the last one "
        + (f"was {row.last}" if row.last else "did not begin under this client")
    )


def _transaction_in(
    image: Image, name: str, client: KafkaProducer, key: PartitionKey
) -> LeaderTransaction:
    row = client_row(image, name, client.producer_id)
    check_client_epoch(row, client.producer_epoch)
    if key not in row.partitions:
        raise TransactionNotFoundError(
            f"partition {key[1]} is not a part of the transaction of '{name}'; nothing was written"
        )
    own = own_producer(image, row)
    return LeaderTransaction((own.producer_id, own.producer_epoch), row.timeout_ms)


def _enlistment(
    name: str,
    client: KafkaProducer,
    *,
    partitions: tuple[PartitionKey, ...] = (),
    groups: tuple[str, ...] = (),
    offsets: tuple[GroupCommit, ...] = (),
) -> Enlistment:
    return Enlistment(
        name=name,
        producer_id=client.producer_id,
        producer_epoch=client.producer_epoch,
        partitions=partitions,
        groups=groups,
        offsets=offsets,
    )


def _size(enlistment: Enlistment) -> int:
    return (
        _OFFSET_BYTES
        + len(enlistment.name.encode())
        + _PARTITION_BYTES * len(enlistment.partitions)
        + sum(len(group_id.encode()) for group_id in enlistment.groups)
        + sum(
            _OFFSET_BYTES + len(offset.metadata.encode())
            for commit in enlistment.offsets
            for offset in commit.offsets
        )
    )


def _error_of(enlistment: Enlistment, code: str) -> MilenaError:
    return codec.error_of(
        code, f"the transaction of '{enlistment.name}' does not take this: {code}"
    )
