"""Transactions on any node: a whole transaction in one request, or a session that a client writes step by step.

    one request     write all records at the leaders → commit → wait until readers see them; small requests share one
                    transaction
    session         ``begin`` returns a producer id and epoch; each write names them; the commit lists the acknowledged
                    writes

The commit is one command of the quorum (``raft_meta.machine.transactions``). Until it is applied, nothing counts. If
this node does not commit a transaction, the leaders of its partitions abort it (``transaction_markers``). So even if
the fate of a write is unknown, the outcome of the request is certain: not committed.

A request may have an idempotency key. The home of the key is the log of the first partition that the request writes,
and the first batch there contains the key. So a second request with the key finds the first one, and its outcome. The
batches for other partitions are written at the same time as the home, because waiting for the home would double the
time. If the home shows that the request is a second one, these batches are aborted. If a local replica already knows
the key, this node waits for the home before it writes the others.

Requests with keys may share a transaction. Each key has its own home, and each request its own response. A request
whose key is known already does not share.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from typing import TypeVar

from milena.model.batch.header import (
    BatchHeader,
    ProducerStamp,
    TransactionExtension,
    decode_header,
)
from milena.model.errors import (
    DrainingError,
    FateUnknownError,
    MilenaError,
    NoLeaderError,
    NoQuorumError,
    RequestTooLargeError,
    StaleLeaderEpochError,
    StaleProducerEpochError,
    TooManyTransactionsError,
    TopicNotFoundError,
    TransactionAbortedError,
    TransactionChangedError,
    TransactionCommittedError,
    TransactionInProgressError,
    TransactionNotFoundError,
)
from milena.model.requests import (
    Acks,
    BatchReceipt,
    GroupOffsets,
    OpenTransactions,
    ProduceRequest,
    ProducerTransaction,
    TransactionCommit,
    TransactionEnded,
    TransactionReceipt,
    TransactionRequest,
    WrittenExtent,
)
from milena.model.turns import Turns
from milena.model.types import PRODUCER_EPOCH_MAX
from node.config.budgets import ABORT_MS, PROPOSE_MS, SHORT_RETRY_MS, WRITE_ANSWER_MARGIN_MS
from node.context import NodeContext
from node.metadata.lookup import TopicToWrite, check_partition
from node.metadata.topic_settings import topic_settings
from node.replication.transaction_ends import TransactionEnds, abort_of
from node.services.encoding import TransactionStamp, encode, request_keys
from node.services.in_time import in_time, nothing
from node.services.in_time import unknown as unknown_error
from node.services.own_keys import own_key, under_key
from node.services.produce import REFUSED_BY_SETTINGS, check_takes_transactions
from node.services.producers import FORMER_END_MS, ProducerService, principal_to_own
from node.services.record_batches import (
    highest_partition,
    keyless_record,
    size_of_columns,
    split_request,
)
from node.services.to_leader import ToLeader
from node.services.transactions.gatherer import Committed, TransactionGatherer
from node.services.transactions.lookup import KeyOutcome, TransactionLookup
from node.services.transactions.plans import Part, Plan, WriteGroup, grouped, merged
from node.services.transactions.sight import TransactionSight
from node.services.transactions.slots import TransactionSlot, TransactionSlots
from raft_meta.machine import producers
from raft_meta.machine.commands import (
    AllocateProducer,
    GroupCommit,
    OffsetCommit,
    TransactionEnd,
)
from raft_meta.machine.groups import group_rules, offsets
from raft_meta.machine.image import Image, PartitionKey, TransactionExtent
from raft_meta.machine.transactions import (
    ITEMS_PER_TRANSACTION_MAX,
    LEADER_EPOCHS_LEVEL,
    SHARED_KEYS_LEVEL,
    NotCommitted,
    outcome_of,
)
from storage.state.transactions import Identity

OWNED_TIMEOUT_MS = 30_000
"""How long a transaction of one request may stay open if its node lives but does not end it, in ms."""

KEY_WAIT_MS = 1_000
"""How long a second request with a key waits for the outcome of the first one before it aborts the first one, in ms."""


@dataclass(frozen=True, slots=True)
class _WrittenPart:
    """A part of the plan, and the batch that is written for it."""

    part: Part
    batch: bytes
    header: BatchHeader


@dataclass(eq=False)
class TransactionService:
    """Implements ``http_api.ports.node.TransactionsPort``."""

    node: NodeContext
    _: KW_ONLY
    ends: TransactionEnds
    to_leader: ToLeader
    lookup: TransactionLookup
    sight: TransactionSight
    topic_to_write: TopicToWrite
    producers: ProducerService

    def __post_init__(self) -> None:
        self._slots = TransactionSlots(self.node.metadata)
        self._gatherer = TransactionGatherer(self.node.metadata, commit=self._commit_shared)
        self._turns = Turns()
        self._sticky = 0

    # -- one request -----------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop the transactions that requests share. The requests themselves have ended already."""
        await self._gatherer.close()

    async def transact(self, request: TransactionRequest) -> TransactionReceipt:
        """Write and commit all records of a request, or none.

        Raises:
            FateUnknownError: the transaction may have taken effect. Either no quorum could be asked, or an earlier
                request with the same key may have committed and its leader could not be asked.
            MilenaError of another kind: nothing has taken effect, and nothing will.
        """
        before, deadline = self.node.metadata.image, self.node.clock.now_ms() + request.timeout_ms
        with under_key(request.idempotency):
            try:
                return await self._transact(request)
            except (*REFUSED_BY_SETTINGS, TopicNotFoundError):
                # Another node may have changed the settings of a topic a moment ago, or created the topic again.
                async with in_time(self._left(deadline), nothing("written")):
                    image = await self.node.metadata.current_image()
                named = {write.topic for write in request.writes}
                named |= {row.topic for group in request.offsets for row in group.offsets}
                if all(image.topic(name) is before.topic(name) for name in named):
                    raise
                left_ms = int(self._left(deadline))
                return await self._transact(replace(request, timeout_ms=left_ms))

    async def _transact(self, request: TransactionRequest) -> TransactionReceipt:
        deadline = self.node.clock.now_ms() + request.timeout_ms
        # Plan first: a write may create a topic for which the request also commits offsets.
        async with in_time(request.timeout_ms, nothing("written")):
            plan = await self._plan(request)
        left_ms = max(1, int(deadline - self.node.clock.now_ms()))
        committed = await self._transact_with_others(request, plan, left_ms)
        if committed is not None:
            return self._receipt(plan, committed)
        async with in_time(self._left(deadline), nothing("written")):
            commits = await self._commits_of(request.offsets)
        async with in_time(self._left(deadline), nothing("written")):
            await self._check_offsets(commits)
        return await self._transact_alone(plan, commits, deadline)

    async def _check_offsets(self, commits: Sequence[GroupCommit]) -> None:
        """Check offsets before anything is written: if the quorum refuses them, it aborts the whole transaction.

        Raises:
            MilenaError: as ``offsets.check_commit``.
        """
        try:
            for commit in commits:
                offsets.check_commit(self.node.metadata.image, commit)
        except MilenaError:
            # This image may be behind: it may not have a member yet that another node has already taken in.
            image = await self.node.metadata.current_image()
            for commit in commits:
                offsets.check_commit(image, commit)

    def _receipt(self, plan: Plan, committed: Committed) -> TransactionReceipt:
        self.node.counts.transactions.committed += 1
        return TransactionReceipt(
            receipts=plan.receipts(committed.base_offsets), is_visible=committed.is_visible
        )

    async def _transact_with_others(
        self, request: TransactionRequest, plan: Plan, left_ms: int
    ) -> Committed | None:
        """Commit the request as a part of a shared transaction. None: nothing of it counts, now or later.

        A request with offsets never shares: if its offsets were refused, the other requests would be aborted. A
        repeated request does not share either, because its response depends only on the first request.
        """
        if request.offsets or not self._may_share(plan):
            return None
        # Requests with equal timeouts share. If a request waited long for its topic, it has less time left.
        is_late = request.timeout_ms - left_ms > SHORT_RETRY_MS
        place = self._gatherer.place_of(plan, left_ms if is_late else request.timeout_ms)
        return None if place is None else await self._gatherer.submit(place, plan)

    def _may_share(self, plan: Plan) -> bool:
        """Return whether the plan's idempotency key allows sharing. True without a key.

        A key allows sharing if every node supports shared keys (feature level 10) and the request seems to be the first
        one with the key.
        """
        if plan.key is None:
            return True
        if self.node.metadata.image.feature_level < SHARED_KEYS_LEVEL:
            return False
        return self.lookup.may_be_first(*plan.parts[0].key, plan.key.key_hash)

    async def _commit_shared(self, parts: Sequence[Part], timeout_ms: int) -> Committed:
        """Commit the records of several requests.

        Writing has half of the time. If it fails, each request has the other half to try alone.
        """
        now_ms = self.node.clock.now_ms()
        write_by, deadline = now_ms + timeout_ms / 2, now_ms + timeout_ms
        async with self._slots.taken(timeout_ms=self._left(write_by)) as slot:
            return await self._commit_parts(
                parts, slot, commits=(), write_by=write_by, deadline=deadline
            )

    async def _transact_alone(
        self, plan: Plan, commits: tuple[GroupCommit, ...], deadline: float
    ) -> TransactionReceipt:
        """Commit the request as a transaction of its own. If leaders aborted it, try again in another transaction."""
        while True:
            # Each attempt is a new transaction, so a late write of the previous attempt cannot become part of it.
            async with self._slots.taken(timeout_ms=self._left(deadline)) as slot:
                try:
                    committed = await self._commit_parts(
                        plan.parts,
                        slot,
                        commits=commits,
                        write_by=deadline,
                        deadline=deadline,
                    )
                    return self._receipt(plan, committed)
                except _RepeatedError as repeated:
                    first = repeated.first
                    written = None if first is None else first.written
                    if first is not None and written is not None:
                        is_visible = await self._is_seen(first.identity, written, deadline)
                        return plan.first_answer(written, is_visible=is_visible)
                    # The transaction that used the key is aborted. Its marker is about to be written.
                    error: MilenaError = TransactionInProgressError(
                        "another request with this idempotency key is being decided; nothing was written, try again"
                    )
                except (StaleProducerEpochError, TransactionAbortedError) as ended:
                    # Leaders aborted this node's transaction: they believed that the node was gone, or another request
                    # with the key had it aborted. The request itself was not refused, so another transaction may work.
                    error = NoLeaderError(f"{ended.message}; nothing was written, try again")
            if self.node.clock.now_ms() >= deadline:
                raise error
            await self.node.clock.sleep(SHORT_RETRY_MS)

    async def _plan(self, request: TransactionRequest) -> Plan:
        """Return the request's records by partition. Raise if one of them may not be stored."""
        parts: list[Part] = []
        groups: list[WriteGroup] = []
        for topic, partition, numbers in grouped(request.writes):
            writes = [request.writes[number] for number in numbers]
            asked = ProduceRequest(
                topic=topic,
                partition=partition,
                records=merged(writes, are_placed=partition is not None),
                acks=Acks.ALL,
                timeout_ms=request.timeout_ms,
                idempotency=request.idempotency,
                may_create=all(write.may_create for write in writes),
            )
            own = await self._split(asked)
            counts = [len(write.records.values) for write in writes]
            groups.append(WriteGroup(len(own), [*zip(numbers, counts, strict=True)]))
            parts += own
        if len(parts) > ITEMS_PER_TRANSACTION_MAX:
            raise RequestTooLargeError(
                f"the records go to {len(parts)} partitions, and a transaction has at most {ITEMS_PER_TRANSACTION_MAX}"
            )
        if parts:
            # The first part is the home of the key. A retry on another node makes the same plan, so it finds the same
            # home.
            home = parts[0].topic
            keys = request_keys(own_key(request.idempotency, home), home)
            parts[0] = replace(parts[0], request_keys=keys)
        return Plan(parts, groups, len(request.writes))

    async def _split(self, asked: ProduceRequest) -> list[Part]:
        topic = await self.topic_to_write(
            asked.topic, highest_partition(asked), may_create=asked.may_create
        )
        if asked.idempotency is not None:
            asked = replace(asked, idempotency=own_key(asked.idempotency, topic))
            if topic.growths:
                await self.lookup.check_key(topic, asked)
        settings = topic_settings(topic)
        check_takes_transactions(topic, settings)
        self._sticky = (self._sticky + 1) % topic.partition_count
        batches, errors = split_request(
            topic,
            asked,
            sticky=self._sticky,
            now_ms=self.node.clock.wall_ms(),
            timestamps=settings.timestamps,
        )
        # A transaction commits all of its records or none. So one record that may not be stored refuses the request.
        for error in errors.values():
            raise error
        for batch in batches:
            keyless = keyless_record(topic, batch) if settings.is_compacted else None
            if keyless is not None:
                raise keyless
        return [Part(topic, settings, batch) for batch in batches]

    async def _commit_parts(
        self,
        parts: Sequence[Part],
        slot: TransactionSlot,
        *,
        commits: tuple[GroupCommit, ...],
        write_by: float,
        deadline: float,
    ) -> Committed:
        """Write and commit all parts, or none. Records that are not written at ``write_by`` do not count either.

        Raises:
            _RepeatedError: another request has used the key before; nothing of this request counts, now or later.
            MilenaError: as ``transact``.
        """
        try:
            # A leader may have to ask the quorum about the transaction or the key. Allow time for that.
            late = self._left(write_by) + WRITE_ANSWER_MARGIN_MS
            async with in_time(late, unknown_error("the records may be written")):
                receipts = await self._write(parts, slot, write_by)
        # Also if the request is cancelled, abort the transaction: readers of committed records stop at an open one.
        except BaseException as error:
            await self._abort_written(slot, deadline)
            if isinstance(error, FateUnknownError):
                # No other node could have committed the transaction, so its outcome is certain: 503, not 504.
                raise NoLeaderError(f"{error.message}; the transaction is aborted") from error
            raise
        extents = tuple(
            TransactionExtent(
                topic_id=part.topic.topic_id,
                partition=part.batch.partition,
                base_offset=_first(receipt),
                end_offset=_first(receipt) + len(part.batch.places),
            )
            for part, receipt in zip(parts, receipts, strict=True)
        )
        identity = (slot.producer_id, slot.producer_epoch)
        # The homes of keys come first in ``extents``. Only the markers in these partitions list all extents.
        home_count = sum(bool(part.request_keys) for part in parts)
        end = TransactionEnd(
            producer_id=identity[0],
            producer_epoch=identity[1],
            is_commit=True,
            is_keyed=home_count > 0,
            extents=extents,
            offsets=commits,
            home_count=max(1, home_count),
        )
        try:
            await self._decide(end, deadline)
        except FateUnknownError:
            raise
        except MilenaError:
            # The transaction is already aborted, or still open.
            await self._abort_written(slot, deadline)
            raise
        slot.on_ended()
        is_visible = await self._is_seen(identity, extents, deadline)
        return Committed([extent.base_offset for extent in extents], is_visible)

    async def _write(
        self,
        parts: Sequence[Part],
        slot: TransactionSlot,
        deadline: float,
    ) -> list[BatchReceipt]:
        """Write all parts. Before the first is written, all are encoded, so that a batch that is too large is found."""
        # The stamp names this broker and its epoch. So if this node dies, leaders abort the transaction soon.
        stamp = TransactionStamp(
            ProducerStamp(slot.producer_id, slot.producer_epoch, 0),
            TransactionExtension(
                self.node.metadata.node_id, self.node.membership.broker_epoch, OWNED_TIMEOUT_MS
            ),
        )
        written: list[_WrittenPart] = []
        for part in parts:
            size = size_of_columns(part.batch.columns)
            pieces = await self._turns.run(
                encode(
                    part.topic,
                    part.settings,
                    part.batch,
                    size,
                    part.request_keys,
                    transaction=stamp,
                ),
                size,
            )
            (piece,) = pieces
            written.append(_WrittenPart(part, piece.batch, decode_header(piece.batch)))
        keys = parts[0].request_keys if parts else ()
        # If keys share the transaction, each has its places in the batch. The leader refuses the whole batch if one key
        # is known, so this node need not wait for a home first.
        if not keys or keys[0].places:
            return await _all([self._bring(one, deadline) for one in written])
        (key_hash,) = (key.key_hash for key in keys)
        home, *others = written
        if self.lookup.is_known(*home.part.key, key_hash):
            # This is probably a repeated request. Records written beside its home would remain in logs as aborted.
            receipt = await self._bring_home(home, key_hash, deadline)
            return [receipt, *await _all([self._bring(one, deadline) for one in others])]
        return await _all(
            [
                self._bring_home(home, key_hash, deadline),
                *(self._bring(one, deadline) for one in others),
            ]
        )

    async def _bring(self, written: _WrittenPart, deadline: float) -> BatchReceipt:
        return await self.to_leader.bring(
            written.part.topic,
            written.part.batch.partition,
            written.batch,
            written.header,
            acks=Acks.ALL,
            timeout_ms=int(self._left(deadline)),
        )

    async def _bring_home(
        self, written: _WrittenPart, key_hash: bytes, deadline: float
    ) -> BatchReceipt:
        """Write the batch that contains the request's key.

        Raises:
            _RepeatedError: another request has used the key.
        """
        part, header = written.part, written.header
        receipt: BatchReceipt | None = None
        # If another transaction with the key is not decided, the leader refuses. The lookup below finds that one.
        with suppress(TransactionInProgressError):
            receipt = await self._bring(written, deadline)
        if receipt is not None and not receipt.is_duplicate:
            return receipt
        found = await self.lookup.keyed(part.topic, part.batch.partition, key_hash)
        if found is None:
            raise _RepeatedError(None)
        # The log may have this same batch: the response to an earlier attempt was lost.
        if found.identity == (header.producer_id, header.producer_epoch):
            assert receipt is not None, "a transaction is not in its own way"
            return receipt
        if found.extents is None:
            extents = await self._decided(part.key, found.identity, deadline)
            found = replace(found, extents=extents)
        raise _RepeatedError(found)

    async def _decided(
        self, key: PartitionKey, identity: Identity, deadline: float
    ) -> tuple[TransactionExtent, ...] | None:
        """Return what the other transaction with the key wrote, if it is committed. None: it is aborted, or is now."""

        def is_decided(image: Image) -> bool:
            return outcome_of(image, *key, *identity) is not NotCommitted.OPEN

        # Get the newest image first: this node's image may not have the end of the other transaction yet.
        await self.node.metadata.current_image()
        wait_ms = min(KEY_WAIT_MS, self._left(deadline))
        if not await self.node.metadata.wait_until(is_decided, timeout_ms=wait_ms):
            with suppress(TransactionCommittedError, StaleProducerEpochError):
                await self.ends.end(abort_of(*identity))
        outcome = outcome_of(self.node.metadata.image, *key, *identity)
        return None if isinstance(outcome, NotCommitted) else outcome.extents

    async def _abort_written(self, slot: TransactionSlot, deadline: float) -> None:
        """Abort a transaction. If no quorum can be asked in time, the leaders of its partitions abort it later."""
        wait_ms = max(ABORT_MS, self._left(deadline))
        try:
            async with in_time(wait_ms, unknown_error("the transaction may still be open")):
                await self.ends.end(abort_of(slot.producer_id, slot.producer_epoch))
        except MilenaError:
            return
        slot.on_ended()
        self.node.counts.transactions.aborted += 1

    # -- sessions --------------------------------------------------------------------------------

    async def begin(self, transactional_id: str, *, timeout_ms: int) -> ProducerTransaction:
        """Return the next transaction of the producer with this name. Abort what its former holder left open.

        Raises:
            TooManyProducersError, NoQuorumError: no producer could be reserved.
            FateUnknownError: a producer may have been reserved without a holder.
        """
        is_former_visible = True
        while True:
            answer = await self.node.metadata.propose(
                AllocateProducer(
                    name=transactional_id,
                    is_transactional=self.node.metadata.image.feature_level >= producers.LEVEL,
                    principal=principal_to_own(self.node.metadata.image),
                ),
                timeout_ms=PROPOSE_MS,
            )
            assert isinstance(answer, tuple), answer
            producer_id, producer_epoch = answer
            # The name has a former holder. Wait until leaders refuse its epoch, so that no late write of it gets a 200.
            # Also wait until no reader waits for a transaction that it left open.
            if producer_epoch > 0 and not await self.producers.end_former(
                producer_id, producer_epoch, timeout_ms=FORMER_END_MS
            ):
                is_former_visible = False
            # The end of a transaction raises the epoch, so a transaction at the last epoch could not end. The next call
            # then gives the name a new id.
            if producer_epoch < PRODUCER_EPOCH_MAX:
                return ProducerTransaction(
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    timeout_ms=timeout_ms,
                    is_former_visible=is_former_visible,
                )

    async def commit(self, request: TransactionCommit) -> TransactionEnded:
        """Commit the acknowledged writes that a client lists. A repeated call gets the same response.

        Raises:
            TransactionChangedError: a partition has other records of the transaction than the client lists. The
                transaction is still open.
            TransactionAbortedError, StaleProducerEpochError, TransactionNotFoundError: the transaction is not open.
            MilenaError: as ``TransactionEnds.end``.
            FateUnknownError: the transaction may be committed; repeat the call.
        """
        deadline = self.node.clock.now_ms() + request.timeout_ms
        named = request.transaction
        identity = (named.producer_id, named.producer_epoch)
        async with in_time(request.timeout_ms, nothing("decided")):
            if not all(row.topic_id for group in request.offsets for row in group.offsets):
                # In an old image, a name may have a former topic. For its offset, the quorum would abort all.
                await self.node.metadata.current_image()
            commits = await self._commits_of(request.offsets)
            for commit in commits:
                # Only what no group could take. Whether this group takes the offsets, the quorum decides together with
                # the transaction. A check of that by this image would refuse a repeated commit that is decided already.
                group_rules.check_group_id(commit.group_id)
                offsets.check_values(self.node.metadata.image, commit)
            extents = [await self._extent(written) for written in request.writes]
        while True:
            try:
                async with in_time(self._left(deadline), nothing("decided")):
                    leader_epochs = await self._leaders_of(request.writes, extents, identity)
                end = TransactionEnd(
                    producer_id=identity[0],
                    producer_epoch=identity[1],
                    is_commit=True,
                    is_keyed=False,
                    extents=tuple(extents),
                    offsets=commits,
                    leader_epochs=leader_epochs,
                )
                await self._end_session(end, deadline)
                break
            except StaleLeaderEpochError:
                # A partition has a new leader since the question. Ask the new leader.
                if self.node.clock.now_ms() >= deadline:
                    raise
            await self.node.clock.sleep(SHORT_RETRY_MS)
        self.node.counts.transactions.committed += 1
        is_visible = False
        if request.until_visible:
            partitions = self.node.metadata.image.partitions
            states = (partitions.get((extent.topic_id, extent.partition)) for extent in extents)
            # When the transaction is visible, these leaders have written its markers. So they know the new epoch.
            leaders = {state.leader for state in states if state is not None}
            is_visible, _ = await asyncio.gather(
                self._is_seen(identity, extents, deadline),
                self.producers.spread(identity[0], identity[1] + 1, known_by=leaders),
            )
        return TransactionEnded(next_epoch=identity[1] + 1, is_visible=is_visible)

    async def abort(self, transaction: ProducerTransaction, *, timeout_ms: int) -> TransactionEnded:
        """Abort a transaction: nothing that it wrote counts. Repeating the call is harmless.

        Raises:
            TransactionCommittedError: the transaction is committed.
            StaleProducerEpochError, TransactionNotFoundError: another transaction is open, or none was started.
            NoQuorumError: nothing was decided.
            FateUnknownError: the transaction may be aborted; repeat the call.
        """
        deadline = self.node.clock.now_ms() + timeout_ms
        end = abort_of(transaction.producer_id, transaction.producer_epoch)
        await self._end_session(end, deadline)
        self.node.counts.transactions.aborted += 1
        # Until every leader knows the next epoch, a write of this transaction could get a 200 and yet not count. Until
        # the markers are committed, readers of committed records stop at the transaction's records.
        next_epoch = transaction.producer_epoch + 1
        is_visible = await self.producers.end_former(
            transaction.producer_id, next_epoch, timeout_ms=self._left(deadline)
        )
        return TransactionEnded(next_epoch=next_epoch, is_visible=is_visible)

    async def open_transactions(self, *, older_than_ms: int) -> OpenTransactions:
        """Return the transactions that have been open for at least ``older_than_ms``, the oldest first."""
        before_ms = self.node.clock.wall_ms() - older_than_ms
        told = await self.lookup.open_transactions()
        return replace(told, found=[one for one in told.found if one.began_ms <= before_ms])

    async def _extent(self, written: WrittenExtent) -> TransactionExtent:
        topic = await self.topic_to_write(written.topic, written.partition, may_create=False)
        check_partition(topic, written.partition)
        return TransactionExtent(
            topic_id=topic.topic_id,
            partition=written.partition,
            base_offset=-1,
            end_offset=written.end_offset,
        )

    async def _leaders_of(
        self,
        writes: Sequence[WrittenExtent],
        extents: Sequence[TransactionExtent],
        identity: Identity,
    ) -> tuple[int, ...]:
        """Return the leader epochs under which leaders confirm that they hold exactly the records that a commit lists.

        Empty if the quorum confirmed the leaders now, or if the transaction has ended, so that the quorum alone decides
        the response.
        """
        image = self.node.metadata.image
        is_bound = image.feature_level >= LEADER_EPOCHS_LEVEL
        producer = image.producers.get(identity[0])
        # Each end of a transaction raises its producer's epoch. So if the image has a later epoch than the request, the
        # transaction has ended, however old the image is. Otherwise the leaders must be asked.
        if producer is not None and producer.producer_epoch > identity[1]:
            return ()
        try:
            epochs = await _all(
                [
                    self._confirm(written, extent, identity, is_bound=is_bound)
                    for written, extent in zip(writes, extents, strict=True)
                ]
            )
        except MilenaError:
            # If the transaction has ended, leaders report other records, or cannot be asked. The quorum knows how it
            # ended.
            if not _is_over(await self.node.metadata.current_image(), identity):
                raise
            return ()
        return tuple(epochs) if is_bound else ()

    async def _confirm(
        self,
        written: WrittenExtent,
        extent: TransactionExtent,
        identity: Identity,
        *,
        is_bound: bool,
    ) -> int:
        named = (written.end_offset, written.records)
        first = found = await self.lookup.extent(extent, identity, is_bound=is_bound)
        if is_bound and (found.end_offset, found.records) != named:
            # A former leader that does not know its successor may hold fewer records. So before refusing, ask a leader
            # that the quorum confirms.
            found = await self.lookup.extent(extent, identity, is_bound=False)
            # The confirmed leader agrees with the commit, so the first response came from a former leader. Ask all
            # leaders for their epochs again.
            if (found.end_offset, found.records) == named:
                raise StaleLeaderEpochError(
                    f"{written.topic}-{written.partition} has another leader; nothing was decided, try again"
                )
        if (found.end_offset, found.records) != named:
            raise TransactionChangedError(
                f"{written.topic}-{written.partition} has {found.records} records of transaction "
                f"{identity[0]}:{identity[1]} up to offset {found.end_offset}, and the commit names "
                f"{written.records} up to {written.end_offset}: a write whose answer was lost is in, or one is named "
                "that is not. Abort it, and begin again"
            )
        return first.leader_epoch

    # -- the end ---------------------------------------------------------------------------------

    async def _end_session(self, end: TransactionEnd, deadline: float) -> None:
        """End a session. If it has ended in another way, raise that error after waiting for the markers.

        Raises:
            MilenaError: as ``_decide``.
        """
        try:
            await self._decide(end, deadline)
        except FateUnknownError:
            raise
        except MilenaError:
            producer = self.node.metadata.image.producers.get(end.producer_id)
            if producer is not None and producer.producer_epoch > end.producer_epoch:
                await self.producers.end_former(
                    end.producer_id,
                    end.producer_epoch + 1,
                    timeout_ms=min(FORMER_END_MS, self._left(deadline)),
                )
            raise

    async def _decide(self, end: TransactionEnd, deadline: float) -> None:
        """End the transaction. While it is unknown whether it has ended, try again until the deadline.

        Raises:
            MilenaError: as ``TransactionEnds.end``.
        """
        unknown: FateUnknownError | None = None
        while True:
            try:
                late = unknown_error("the transaction may have ended")
                async with in_time(self._left(deadline), late):
                    await self.ends.end(end)
            except FateUnknownError as error:
                unknown = error
            # This attempt decided nothing, but an earlier one may have. Only another attempt can find out.
            except (NoQuorumError, TooManyTransactionsError):
                if unknown is None:
                    raise
            except (StaleProducerEpochError, TransactionNotFoundError, DrainingError) as error:
                if unknown is None:
                    raise
                # An earlier attempt may have ended it, and then another client may have used the producer. Or this node
                # is stopping and makes no more attempts.
                raise unknown from error
            else:
                return
            if self.node.clock.now_ms() >= deadline:
                raise unknown
            await self.node.clock.sleep(SHORT_RETRY_MS)

    async def _is_seen(
        self, identity: Identity, extents: Sequence[TransactionExtent], deadline: float
    ) -> bool:
        """Wait until readers see a committed transaction; return False if the time is up first."""
        keys = [(extent.topic_id, extent.partition) for extent in extents]
        return await self.sight.seen(identity, keys, timeout_ms=self._left(deadline))

    async def _commits_of(self, groups: Sequence[GroupOffsets]) -> tuple[GroupCommit, ...]:
        commits: list[GroupCommit] = []
        for group in groups:
            rows: list[OffsetCommit] = []
            for row in group.offsets:
                topic = await self.topic_to_write(
                    row.topic, row.partition, may_create=False, topic_id=row.topic_id
                )
                check_partition(topic, row.partition)
                rows.append(
                    OffsetCommit(
                        topic_id=topic.topic_id,
                        partition=row.partition,
                        offset=row.next_offset,
                        leader_epoch=-1,
                        metadata=row.metadata,
                    )
                )
            commits.append(
                GroupCommit(
                    group_id=group.group,
                    member_id=group.member_id,
                    member_epoch=group.member_epoch,
                    offsets=tuple(rows),
                )
            )
        return tuple(commits)

    def _left(self, deadline: float) -> float:
        return max(1, deadline - self.node.clock.now_ms())


def _is_over(image: Image, identity: Identity) -> bool:
    """Return whether, according to the image, a transaction has ended or was never started."""
    producer = image.producers.get(identity[0])
    return producer is None or producer.producer_epoch != identity[1]


class _RepeatedError(Exception):
    """Another request has used the key.

    ``first``: the transaction of that request; it is aborted if it has no extents. None: the key is forgotten.
    """

    def __init__(self, first: KeyOutcome | None) -> None:
        super().__init__("repeated")
        self.first = first


T = TypeVar("T")


async def _all(works: Sequence[Awaitable[T]]) -> list[T]:
    """Return all results. Raise the first error only when all are done, so that none writes in the background."""
    outcomes = await asyncio.gather(*works, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]


def _first(receipt: BatchReceipt) -> int:
    assert receipt.base_offset is not None, "a transaction's writes wait for all replicas"
    return receipt.base_offset
