"""Small requests that want a transaction each, put together into one.

A transaction costs as much whether it is one request's or a hundred's: batches and markers in each partition, two
commands of the quorum, calls to leaders. That all of several requests takes effect or none keeps what each of them was
promised; so those that arrive in one turn of the loop share a transaction, and so do those that arrive while the one
before it is under way, for some milliseconds at most. One that certainly is not committed is tried again by each of
them for itself: nobody is refused for a neighbour.

Requests under idempotency keys share with their like alone: one key that is known makes a leader refuse all that came
with it, which is then tried one by one. So a key is let in once. While it is under way its repeats wait for what
becomes of it, and then, as for long after, go alone, to be told the first answer. Who sends one key to two nodes at
once makes the others of one transaction go alone, which costs them what it would if nobody shared, and one try more.

Nor does anybody wait for a node that is none of his: only requests whose partitions are kept in sync on the same nodes
share one. A node that falls silent holds up what it leads and what it follows alike.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from milena.model.batch.header import shared_key_bytes
from milena.model.errors import FateUnknownError, MilenaError
from milena.model.requests import Acks
from node.metadata.store import MetadataStore
from node.services.gather import GROUP_BYTES_MAX, WriteGatherer
from node.services.record_batches import size_of_columns
from node.services.transactions.plans import Part, Plan, join
from raft_meta.machine.transactions import ITEMS_PER_TRANSACTION_MAX

if TYPE_CHECKING:
    from raft_meta.machine.image import PartitionKey

PARTS_MAX = 256
"""Partitions of one that is shared; a transaction may have a thousand."""
KEY_BYTES_MAX = 32 << 10
"""Of a batch's header, which has room for 64 KiB: some 600 keys of requests that write in two partitions."""
KEYS_SEEN_MAX = 10_000
"""Keys that are known to have come: what a node takes in seconds. Those that are forgotten are known to the logs."""
UNDER_WAY_MAX = 1
"""Transactions of one place on their way, before what arrives waits for one of them."""
HOLD_MS = 20
"""How long it may wait: a transaction takes about as long, and one that is stuck must not hold up what comes after."""


class Committed(NamedTuple):
    """Where each part of a committed transaction begins, and whether readers see it."""

    base_offsets: Sequence[int]
    is_visible: bool


class Place(NamedTuple):
    """What those who share a transaction have in common: which nodes it takes, leaders and replicas, and how long."""

    in_sync: frozenset[int]
    timeout_ms: int
    is_keyed: bool


