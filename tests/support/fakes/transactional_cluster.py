"""A scripted cluster with transactions: it notes its requests, and begins and ends transactions as planned."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

from milena.cluster.transport import AppendAnswer, MemberOffsets, WrittenPart
from milena.errors import TargetNotFoundError
from milena.model.types import PRODUCER_EPOCH_MAX
from milena.records import ProducerIdentity, TopicPartition
from tests.support.fakes.scripted_cluster import ScriptedCluster

EPOCHS_A_LIFE = 10
"""The most transactions of one holder of an id in a test: the next holder's epoch starts above them."""


class TransactionalCluster(ScriptedCluster):
    """Notes its requests. ``beginnings`` and ``ends`` have the errors of the next calls; None means success.

    ``groups`` has the offsets committed with transactions. ``first_epoch`` is the epoch of the next holder of an id.
    """

    def __init__(self, partitions: int = 1) -> None:
        super().__init__(partitions)
        self.begun: list[tuple[str, int]] = []
        self.named: list[str | None] = []
        self.committed: list[
            tuple[ProducerIdentity, Mapping[TopicPartition, WrittenPart], list[MemberOffsets]]
        ] = []
        self.waits: list[bool] = []
        self.aborted: list[ProducerIdentity] = []
        self.ends: list[Exception | None] = []
        self.beginnings: list[Exception | None] = []
        self.groups: dict[str, dict[TopicPartition, int]] = {}
        self.producer_id = 7
        self.first_epoch = 4

    async def append(
        self,
        topic: str,
        partition: int,
        batch: bytes,
        *,
        acks: int,
        timeout_ms: int,
        if_match: int | None,
        transaction: str | None = None,
    ) -> AppendAnswer:
        self.named.append(transaction)
        return await super().append(
            topic, partition, batch, acks=acks, timeout_ms=timeout_ms, if_match=if_match
        )

    async def begin_transaction(
        self, transactional_id: str, *, timeout_ms: int
    ) -> ProducerIdentity:
        self.begun.append((transactional_id, timeout_ms))
        error = self.beginnings.pop(0) if self.beginnings else None
        if error is not None:
            raise error
        if self.first_epoch >= PRODUCER_EPOCH_MAX:
            self.producer_id, self.first_epoch = self.producer_id + 1, 0
        epoch = self.first_epoch
        self.first_epoch += EPOCHS_A_LIFE
        return ProducerIdentity(self.producer_id, epoch)

    def end(self) -> None:
        error = self.ends.pop(0) if self.ends else None
        if error is not None:
            raise error

    async def commit_transaction(
        self,
        identity: ProducerIdentity,
        parts: Mapping[TopicPartition, WrittenPart],
        offsets: Sequence[MemberOffsets],
        *,
        until_visible: bool,
    ) -> int:
        self.end()
        self.waits.append(until_visible)
        self.committed.append((identity, parts, list(offsets)))
        for found in offsets:
            self.groups.setdefault(found.group, {}).update(found.offsets)
        return identity.producer_epoch + 1

    async def abort_transaction(self, identity: ProducerIdentity) -> int:
        self.end()
        self.aborted.append(identity)
        return identity.producer_epoch + 1

    def make_again(self) -> None:
        """Delete the topic with the groups' offsets in it, and create another one with the same name."""
        self.groups.clear()

    async def group(self, group_id: str) -> SimpleNamespace:
        if group_id not in self.groups:
            raise TargetNotFoundError(f"no group {group_id}", status=404, error_code=40410)
        offsets = self.groups[group_id].items()
        return SimpleNamespace(
            offsets={where: SimpleNamespace(offset=offset) for where, offset in offsets}
        )
