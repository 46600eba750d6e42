"""The topic that is replayed to: whether it takes the records, and how far it has them, as its cluster remembers.

Under a name the cluster keeps offsets of groups, each committed in a transaction:

    spark-NAME-all        what the name stands for, as a number (``replaying.plan.agreed_number``)
    spark-NAME-PARTITION  the offset of the source up to which a partition is written, committed with the records

All are there, at 0, before the first record is written. So a group that is missing later was forgotten, as groups are
when nobody commits for long, and to write its partition again would double it: that is refused. The transactional ids
are never forgotten, and tell a new name from one of which all groups are gone.
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
"""How long a transaction may take that commits offsets alone."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTarget:
    """A topic, and the name under which it is replayed to."""

    cluster: JobCluster
    topic: str
    name: str

    def id_of(self, partition: int) -> str:
        """The transactional id of a partition of the source."""
        return f"{self.name}-{partition}"

    def state(self) -> ClusterPartitions:
        """The topic's partitions, and the ids of it and its cluster.

        Raises:
            JobInputError: there is no such topic.
        """
        return log_state(self.cluster, TopicChoice(names=(self.topic,)))

    def view(self) -> TopicView:
        """The topic with its configs."""
        _, (found,) = asyncio.run(topic_facts(self.cluster, TopicChoice(names=(self.topic,))))
        return found

    def agree(self, number: int, partitions: Sequence[int]) -> dict[int, int]:
        """Where each partition goes on, once the name stands for this ``number`` or did so before.

        Other runs under the name write nothing any more that they have not begun.

        Raises:
            JobInputError: it stands for something else, or what was written under it is not known any more.
            BatchAbortedError: another run has begun meanwhile.
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
            # Again, so that it is not forgotten while replays go on.
            await calls.commit("all", agreement, {"all": number})
            found = await calls.all_of(calls.held, partitions)
        return dict(zip(partitions, found, strict=True))


class _NameCalls:
    """Calls about the groups and transactional ids of a name; ``part`` is a partition's number, or ``all``."""

    def __init__(self, client: Client, target: ReplayTarget) -> None:
        self._client = client
        self._target = target
        self._where = TopicPartition(target.topic, 0)
        self._room = asyncio.Semaphore(QUESTIONS_AT_ONCE)

    async def all_of(
        self, ask: Callable[[int], Awaitable[T]], partitions: Sequence[int]
    ) -> list[T]:
        """The answers, in the order of the partitions."""

        async def one(partition: int) -> T:
            async with self._room:
                return await ask(partition)

        return await asyncio.gather(*map(one, partitions))

    async def begin(self, part: str) -> ProducerIdentity:
        """A transaction, which ends that of another run."""
        name = f"{self._target.name}-{part}"
        return await patiently(
            lambda: self._client.transport.begin_transaction(name, timeout_ms=HOLD_MS)
        )

    async def offset(self, part: str) -> int | None:
        """What is committed.

        Raises:
            JobInputError: it is of another topic.
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
        """Commit offsets of these parts, all or none, unless another run has begun under ``part``."""
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
        """Where it goes on, for nobody but this run."""
        part = str(partition)
        identity = await self.begin(part)
        found = await self.offset(part)
        if found is None and identity.producer_epoch > 0:
            raise self._forgotten([partition])
        # A partition that the archive did not have when the name was agreed on begins at 0, as the others did.
        await self.commit(part, identity, {part: found or 0})
        return found or 0

    async def require_unused(self, agreement: ProducerIdentity, partitions: Sequence[int]) -> None:
        """Check that nothing was ever written under the name.

        Raises:
            JobInputError: something may have been.
        """
        offsets = await self.all_of(lambda p: self.offset(str(p)), partitions)
        used = [p for p, offset in zip(partitions, offsets, strict=True) if offset is not None]
        if not used and agreement.producer_epoch > 0:
            # A run that ended before it had agreed comes here again: it had begun no partition.
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