class _Sharers:
    """Requests that will be one transaction, and who waits for them."""

    __slots__ = ("ended", "key_bytes", "plans", "sizes", "timer", "waiting")

    def __init__(self, timer: asyncio.Handle) -> None:
        self.timer = timer
        self.plans: list[Plan] = []
        self.waiting: list[asyncio.Future[Committed | None]] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once each has its answer, or will have none of this transaction."""
        self.sizes: dict[PartitionKey, int] = {}
        self.key_bytes: dict[PartitionKey, int] = {}
        """Of the keys that are at home in a partition."""

    def has_room(self, plan: Plan) -> bool:
        """Whether each part can still be one batch, and each home of a key be told of all parts."""
        part_count = len(self.sizes) + len(plan.parts)
        if part_count > PARTS_MAX or not self._has_room_for_key(plan, part_count):
            return False
        return all(
            self.sizes.get(part.key, 0) + size_of_columns(part.batch.columns)
            <= min(GROUP_BYTES_MAX, part.settings.max_message_bytes // 2)
            for part in plan.parts
        )

    def _has_room_for_key(self, plan: Plan, part_count: int) -> bool:
        if plan.key is None:
            return True
        home = plan.parts[0].key
        home_count = len(self.key_bytes.keys() | {home})
        key_bytes = self.key_bytes.get(home, 0) + shared_key_bytes(len(plan.parts))
        return home_count * part_count <= ITEMS_PER_TRANSACTION_MAX and key_bytes <= KEY_BYTES_MAX

    def add(self, plan: Plan, waiter: "asyncio.Future[Committed | None]") -> None:
        self.plans.append(plan)
        self.waiting.append(waiter)
        for part in plan.parts:
            size = size_of_columns(part.batch.columns)
            self.sizes[part.key] = self.sizes.get(part.key, 0) + size
        if plan.key is not None:
            home, size = plan.parts[0].key, shared_key_bytes(len(plan.parts))
            self.key_bytes[home] = self.key_bytes.get(home, 0) + size
            self.sizes[home] += size


class TransactionGatherer:
    """Gathers what requests write, and has each group committed. Belongs to the data loop."""

    def __init__(
        self,
        metadata: MetadataStore,
        *,
        commit: Callable[[Sequence[Part], int], Awaitable[Committed]],
    ) -> None:
        self._metadata = metadata
        self._commit = commit
        self._groups: dict[Place, _Sharers] = {}
        self._under_way: dict[Place, int] = {}
        self._seen: dict[bytes, asyncio.Future[None]] = {}
        """Hash of a key that came lately → the end of the transaction in which it did."""
        self._tasks: set[asyncio.Task[None]] = set()

    def place_of(self, plan: Plan, timeout_ms: int) -> Place | None:
        """With whom these records may share a transaction; None: they go alone."""
        partitions = self._metadata.image.partitions
        in_sync: set[int] = set()
        for part in plan.parts:
            state = partitions.get(part.key)
            if state is None or state.leader is None:
                return None
            size = size_of_columns(part.batch.columns)
            if not WriteGatherer.takes(part.batch, size, part.settings, Acks.ALL):
                return None
            in_sync.update(state.isr)
        return Place(frozenset(in_sync), timeout_ms, plan.key is not None)

    async def submit(self, place: Place, plan: Plan) -> Committed | None:
        """Commit what one request writes, with others; None: nothing of it counts, nor ever will.

        Raises:
            FateUnknownError: it may be committed.
        """
        if plan.key is not None and (first := self._seen.get(plan.key.key_hash)) is not None:
            await asyncio.wait([first], timeout=place.timeout_ms / 1000)
            return None
        group = self._groups.get(place)
        if group is not None and not group.has_room(plan):
            self._send(place)
            group = None
        if group is None:
            group = self._groups[place] = _Sharers(self._timer(place))
        waiter: asyncio.Future[Committed | None] = asyncio.get_running_loop().create_future()
        group.add(plan, waiter)
        if plan.key is not None:
            self._note(plan.key.key_hash, group)
        return await waiter

    def _note(self, key_hash: bytes, group: _Sharers) -> None:
        self._seen[key_hash] = group.ended
        if len(self._seen) > KEYS_SEEN_MAX:
            del self._seen[next(iter(self._seen))]

    def _timer(self, place: Place) -> asyncio.Handle:
        loop = asyncio.get_running_loop()
        if self._under_way.get(place, 0) < UNDER_WAY_MAX:
            return loop.call_soon(self._send, place)
        return loop.call_later(HOLD_MS / 1000, self._send, place)

    def _send(self, place: Place) -> None:
        group = self._groups.pop(place)
        group.timer.cancel()
        self._under_way[place] = self._under_way.get(place, 0) + 1
        task = asyncio.get_running_loop().create_task(self._run(group, place.timeout_ms))
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_done, place, group))

    async def _run(self, group: _Sharers, timeout_ms: int) -> None:
        joined = join(group.plans)
        committed = await self._commit(joined.parts, timeout_ms)
        for places, waiter in zip(joined.places, group.waiting, strict=True):
            if not waiter.done():
                bases = [committed.base_offsets[number] + place for number, place in places]
                waiter.set_result(Committed(bases, committed.is_visible))

    def _on_done(self, place: Place, group: _Sharers, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        group.ended.set_result(None)
        self._under_way[place] -= 1
        if not self._under_way[place]:
            del self._under_way[place]
        if place in self._groups:
            self._send(place)
        waiting = [waiter for waiter in group.waiting if not waiter.done()]
        if task.cancelled():
            for waiter in waiting:
                waiter.cancel()
            return
        error = task.exception()
        if error is None:
            return
        for waiter in waiting:
            if isinstance(error, MilenaError) and not isinstance(error, FateUnknownError):
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
        if not isinstance(error, MilenaError) and not waiting:
            raise error  # a broken invariant goes on through the loop

    async def close(self) -> None:
        """Let go of what waits and of what is under way; its requests are gone by now."""
        for group in self._groups.values():
            group.timer.cancel()
            group.ended.cancel()
            for waiter in group.waiting:
                waiter.cancel()
        self._groups.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
