"""The target topic of a replay: whether it accepts the records, and how far they are written.

For a replay's name, the cluster stores offsets of groups, each committed in a transaction:

    spark-NAME-all        the request to which the name is bound, as a number (``replaying.plan.agreed_number``)
    spark-NAME-PARTITION  the offset of the source up to which a partition is written, committed with the records

All groups exist, at 0, before the first record is written. The cluster forgets a group without commits after some time.
So a group that is missing later was forgotten; writing its partition again would duplicate records, and is refused.
Transactional ids are never forgotten. They distinguish a new name from a name whose groups were all forgotten.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from milena.client import Client
from milena.cluster.transport import MemberOffsets
from milena.cluster.view import TopicView
from milena.records import ProducerIdentity, TopicPartition
from spark_ext.cluster.patience import patiently
from spark_ext.cluster.questions import QUESTIONS_AT_ONCE
from spark_ext.jobs.archiving.log_source import TopicChoice, log_state, topic_facts
from spark_ext.jobs.archiving.run import ClusterPartitions
from spark_ext.jobs.running.cluster import JobCluster
from spark_ext.jobs.running.errors import JobInputError
from spark_ext.writing.transaction import (
    GROUP_PREFIX,
    explained,
    offsets_of,
)

HOLD_MS = 30_000
"""The timeout of a transaction that commits only offsets, in ms."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTarget:
    """A target topic, and the name of the replay."""

    cluster: JobCluster
    topic: str
    name: str

    def id_of(self, partition: int) -> str:
        """Return the transactional id of a source partition."""
        return f"{self.name}-{partition}"

    def state(self) -> ClusterPartitions:
        """Return the topic's partitions, its id, and the cluster's id.

        Raises:
            JobInputError: there is no such topic.
        """
        return log_state(self.cluster, TopicChoice(names=(self.topic,)))

    def view(self) -> TopicView:
        """Return the topic with its configs."""
        _, (found,) = asyncio.run(topic_facts(self.cluster, TopicChoice(names=(self.topic,))))
        return found

    def agree(self, number: int, partitions: Sequence[int]) -> dict[int, int]:
        """Bind the name to ``number``, if it is not bound yet; return where each partition continues.

        Other runs under the name start no further writes.

        Raises:
            JobInputError: the name stands for another replay, or its positions were forgotten.
            BatchAbortedError: another run has started meanwhile.
        """
        return asyncio.run(self._agree(number, partitions))

    async def _agree(self, number: int, partitions: Sequence[int]) -> dict[int, int]:
        async with self.cluster.client() as client:
            calls = _NameCalls(client, self)
            agreement = await calls.begin("all")
            known = await calls.offset("all")
            if known is None:
                await calls.require_unused(agreement, partitions)
                await calls.commit(
                    "all", agreement, {"all": number, **{str(p): 0 for p in partitions}}
                )
                return dict.fromkeys(partitions, 0)
            if known != number:
                raise JobInputError(
                    f"under the name {self.name} another replay has started: of another archive or topic of it, or "
                    "with another --from, --until, --partitions or --by-key. Repeat those, or give another --name"
                )
            # Commit again, so that the group is not forgotten while replays continue.
            await calls.commit("all", agreement, {"all": number})
            found = await calls.all_of(calls.held, partitions)
        return dict(zip(partitions, found, strict=True))


class _NameCalls:
    """Makes the requests about the groups and transactional ids of a name.

    ``part`` is the last part of their names: a partition's number, or ``all``.
    """

    def __init__(self, client: Client, target: ReplayTarget) -> None:
        self._client = client
        self._target = target
        self._where = TopicPartition(target.topic, 0)
        self._room = asyncio.Semaphore(QUESTIONS_AT_ONCE)

    async def all_of(
        self, ask: Callable[[int], Awaitable[T]], partitions: Sequence[int]
    ) -> list[T]:
        """Return the results, in the order of the partitions."""

        async def one(partition: int) -> T:
            async with self._room:
                return await ask(partition)

        return await asyncio.gather(*map(one, partitions))

    async def begin(self, part: str) -> ProducerIdentity:
        """Begin a transaction; it fences the transaction of another run."""
        name = f"{self._target.name}-{part}"
        return await patiently(
            lambda: self._client.transport.begin_transaction(name, timeout_ms=HOLD_MS)
        )

    async def offset(self, part: str) -> int | None:
        """Return the committed offset; None if there is none.

        Raises:
            JobInputError: the offset belongs to another topic.
        """
        found = await offsets_of(self._client, self._group(part))
        others = {where.topic for where in found} - {self._target.topic}
        if others:
            raise JobInputError(
                f"under the name {self._target.name} topic {min(others)} is written to: give another --name for topic "
                f"{self._target.topic}"
            )
        return found.get(self._where)

    async def commit(self, part: str, identity: ProducerIdentity, offsets: dict[str, int]) -> None:
        """Commit offsets of these parts, all or none, unless another run has started under ``part``."""
        rows = [
            MemberOffsets(
                group=self._group(each),
                member_id=None,
                member_epoch=None,
                offsets={self._where: offset},
            )
            for each, offset in offsets.items()
        ]
        with explained(f"{self._target.name}-{part}"):
            await patiently(lambda: self._client.transport.commit_transaction(identity, {}, rows))

    async def held(self, partition: int) -> int:
        """Fence other runs from a partition; return the offset at which the partition continues."""
        part = str(partition)
        identity = await self.begin(part)
        found = await self.offset(part)
        if found is None and identity.producer_epoch > 0:
            raise self._forgotten([partition])
        # A partition that was not in the archive when the name was bound starts at 0, like the others.
        await self.commit(part, identity, {part: found or 0})
        return found or 0

    async def require_unused(self, agreement: ProducerIdentity, partitions: Sequence[int]) -> None:
        """Check that nothing was ever written under the name.

        Raises:
            JobInputError: records may have been written.
        """
        offsets = await self.all_of(lambda p: self.offset(str(p)), partitions)
        used = [p for p, offset in zip(partitions, offsets, strict=True) if offset is not None]
        if not used and agreement.producer_epoch > 0:
            # An earlier run started the transaction "all". If that run ended before it bound the name, it started no
            # partition's transaction, and this run may use the name.
            begun = await self.all_of(lambda p: self.begin(str(p)), partitions)
            used = [p for p, i in zip(partitions, begun, strict=True) if i.producer_epoch > 0]
        if used:
            raise self._forgotten(used)

    def _forgotten(self, partitions: Iterable[int]) -> JobInputError:
        names = ", ".join(map(str, partitions))
        return JobInputError(
            f"the name {self._target.name} was used before, and how much of partition {names} was written under it is "
            f"not known any more: groups are forgotten offsets_retention_minutes after the last run, and with the "
            f"topic. See what topic {self._target.topic} holds, and give another --name"
        )

    def _group(self, part: str) -> str:
        return f"{GROUP_PREFIX}{self._target.name}-{part}"
