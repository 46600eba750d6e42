"""Gathers small requests that each want a transaction into one shared transaction.

A transaction costs the same for one request as for a hundred: batches and markers in each partition, two commands of
the quorum, calls to leaders. If all of several requests take effect, or none does, each request gets what it was
promised. So requests that arrive in one turn of the loop share a transaction. While a transaction is in flight, new
requests wait for it, for some milliseconds at most, and then share the next one. If a shared transaction is certainly
not committed, each request tries again alone. So no request is refused because of another one.

Requests with idempotency keys share only with each other. If a leader knows one of the keys already, it refuses the
whole batch, and each request tries again alone. So each key is accepted only once. While a key is in flight, repeated
requests with it wait for the outcome. Then they run alone and get the first response, like later repeats. If a client
sends one key to two nodes at the same time, the requests that share a transaction with it have to try again alone.

If a node becomes silent, requests for the partitions that it leads or follows must wait. Other requests should not. So
requests share a transaction only if their partitions are in sync on the same nodes.
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
"""Largest number of partitions of a shared transaction. A transaction may have a thousand."""
KEY_BYTES_MAX = 32 << 10
"""Largest number of bytes of keys in a batch's header, which has room for 64 KiB. It is enough for about 600 keys of
requests for two partitions."""
KEYS_SEEN_MAX = 10_000
"""Number of keys that this node remembers as seen: as many as it takes in some seconds. The logs know older keys."""
UNDER_WAY_MAX = 1
"""Transactions of one place in flight. If there are this many, new requests wait until one of them has ended."""
HOLD_MS = 20
"""How long requests wait for a transaction in flight, in ms. A transaction takes about as long. If one hangs, later
requests must not hang with it."""


class Committed(NamedTuple):
    """The first offset of each part of a committed transaction, and whether readers see it."""

    base_offsets: Sequence[int]
    is_visible: bool


class Place(NamedTuple):
    """The properties that the requests of a shared transaction have in common.

    ``in_sync``: the brokers with in-sync replicas of their partitions. ``is_keyed``: whether they have keys.
    """

    in_sync: frozenset[int]
    timeout_ms: int
    is_keyed: bool


class _Sharers:
    """The requests of one future transaction, and the futures on which they wait."""

    __slots__ = ("ended", "key_bytes", "plans", "sizes", "timer", "waiting")

    def __init__(self, timer: asyncio.Handle) -> None:
        self.timer = timer
        self.plans: list[Plan] = []
        self.waiting: list[asyncio.Future[Committed | None]] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once each request has its response, or will not get one from this transaction."""
        self.sizes: dict[PartitionKey, int] = {}
        self.key_bytes: dict[PartitionKey, int] = {}
        """Partition → bytes of the keys whose home it is."""

    def has_room(self, plan: Plan) -> bool:
        """Return whether a plan fits in: each part stays one batch, and each home of a key can list all parts."""
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
    """Gathers the records of requests, and commits each group of requests. Owned by the data loop."""

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
        """Hash of a recent key → the end of the transaction in which it arrived."""
        self._tasks: set[asyncio.Task[None]] = set()

    def place_of(self, plan: Plan, timeout_ms: int) -> Place | None:
        """Return the place of requests with which this plan may share a transaction; None if it may not share."""
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
        """Commit one request together with others. None: nothing of it counts, now or later.

        Raises:
            FateUnknownError: the transaction may be committed.
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
            raise error  # a broken invariant must reach the loop

    async def close(self) -> None:
        """Stop what waits and what is in flight. The requests have ended already."""
        for group in self._groups.values():
            group.timer.cancel()
            group.ended.cancel()
            for waiter in group.waiting:
                waiter.cancel()
        self._groups.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
