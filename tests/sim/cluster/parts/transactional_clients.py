"""Clients that write transactions: in one request, step by step, and with ends that come late or twice.

A client notes the requests and the responses of a transaction in a ``Work``. Responses that contradict each other are
noticed at once. The logs are compared with it at the end of the run (``transactional``).
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from http_api.ports.node import Ports
from milena.model.batch.header import ProducerStamp
from milena.model.errors import (
    FateUnknownError,
    IdempotencyKeyReusedError,
    MilenaError,
    StaleProducerEpochError,
    TransactionAbortedError,
    TransactionChangedError,
    TransactionCommittedError,
    TransactionNotFoundError,
)
from milena.model.requests import (
    Acks,
    CommittedNext,
    GroupOffsets,
    IdempotencyKey,
    ProduceReceipt,
    ProduceRequest,
    ProducerTransaction,
    Records,
    TransactionCommit,
    TransactionReceipt,
    TransactionRequest,
    TransactionWrite,
    WrittenExtent,
)
from tests.sim.cluster.clients import TIMEOUT_MS, numbered_batch
from tests.sim.cluster.history import Write
from tests.sim.cluster.invariants import ViolationError
from tests.sim.cluster.parts.transactional_readers import TransactionalReaders
from tests.sim.cluster.parts.transactional_work import (
    PLACES,
    PREFIX,
    Session,
    Work,
    key_of,
    records_of,
)

if TYPE_CHECKING:
    from raft_meta.machine.image import PartitionKey
    from tests.sim.cluster.machine import NodeProcess
    from tests.sim.cluster.world import World

T = TypeVar("T")

GIVE_UP_CHANCE = 0.15
"""The share of clients that do not retry after a response that nothing took effect."""
OFFSETS_CHANCE = 0.4
TAKE_OVER_CHANCE = 0.15
"""The share of sessions that start with the transactional id of another one, which continues."""
NAMES = ("one", "two", "three")
"""The transactional ids of the sessions, one per client."""
SESSION_MS = (1_000, 3_000, 5_000)
"""The timeouts of sessions, in ms."""
PATIENCE_MS = (TIMEOUT_MS, TIMEOUT_MS, 8_000)
"""The timeouts of commits, in ms; some are longer than a proposal takes to fail."""
LINGER_CHANCE = 0.1
"""The share of clients that pause so long that their session may time out."""
LINGER_S_MAX = 6.0
ENDED_KEPT = 20
"""The number of ended sessions to keep; some of their ends are requested again."""
STRANGER_CHANCE = 0.05
"""The share of transactions that commit offsets as a member that does not exist; they must be refused."""


class TransactionalClients(TransactionalReaders):
    """Clients that write to all places, and readers of them."""

    prefix = PREFIX

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.works: list[Work] = []
        self.by_value: dict[str, Work] = {}
        self.claims: dict[PartitionKey, dict[int, str]] = {}
        """Offsets that a response just called visible, with the transaction and the node."""
        self._ended: list[Session] = []
        self._answered: list[tuple[Work, TransactionRequest]] = []
        """Requests with keys that are committed."""

    def all(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        clients: list[Callable[[], Coroutine[Any, Any, None]]] = [
            self._write_plain,
            self._write_to_leader,
            *(lambda group=group: self._write_at_once(group) for group in "ab"),
            *(lambda group=group: self._write_keyed_at_once(group) for group in "cd"),
            *(lambda name=name: self._write_sessions(name) for name in NAMES),
            self._end_again,
            self._ask_again,
        ]
        return [self._counted(client) for client in clients] + super().all()

    def final_values(self) -> dict[int, dict[int, str]]:
        """Return the records outside of transactions: value by place and offset."""
        return {
            place: {
                offset: value
                for offset, value in self._world.checker.values_of(self._key(place)).items()
                if value not in self.by_value
            }
            for place in range(len(PLACES))
        }

    # Writes outside of transactions.

    async def _write_to_leader(self) -> None:
        """Write with acks=1: an acknowledged record may be lost, but a refused one must not be in the log."""
        while not self._is_over:
            await self._pause()
            node, write = self._some_node(), self._new_write("plain")
            if node is not None:
                error, _ = await self._send(node, write, Acks.LEADER, None)
                self._note(write, error, None)

    def _records(self, write: Write) -> Records:
        return records_of(write.value)

    async def _produce(self, node: "NodeProcess", write: Write, key: IdempotencyKey | None) -> None:
        self._note(write, *await self._send(node, write, Acks.ALL, key))

    async def _send(
        self, node: "NodeProcess", write: Write, acks: Acks, key: IdempotencyKey | None
    ) -> tuple[MilenaError | None, int | None]:
        assert write.partition is not None, "it names its place"
        place = PLACES[write.partition]
        request = ProduceRequest(
            topic=place.topic,
            records=self._records(write),
            acks=acks,
            timeout_ms=TIMEOUT_MS,
            partition=place.partition,
            idempotency=key,
        )
        receipt = await self._receipt(node, request)
        return receipt.error, receipt.offset

    async def _receipt(self, node: "NodeProcess", request: ProduceRequest) -> ProduceReceipt:
        error: MilenaError
        try:
            receipts = await self._call(node, lambda ports: _produced(ports, request))
        except TimeoutError:
            error = FateUnknownError("hung up")
        except MilenaError as raised:
            error = raised
        else:
            return receipts[0]
        return ProduceReceipt(partition=request.partition or 0, offset=None, error=error)

    # Transactions in one request.

    def _new_work(self, group: str, *, has_offsets: bool = True) -> Work:
        work = Work(group)
        if has_offsets and self._rng.random() < OFFSETS_CHANCE:
            self._values += 1
            work.next_offset = self._values
        self.works.append(work)
        return work

    def _new_value(self, work: Work, place: int) -> str:
        self._values += 1
        value = f"{self.prefix}{self._values}"
        work.places[value] = place
        self.by_value[value] = work
        return value

    def _groups(self, work: Work, *, is_known: bool) -> tuple[GroupOffsets, ...]:
        if not work.next_offset:
            return ()
        moved = CommittedNext(topic="ledger", partition=0, next_offset=work.next_offset)
        return (
            GroupOffsets(
                group=work.group,
                member_id=None if is_known else "stranger",
                member_epoch=-1 if is_known else 1,
                offsets=(moved,),
            ),
        )

    def _is_known(self) -> bool:
        return self._rng.random() >= STRANGER_CHANCE

    def _new_request(
        self,
        group: str,
        *,
        is_keyed: bool,
        has_offsets: bool = True,
        patience_ms: int | None = None,
    ) -> tuple[Work, TransactionRequest]:
        """Return a request with records for some places; without a key, it may have no records."""
        work = self._new_work(group, has_offsets=has_offsets)
        least = 1 if is_keyed or not work.next_offset else 0
        writes: list[TransactionWrite] = []
        for place in self._rng.sample(range(len(PLACES)), self._rng.randint(least, len(PLACES))):
            values = [self._new_value(work, place) for _ in range(self._rng.randint(1, 2))]
            records = records_of(*values)
            topic, partition = PLACES[place]
            writes.append(TransactionWrite(topic=topic, partition=partition, records=records))
        work.named.update(work.places)
        work.is_keyed = is_keyed
        key = None
        if is_keyed:
            name = min(work.places).encode()
            key = IdempotencyKey(key_hash=name.ljust(16, b"-"), body_hash=b"12345678")
        request = TransactionRequest(
            writes=tuple(writes),
            # A request with a key is repeated until success, so it must not have an offset that is always refused.
            offsets=self._groups(work, is_known=is_keyed or self._is_known()),
            timeout_ms=patience_ms or self._rng.choice(PATIENCE_MS),
            idempotency=key,
        )
        return work, request

    async def _write_at_once(self, group: str) -> None:
        """Write with one attempt each, some at the same time: requests without offsets may share a transaction."""
        while not self._is_over:
            await self._pause()
            node = self._some_node()
            if node is not None:
                requests = [self._new_request(group, is_keyed=False)]
                for _ in range(self._rng.choice((0, 2, 4))):
                    requests.append(self._new_request(group, is_keyed=False, has_offsets=False))
                await asyncio.gather(*(self._transact(node, *request) for request in requests))

    async def _write_keyed_at_once(self, group: str) -> None:
        """Repeat requests with keys until they are committed: some at the same time, on any nodes, and on two nodes."""
        while not self._is_over:
            patience_ms = self._rng.choice(PATIENCE_MS)
            left = [
                self._new_request(
                    group, is_keyed=True, has_offsets=not number, patience_ms=patience_ms
                )
                for number in range(self._rng.choice((1, 3, 5)))
            ]
            while left:
                await self._pause()
                nodes = [self._some_node() for _ in range(self._rng.choice((1, 1, 2)))]
                tries = [
                    self._transact(node, *request)
                    for node in nodes
                    if node is not None
                    for request in left
                ]
                await asyncio.gather(*tries)
                self._answered += [request for request in left if request[0].is_committed]
                left = [request for request in left if self._tries_again(request[0])]

    def _tries_again(self, work: Work) -> bool:
        if work.is_committed:
            return False
        return work.is_in_doubt or self._rng.random() >= GIVE_UP_CHANCE

    async def _ask_again(self) -> None:
        """Repeat requests with keys that were committed some time ago, on any node."""
        while not self._is_over:
            await self._pause()
            node = self._some_node()
            if node is not None and self._answered:
                await self._transact(node, *self._rng.choice(self._answered))

    async def _transact(self, node: "NodeProcess", work: Work, request: TransactionRequest) -> None:
        error: MilenaError | TimeoutError | None = None
        is_repeat = work.is_committed
        try:
            receipt = await self._call(node, lambda ports: ports.transactions.transact(request))
        except (MilenaError, TimeoutError) as raised:
            error = raised
        else:
            if is_repeat and not receipt.is_duplicate:
                raise ViolationError(f"{node.name} has written {work} anew: {receipt}")
            self._take_receipt(node, work, request, receipt)
        if isinstance(error, TransactionAbortedError | StaleProducerEpochError):
            raise ViolationError(
                f"{node.name} tells of a transaction that its client never began: {error}"
            )
        if isinstance(error, IdempotencyKeyReusedError):
            raise ViolationError(f"{node.name} takes {work} for another request: {error}")
        work.note_commit(error)

    def _take_receipt(
        self,
        node: "NodeProcess",
        work: Work,
        request: TransactionRequest,
        receipt: TransactionReceipt,
    ) -> None:
        if receipt.is_duplicate and request.idempotency is None:
            raise ViolationError(f"{node.name} has seen {[*work.places]} before, without a key")
        offsets = [r.offset for receipts in receipt.receipts for r in receipts]
        told = {v: o for v, o in zip(work.places, offsets, strict=True) if o is not None}
        if len(told) < len(work.places) or (work.offsets and work.offsets != told):
            raise ViolationError(f"{node.name} wrote {work.places} at {offsets}: {work.offsets}")
        work.offsets = told
        if receipt.is_visible:
            self._note_seen(node, work, told)

    def _note_seen(self, node: "NodeProcess", work: Work, told: dict[str, int]) -> None:
        """Note that readers must now see these records; check it after this event, in which it may become true."""
        for value, offset in told.items():
            claims = self.claims.setdefault(self._key(work.places[value]), {})
            claims[offset] = f"{node.name}: {work}"

    # Sessions.

    async def _write_sessions(self, name: str) -> None:
        """Write transactions one after the other, most of them in the epoch that the previous end started."""
        transaction: ProducerTransaction | None = None
        while not self._is_over:
            await self._pause()
            if self._rng.random() < TAKE_OVER_CHANCE:
                transaction = await self._begin(self._rng.choice(NAMES))
            if transaction is None:
                transaction = await self._begin(name)
            if transaction is not None:
                transaction = await self._write_session(name, transaction)

    async def _begin(self, name: str) -> ProducerTransaction | None:
        node, timeout_ms = self._some_node(), self._rng.choice(SESSION_MS)
        if node is None:
            return None
        try:
            return await self._call(
                node, lambda ports: ports.transactions.begin(name, timeout_ms=timeout_ms)
            )
        except (MilenaError, TimeoutError):
            return None

    async def _write_session(
        self, name: str, transaction: ProducerTransaction
    ) -> ProducerTransaction | None:
        """Write a session; return the next transaction if the client knows it."""
        work = self._new_work(name)
        mode = self._rng.choice(("plain", "plain", "keyed", "numbered"))
        session = Session(work, transaction, mode)
        for _ in range(self._rng.randint(0, 3)):
            if session.is_over:
                break
            places = self._rng.sample(range(len(PLACES)), self._rng.choice((1, 1, 2)))
            await asyncio.gather(*(self._add(session, place) for place in places))
            await self._maybe_linger()
        session.commit = self._commit_of(session)
        fate = self._rng.choice(("commit", "commit", "commit", "abort", "leave"))
        if fate == "leave":
            await self._maybe_linger()
        epoch = await self._end(session, fate)
        self._ended = [*self._ended[1 - ENDED_KEPT :], session]
        if epoch is None:
            return None
        return ProducerTransaction(
            producer_id=transaction.producer_id,
            producer_epoch=epoch,
            timeout_ms=transaction.timeout_ms,
        )

    async def _maybe_linger(self) -> None:
        await self._pause()
        if self._rng.random() < LINGER_CHANCE and not self._is_over:
            await asyncio.sleep(self._rng.uniform(0, LINGER_S_MAX))

    async def _add(self, session: Session, place: int) -> None:
        """Write one more record; repeat it while its fate is unknown, if a repetition is recognized."""
        value = self._new_value(session.work, place)
        sequence = session.sent.get(place, 0)
        session.sent[place] = sequence + 1
        is_unknown = False
        tries = 1 if session.mode == "plain" else 4
        for _ in range(tries):
            node = self._some_node()
            if node is None:
                await self._pause()
                continue
            offset, error = await self._try_to_add(node, session, value, place, sequence)
            if offset is not None:
                session.ends[place] = max(session.ends.get(place, 0), offset + 1)
                session.counts[place] = session.counts.get(place, 0) + 1
                session.work.named.add(value)
                session.work.offsets[value] = offset
                return
            session.is_over |= isinstance(error, StaleProducerEpochError | TransactionNotFoundError)
            if isinstance(error, FateUnknownError):
                is_unknown = True
            elif session.mode == "numbered":
                # A next record would leave a gap in the sequences.
                session.is_over = True
            if session.is_over or not isinstance(error, FateUnknownError):
                break
        session.is_doubtful |= is_unknown

    async def _try_to_add(
        self, node: "NodeProcess", session: Session, value: str, place: int, sequence: int
    ) -> tuple[int | None, MilenaError | None]:
        topic, partition = PLACES[place]
        transaction = session.transaction
        if session.mode == "numbered":
            stamp = ProducerStamp(transaction.producer_id, transaction.producer_epoch, sequence)
            batch = numbered_batch(value, stamp, key_of(value))
            try:
                appended = await self._call(
                    node,
                    lambda ports: ports.produce.produce_batch(
                        topic,
                        partition,
                        batch,
                        acks=Acks.ALL,
                        timeout_ms=TIMEOUT_MS,
                        transaction=transaction,
                    ),
                )
            except TimeoutError:
                return None, FateUnknownError("hung up")
            except MilenaError as error:
                return None, error
            return appended.base_offset, None
        key = None
        if session.mode == "keyed":
            key = IdempotencyKey(key_hash=value.encode().ljust(16, b"+"), body_hash=b"12345678")
        request = ProduceRequest(
            topic=topic,
            records=records_of(value),
            acks=Acks.ALL,
            timeout_ms=TIMEOUT_MS,
            partition=partition,
            idempotency=key,
            transaction=transaction,
        )
        receipt = await self._receipt(node, request)
        return receipt.offset, receipt.error

    def _commit_of(self, session: Session) -> TransactionCommit:
        """Return a commit of the acknowledged records; sometimes without one place, whose records are then aborted."""
        work, places = session.work, list(session.ends)
        if places and self._rng.random() < GIVE_UP_CHANCE:
            forgotten = places.pop()
            work.named = {value for value in work.named if work.places[value] != forgotten}
        return TransactionCommit(
            transaction=session.transaction,
            writes=tuple(
                WrittenExtent(
                    topic=PLACES[place].topic,
                    partition=PLACES[place].partition,
                    end_offset=session.ends[place],
                    records=session.counts[place],
                )
                for place in places
            ),
            offsets=self._groups(work, is_known=self._is_known()),
            timeout_ms=self._rng.choice(PATIENCE_MS),
        )

    async def _end(self, session: Session, fate: str) -> int | None:
        """End a transaction, or leave it to its timeout; return the next epoch, if the response has it."""
        while fate != "leave" and not self._is_over:
            node = self._some_node()
            if node is None:
                await self._pause()
                continue
            error, epoch = await self._try_to_end(node, session, is_commit=fate == "commit")
            if epoch is not None:
                return epoch
            if isinstance(error, TransactionChangedError):
                fate = "abort"
            elif isinstance(
                error,
                TransactionAbortedError
                | TransactionCommittedError
                | StaleProducerEpochError
                | TransactionNotFoundError,
            ):
                return None
            elif self._rng.random() < GIVE_UP_CHANCE:
                fate = self._rng.choice(("leave", "abort"))
            await self._pause()
        return None

    async def _try_to_end(
        self, node: "NodeProcess", session: Session, *, is_commit: bool
    ) -> tuple[MilenaError | TimeoutError | None, int | None]:
        work, transaction, commit = session.work, session.transaction, session.commit
        assert commit is not None
        error: MilenaError | TimeoutError | None = None
        epoch: int | None = None
        try:
            if is_commit:
                ended = await self._call(node, lambda ports: ports.transactions.commit(commit))
            else:
                ended = await self._call(
                    node, lambda ports: ports.transactions.abort(transaction, timeout_ms=TIMEOUT_MS)
                )
            epoch = ended.next_epoch
            if is_commit and ended.is_visible:
                told = {v: o for v, o in work.offsets.items() if v in work.named}
                self._note_seen(node, work, told)
        except (MilenaError, TimeoutError) as raised:
            error = raised
        note = work.note_commit if is_commit else work.note_abort
        note(error)
        if epoch not in (None, transaction.producer_epoch + 1):
            raise ViolationError(f"{node.name} ended {transaction}, and {epoch} is next")
        if isinstance(error, TransactionChangedError) and not session.is_doubtful:
            raise ViolationError(f"{node.name} knows of other writes than {commit}: {error}")
        return error, epoch

    async def _end_again(self) -> None:
        """Request ends of some time ago again, the same or the opposite, on any node."""
        while not self._is_over:
            await self._pause()
            node = self._some_node()
            if node is not None and self._ended:
                session = self._rng.choice(self._ended)
                await self._try_to_end(node, session, is_commit=self._rng.random() < 0.7)


async def _produced(ports: Ports, request: ProduceRequest) -> Sequence[ProduceReceipt]:
    return await ports.produce.produce(request)
