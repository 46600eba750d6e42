"""Small writes of many requests to one partition, put together into one batch.

A batch costs as much whether it holds one record or hundreds: encoding, a call to the leader, a write, a checksum on
every replica, a header in every reader's way. So records that arrive in one turn of the loop go out together, and so do
those that arrive while the batch before them is under way, for a few milliseconds at most. What is large enough to pay
for itself, has a key for idempotency, or could be refused for its content goes its own way: nobody's record is refused
for a neighbour's. So does what nobody waits for (acks=0): its client's next write may be here before this one left, and
must not overtake it.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from milena.model.errors import MilenaError
from milena.model.pending import Pending
from milena.model.requests import Acks, ProduceReceipt
from milena.model.turns import at_once
from node.services.encoding import encode
from node.services.record_batches import Appended, PartitionBatch, merge, receipts_of_one
from node.services.to_leader import ToLeader
from raft_meta.machine.image import Topic
from raft_meta.machine.topics.configs import TopicSettings

MEMBER_BYTES_MAX = 32 << 10
"""A request's records for one partition; above it the fixed costs are paid."""
GROUP_BYTES_MAX = 512 << 10
UNDER_WAY_MAX = 1
"""Batches of one partition on their way, before what arrives waits for one of them."""
HOLD_MS = 5
"""How long it may wait: a batch that is stuck must not hold up what comes after it."""


class _Where(NamedTuple):
    """Place and conditions that all members of a batch share."""

    topic: Topic
    settings: TopicSettings
    partition: int
    acks: Acks
    timeout_ms: int


_Key = tuple[str, int, int, int]


class _Group:
    """Parts that will be one batch, and who waits for them."""

    __slots__ = ("parts", "size", "timer", "waiting", "where")

    def __init__(self, where: _Where) -> None:
        self.where = where
        self.parts: list[PartitionBatch] = []
        self.waiting: list[Pending[Sequence[ProduceReceipt]]] = []
        self.size = 0
        self.timer: asyncio.Handle | None = None


class WriteGatherer:
    """Gathers writes, and hands each batch to ``to_leader``. Belongs to the data loop."""

    def __init__(self, to_leader: ToLeader) -> None:
        self._to_leader = to_leader
        self._groups: dict[_Key, _Group] = {}
        self._under_way: dict[_Key, int] = {}

    @staticmethod
    def takes(part: PartitionBatch, size: int, settings: TopicSettings, acks: Acks) -> bool:
        """Whether these records may share a batch: small, waited for, and nothing in them that can be refused."""
        columns = part.columns
        return (
            acks is not Acks.NONE
            and size <= MEMBER_BYTES_MAX
            and size * 4 <= settings.max_message_bytes
            and columns.headers is None
            and columns.timestamp_deltas is None
        )

    def submit(
        self,
        topic: Topic,
        settings: TopicSettings,
        part: PartitionBatch,
        *,
        size: int,
        acks: Acks,
        timeout_ms: int,
    ) -> Pending[Sequence[ProduceReceipt]]:
        """Queue records; their receipts (``Receipts``) tell their offsets, or the error of the batch that they went in.

        They come in a later turn.
        """
        key = (topic.topic_id, part.partition, acks.value, timeout_ms)
        group = self._groups.get(key)
        if group is not None and group.size + size > min(
            GROUP_BYTES_MAX, settings.max_message_bytes // 2
        ):
            self._send(key)
            group = None
        if group is None:
            loop = asyncio.get_running_loop()
            group = _Group(_Where(topic, settings, part.partition, acks, timeout_ms))
            self._groups[key] = group
            if self._under_way.get(key, 0) < UNDER_WAY_MAX:
                group.timer = loop.call_soon(self._send, key)
            else:
                group.timer = loop.call_later(HOLD_MS / 1000, self._send, key)
        pending: Pending[Sequence[ProduceReceipt]] = Pending()
        group.parts.append(part)
        group.waiting.append(pending)
        group.size += size
        return pending

    def _send(self, key: _Key) -> None:
        group = self._groups.pop(key, None)
        if group is None:
            return
        if group.timer is not None:
            group.timer.cancel()
        self._under_way[key] = self._under_way.get(key, 0) + 1
        where, part = group.where, merge(group.parts)
        try:
            pieces = at_once(encode(where.topic, where.settings, part, group.size))
            appended = self._to_leader.append(
                where.topic, where.partition, pieces, acks=where.acks, timeout_ms=where.timeout_ms
            )
        except Exception as error:  # noqa: BLE001 - goes on through the requests that wait for it
            appended = Pending()
            appended.set_exception(error)
        appended.add_done_callback(partial(self._on_done, key, group))

    def _on_done(self, key: _Key, group: _Group, done: Pending[Appended]) -> None:
        """Answer everybody, and let those go who arrived meanwhile.

        In the next turn: this may be called from deep within what the next batch would change.
        """
        self._under_way[key] -= 1
        if not self._under_way[key]:
            del self._under_way[key]
        later = self._groups.get(key)
        if later is not None:
            if later.timer is not None:
                later.timer.cancel()
            later.timer = asyncio.get_running_loop().call_soon(self._send, key)
        error = None if done.cancelled() else done.exception()
        is_awaited = not all(pending.done() for pending in group.waiting)
        place = 0
        for part, pending in zip(group.parts, group.waiting, strict=True):
            count = len(part.columns.values)
            if pending.done():
                pass  # nobody waits for it any more
            elif done.cancelled():
                pending.cancel()
            elif error is None:
                pending.set_result(
                    receipts_of_one(part, done.result().between(place, place + count))
                )
            elif isinstance(error, MilenaError):
                pending.set_result(receipts_of_one(part, error))
            else:
                pending.set_exception(error)
            place += count
        if error is not None and not is_awaited and not isinstance(error, MilenaError):
            raise error  # a broken invariant goes on through the loop
