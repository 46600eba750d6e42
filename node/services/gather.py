"""Gathers small writes of many requests to one partition into one batch.

A batch costs the same for one record as for hundreds: encoding, a call to the leader, a write, a checksum on every
replica, a header for every reader. So records that arrive in one turn of the loop share a batch. While a batch is in
flight, new records wait for it, for a few milliseconds at most, and then share the next one.

These writes do not share:

- A large write. The fixed costs of a batch do not matter for it.
- A write with an idempotency key, or one that could be refused for its content. The writes that share with it would be
  refused, too.
- A write with acks=0. Its client does not wait, so the client's next write may arrive before this one is sent, and must
  not overtake it.
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
"""Largest size of the records that one request may add for one partition. For more, the fixed costs do not matter."""
GROUP_BYTES_MAX = 512 << 10
UNDER_WAY_MAX = 1
"""Batches of one partition in flight. If there are this many, new records wait until one of them is done."""
HOLD_MS = 5
"""How long records wait for a batch in flight, in ms. If a batch hangs, later records must not hang with it."""


class _Where(NamedTuple):
    """The partition, acks and timeout that all members of a batch have in common."""

    topic: Topic
    settings: TopicSettings
    partition: int
    acks: Acks
    timeout_ms: int


_Key = tuple[str, int, int, int]


class _Group:
    """Parts that will be one batch, and the results on which their requests wait."""

    __slots__ = ("parts", "size", "timer", "waiting", "where")

    def __init__(self, where: _Where) -> None:
        self.where = where
        self.parts: list[PartitionBatch] = []
        self.waiting: list[Pending[Sequence[ProduceReceipt]]] = []
        self.size = 0
        self.timer: asyncio.Handle | None = None


class WriteGatherer:
    """Gathers writes and passes each batch to ``to_leader``. Owned by the data loop."""

    def __init__(self, to_leader: ToLeader) -> None:
        self._to_leader = to_leader
        self._groups: dict[_Key, _Group] = {}
        self._under_way: dict[_Key, int] = {}

    @staticmethod
    def takes(part: PartitionBatch, size: int, settings: TopicSettings, acks: Acks) -> bool:
        """Return whether these records may share a batch: small, with acks, and with nothing that may be refused."""
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
        """Queue records. The receipts have their offsets, or the error of the whole batch.

        The receipts arrive in a later turn of the loop.
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
        """Complete all waiting requests, and send the records that arrived meanwhile in the next turn of the loop.

        They must not be sent in this turn: the caller may be in the middle of a change of the same log.
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
                pass  # its request is gone
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
            raise error  # a broken invariant must reach the loop
