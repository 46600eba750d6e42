"""Readers of the places of transactions: they must get all committed records, and no others.

Every response is checked at once against the decisions of the cluster and against the logs.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from http_api.ports.node import Ports
from milena.model.batch.decode import decode_columns, iterate_batches, offsets_of
from milena.model.errors import CorruptBatchError, MilenaError, OffsetOutOfRangeError
from milena.model.requests import FetchRequest, FetchResult
from raft_meta.machine.image import PartitionKey
from tests.sim.cluster.clients import READ_BYTES
from tests.sim.cluster.history import decoded
from tests.sim.cluster.invariants import ViolationError
from tests.sim.cluster.parts.part import TopicClients
from tests.sim.cluster.parts.transaction_twin import Chronicle, Decisions
from tests.sim.cluster.parts.transactional_work import PLACES, STOCK

if TYPE_CHECKING:
    from tests.sim.cluster.machine import NodeProcess
    from tests.sim.cluster.world import World

T = TypeVar("T")

HANG_UP_CHANCE = 0.05
"""The share of calls whose client does not wait for the response."""
ASK_CHANCE = 0.3
"""The share of reads after which the client asks for open transactions."""
EVERYTHING = 1 << 60
DELETE_TIMEOUT_MS = 2_000


class TransactionalReaders(TopicClients):
    """Clients that read all places, ask for their ends and for open transactions, and delete records."""

    topic = "ledger"

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.topic_ids: dict[str, str] = {}
        self.decisions = Decisions()
        self.chronicles: dict[PartitionKey, Chronicle] = {}
        self.read_to = [0] * len(PLACES)
        """The offset that readers of committed records have reached, by place."""
        self.asked = [0] * len(PLACES)
        """The offset below which a client requested deletion."""
        self.most_open = 0
        """The most parts of open transactions in one response."""
        self.is_compacting = self._rng.random() < 0.5
        """Whether the last place is compacted."""
        self._is_deleting = self._rng.random() < 0.4

    @property
    def partition_count(self) -> int:
        return len(PLACES)

    def _key(self, partition: int) -> PartitionKey:
        place = PLACES[partition]
        return self.topic_ids[place.topic], place.partition

    def _chronicle(self, place: int) -> Chronicle:
        return self.chronicles[self._key(place)]

    def all(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        clients: list[Callable[[], Coroutine[Any, Any, None]]] = [
            self._look_about,
            *(lambda place=place: self._read_all(place) for place in range(len(PLACES))),
            lambda: self._read_all(0, is_uncommitted=True),
        ]
        # A flipped bit may delay the checker's read of a record; deleted before that, the record would count as
        # missing.
        if self._is_deleting and not self._world.faults.strikes_any({"flip_bit"}):
            clients.append(self._delete)
        return [self._counted(client) for client in clients]

    async def _call(
        self, node: "NodeProcess", make: Callable[[Ports], Coroutine[Any, Any, T]]
    ) -> T:
        """Call a port; some clients hang up, which raises a ``TimeoutError``."""
        is_patient = self._rng.random() >= HANG_UP_CHANCE
        return await node.ask(make, patience_s=None if is_patient else self._rng.uniform(0, 0.5))

    async def _read_all(self, place: int, *, is_uncommitted: bool = False) -> None:
        """Read from the start, from any node and replica; after the end of faults, to the final end."""
        offset = 0
        while not (self._is_over and offset >= self._ledger_end(place) and self._world.is_whole()):
            node = self._some_node()
            if node is not None:
                request = self._fetch_of(place, offset, is_uncommitted=is_uncommitted)
                result = await self._fetch(node, place, request)
                if isinstance(result, OffsetOutOfRangeError):
                    offset = self._read_elsewhere(node, place, offset, result)
                elif result is not None:
                    who = f"a reader of {node.name}"
                    offset = self._take_from(who, place, offset, result, is_uncommitted)
            if not is_uncommitted:
                self.read_to[place] = max(self.read_to[place], offset)
            await asyncio.sleep(self._rng.uniform(1, 120) / 1000)

    def _ledger_end(self, place: int) -> int:
        ledger = self._world.checker.ledgers.get(self._key(place))
        return 0 if ledger is None else ledger.end

    def _fetch_of(
        self,
        place: int,
        offset: int | str,
        *,
        is_uncommitted: bool,
        timestamp_ms: int | None = None,
    ) -> FetchRequest:
        return FetchRequest(
            topic=PLACES[place].topic,
            partition=PLACES[place].partition,
            offset=offset,
            timestamp_ms=timestamp_ms,
            max_bytes=READ_BYTES,
            timeout_ms=self._rng.choice((0, 50)),
            is_local=self._rng.random() < 0.5,
            is_uncommitted=is_uncommitted,
        )

    async def _fetch(
        self, node: "NodeProcess", place: int, request: FetchRequest
    ) -> FetchResult | OffsetOutOfRangeError | None:
        try:
            return await node.ask(lambda ports: ports.reads.fetch(request))
        except OffsetOutOfRangeError as error:
            return error
        except MilenaError:
            return None

    def _read_elsewhere(
        self, node: "NodeProcess", partition: int, offset: int, error: OffsetOutOfRangeError
    ) -> int:
        """Check a response that there is nothing at an offset that a client has already read."""
        if offset >= self.asked[partition]:
            raise ViolationError(f"{node.name} says of a committed offset: {error}") from error
        starts = [
            runner.log.log_start_offset
            for node_id in self._world.node_ids
            if (runner := self._world.checker.runner(node_id, self._key(partition))) is not None
        ]
        return max([offset, *starts])

    def _take_from(
        self, who: str, place: int, offset: int, result: FetchResult, is_uncommitted: bool
    ) -> int:
        try:
            return self._take_all(who, place, offset, result, is_uncommitted)
        except CorruptBatchError:
            # A fault may have damaged the bytes: bits flipped on a disk, or in the network. Only the client notices
            # that.
            if not self._world.faults.has_lost_any and not self._world.wires.tampered:
                raise
            return offset

    def _take_all(
        self, who: str, place: int, offset: int, result: FetchResult, is_uncommitted: bool
    ) -> int:
        """Check and count the records; return the next offset to read."""
        key = self._key(place)
        for position, header in list(iterate_batches(result.batches)):
            columns = decode_columns(result.batches, header, position, bytes_max=1 << 20)
            for at, value in zip(offsets_of(header, columns), columns.values, strict=True):
                if at < offset or at >= result.high_watermark:
                    continue
                self._require_nothing(who, place, offset, at, is_uncommitted)
                if header.is_transactional and not is_uncommitted:
                    identity = (header.producer_id, header.producer_epoch)
                    decision = self.decisions.by_identity.get(identity)
                    if decision is None or not decision.commits(key, at):
                        raise ViolationError(
                            f"{who} read {PLACES[place]} at {at}, of {identity}: {decision}"
                        )
                self._world.checker.on_read(who, key, at, decoded(value or b""))
                self.history.reads += 1
                offset = at + 1
            end = min(header.next_offset, result.high_watermark)
            if end > offset:
                self._require_nothing(who, place, offset, end, is_uncommitted)
                offset = end
        return offset

    def _require_nothing(
        self, who: str, place: int, start: int, end: int, is_uncommitted: bool
    ) -> None:
        """Check that [start, end), which a reader skipped, has no record for it."""
        key, chronicle = self._key(place), self._chronicle(place)
        for offset in range(start, min(end, chronicle.end)):
            if offset in chronicle.controls or self._is_replaced(place, offset):
                continue
            owner = chronicle.owners.get(offset)
            decision = None if owner is None else self.decisions.by_identity.get(owner)
            if is_uncommitted or decision is None or decision.commits(key, offset):
                raise ViolationError(
                    f"{who} was not given {PLACES[place]} at {offset}, of {owner}: {decision}"
                )

    def _is_replaced(self, place: int, offset: int) -> bool:
        """Return whether compaction may have removed a record: it is aborted, or was replaced by a later one."""
        if place != STOCK or not self.is_compacting:
            return False
        keys = self._world.checker.ledgers[self._key(place)].keys
        return not self._counts(place, offset) or any(
            keys.get(later) == keys[offset] and self._counts(place, later)
            for later in range(offset + 1, self._chronicle(place).end)
        )

    def _counts(self, place: int, offset: int) -> bool:
        """Return whether a record is outside of transactions or committed, as far as that is decided."""
        key, chronicle = self._key(place), self._chronicle(place)
        owner = chronicle.owners.get(offset)
        if owner is None:
            return offset not in chronicle.controls
        decision = self.decisions.by_identity.get(owner)
        return decision is not None and decision.commits(key, offset)

    async def _look_about(self) -> None:
        """Read from random offsets, and ask for the end of a partition and for its open transactions."""
        while not self._is_over:
            await self._pause()
            node, place = self._some_node(), self._rng.randrange(len(PLACES))
            if node is None:
                continue
            known, is_uncommitted = self.read_to[place], self._rng.random() < 0.3
            offset = self._rng.choice(("earliest", "latest", "latest", -3))
            is_timed = self._rng.random() < 0.3
            timestamp_ms = node.clock.wall_ms() - self._rng.randrange(5_000) if is_timed else None
            request = self._fetch_of(
                place, offset, is_uncommitted=is_uncommitted, timestamp_ms=timestamp_ms
            )
            result = await self._fetch(node, place, request)
            if isinstance(result, FetchResult):
                who = f"{'a local' if request.is_local else 'a'} look at {node.name}"
                start = result.start_offset
                self._take_from(who, place, start, result, is_uncommitted)
                if offset == "latest" and not is_timed:
                    self._check_end(who, place, start, request, known)
            if self._rng.random() < ASK_CHANCE:
                await self._ask_for_open(node)

    def _check_end(self, who: str, place: int, end: int, request: FetchRequest, known: int) -> None:
        """Check that a reported end is neither below an offset that was read nor above the decided part of the log."""
        chronicle = self._chronicle(place)
        highest = chronicle.end if request.is_uncommitted else chronicle.stable_end(chronicle.end)
        is_behind = self._ledger_end(place) > chronicle.end
        if (end < known and not request.is_local) or (end > highest and not is_behind):
            raise ViolationError(
                f"{who} ends {PLACES[place]} at {end}, and {known} to {highest} is right"
            )

    async def _ask_for_open(self, node: "NodeProcess") -> None:
        try:
            told = await node.ask(
                lambda ports: ports.transactions.open_transactions(older_than_ms=0)
            )
        except MilenaError:
            return
        self.most_open = max(self.most_open, len(told.found))

    async def _delete(self) -> None:
        """Delete records below a decided offset."""
        while not self._is_over:
            await asyncio.sleep(self._rng.uniform(0.5, 3))
            node, place = self._some_node(), self._rng.randrange(len(PLACES))
            if node is None:
                continue
            before = self._rng.choice((self._rng.randint(0, self._chronicle(place).end), None))
            self.asked[place] = max(self.asked[place], EVERYTHING if before is None else before)
            topic, partition = PLACES[place]
            try:
                await node.ask(
                    lambda ports, topic=topic, partition=partition, before=before: (  # type: ignore[misc]
                        ports.deletions.delete_records(
                            topic, partition, before, timeout_ms=DELETE_TIMEOUT_MS
                        )
                    )
                )
            except MilenaError:
                continue
