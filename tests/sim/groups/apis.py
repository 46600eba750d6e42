"""Access of members to the simulated cluster: through the ports from which the HTTP server is built, on any node."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from http_api.ports.groups import (
    Heartbeat,
    HeartbeatAnswer,
    KafkaHeartbeat,
    NewConsumer,
    OffsetToCommit,
    PartitionsByTopic,
    Seek,
    each_partition,
)
from http_api.ports.node import Ports
from milena.model.batch.decode import decode_columns, iterate_batches
from milena.model.errors import (
    ConsumerExistsError,
    ConsumerNotFoundError,
    CorruptBatchError,
    FateUnknownError,
    GroupNotFoundError,
    MemberNotFoundError,
    MilenaError,
    StaleMemberEpochError,
)
from milena.model.requests import FetchRequest
from node.groups import heartbeat_rules
from raft_meta.machine.groups.coordinators import coordinator_of
from tests.sim.cluster.world import TOPIC
from tests.support.groups.members import Assigned, Beat, FencedError, RefusedError, UnknownError
from tests.support.groups.rest_members import GoneError

if TYPE_CHECKING:
    from tests.sim.cluster.machine import NodeProcess
    from tests.sim.cluster.world import World

T = TypeVar("T")

PATIENCE_S = 8.0
"""The timeout of a member's call, longer than any wait at a node."""
FETCH_BYTES = 1 << 14
REST_WAIT_MS = 200


class SimCalls:
    """Calls to any running node."""

    def __init__(self, world: "World", group: str) -> None:
        self._world = world
        self.group = group

    def _some_node(self) -> "NodeProcess":
        running = [
            m.process
            for m in self._world.machines.values()
            if m.process is not None and m.process.ports is not None
        ]
        if not running:
            raise RefusedError("no node runs")
        return self._world.rng.choice(running)

    async def _ask(
        self,
        make: Callable[[Ports], Coroutine[Any, Any, T]],
        process: "NodeProcess | None" = None,
    ) -> T:
        """Ask a node; ``process`` None: any one."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await (process or self._some_node()).ask(make)
        except TimeoutError as error:
            raise UnknownError("no answer") from error
        except FateUnknownError as error:
            raise UnknownError(str(error)) from error
        except CorruptBatchError as error:
            # A fault may have damaged the bytes: bits flipped on a disk, or in the network. Only the client notices
            # that.
            if not self._world.faults.has_lost_any and not self._world.wires.tampered:
                raise
            raise UnknownError(str(error)) from error
        except ConsumerNotFoundError as error:
            raise GoneError(str(error)) from error
        except (MemberNotFoundError, StaleMemberEpochError) as error:
            raise FencedError(str(error)) from error
        except MilenaError as error:
            self._world.note(f"    {type(error).__name__}: {error}")
            raise RefusedError(str(error)) from error

    async def committed(self) -> dict[int, int]:
        """Return the committed offset of each partition."""

        async def ask(ports: Ports) -> dict[int, int]:
            try:
                found = await ports.groups.committed(self.group)
            except GroupNotFoundError:
                return {}
            return {offset.partition: offset.offset for offset in found}

        return await self._ask(ask)


class SimGroupApi(SimCalls):
    """An implementation of ``GroupApi``."""

    def __init__(self, world: "World", group: str, *, assignor: str, session_s: float) -> None:
        super().__init__(world, group)
        self._assignor = assignor
        self._session_ms = int(session_s * 1000)

    async def heartbeat(self, beat: Beat) -> Assigned:
        """Join, stay or leave."""
        is_new = beat.epoch == 0
        sent = Heartbeat(
            group_id=self.group,
            member_id=beat.member,
            member_epoch=beat.epoch,
            topics=(TOPIC,) if is_new else None,
            assignor=self._assignor if is_new else None,
            session_timeout_ms=self._session_ms if is_new else None,
            rebalance_timeout_ms=2 * self._session_ms if is_new else None,
            owned=((TOPIC, tuple(sorted(beat.owned))),) if beat.owned else (),
            wait_ms=beat.wait_ms,
        )
        answer: HeartbeatAnswer = await self._ask(lambda ports: ports.groups.heartbeat(sent))
        return Assigned(
            epoch=answer.member_epoch,
            generation=answer.generation,
            interval_ms=answer.heartbeat_interval_ms,
            assignment=frozenset(partition for _, partition in each_partition(answer.assignment)),
            pending=frozenset(partition for _, partition in each_partition(answer.pending)),
        )

    async def commit(self, member: str, epoch: int, offsets: dict[int, int]) -> None:
        """Commit offsets as a member."""
        sent = to_commit(offsets)
        await self._ask(
            lambda ports: ports.groups.commit(
                self.group, sent, member_id=member, member_epoch=epoch
            )
        )

    async def fetch(self, partition: int, offset: int) -> list[str]:
        """Return records from any replica."""
        request = FetchRequest(
            topic=TOPIC,
            partition=partition,
            offset=offset,
            timestamp_ms=None,
            max_bytes=FETCH_BYTES,
            timeout_ms=0,
            is_local=False,
        )

        async def ask(ports: Ports) -> list[tuple[int, str]]:
            result = await ports.reads.fetch(request)
            return records_of(result.batches, result.start_offset, result.high_watermark)

        return [value for _, value in await self._ask(ask)]


class SimKafkaGroupApi(SimGroupApi):
    """An implementation of ``GroupApi`` by Kafka's consumer protocol (KIP-848), at the group's coordinator alone.

    A static member has its place as instance id. It leaves for good, or says that it is away.
    """

    def __init__(
        self, world: "World", group: str, *, assignor: str, session_s: float, is_static: bool
    ) -> None:
        super().__init__(world, group, assignor=assignor, session_s=session_s)
        self._is_static = is_static
        self._said: dict[str, frozenset[int]] = {}
        """The partitions that each member has named last. It names them again if they change, and after an error."""

    async def heartbeat(self, beat: Beat) -> Assigned:
        """Join, stay, leave, or be away."""
        is_new = beat.epoch == heartbeat_rules.JOIN
        epoch = beat.epoch
        if epoch == heartbeat_rules.LEAVE and self._is_static and self._world.rng.random() < 0.7:
            epoch = heartbeat_rules.AWAY
        sent = KafkaHeartbeat(
            group_id=self.group,
            member_id=beat.member,
            member_epoch=epoch,
            instance_id=beat.member.rpartition("-")[0] if self._is_static else None,
            topics=(TOPIC,) if is_new else None,
            assignor=self._assignor if is_new else None,
            session_timeout_ms=self._session_ms if is_new else None,
            rebalance_timeout_ms=2 * self._session_ms if is_new else None,
            owned=self._changed(beat, is_new=is_new),
        )
        try:
            answer = await self._ask_coordinator(sent)
        except Exception:
            self._said.pop(beat.member, None)
            raise
        return Assigned(
            epoch=answer.member_epoch,
            generation=answer.generation,
            interval_ms=answer.heartbeat_interval_ms,
            assignment=frozenset(partition for _, partition in each_partition(answer.assignment)),
            pending=frozenset(partition for _, partition in each_partition(answer.pending)),
        )

    def _changed(self, beat: Beat, *, is_new: bool) -> PartitionsByTopic | None:
        if not is_new and self._said.get(beat.member) == beat.owned:
            return None
        self._said[beat.member] = beat.owned
        return ((TOPIC, tuple(sorted(beat.owned))),) if beat.owned else ()

    async def _ask_coordinator(self, sent: KafkaHeartbeat) -> HeartbeatAnswer:
        found = coordinator_of(self._world.checker.newest_image(), self.group)
        machine = None if found is None else self._world.machines.get(found)
        process = None if machine is None else machine.process
        if process is None or process.node is None or process.ports is None:
            raise RefusedError("no coordinator runs")
        members = process.node.groups.server_members
        return await self._ask(lambda _: members.heartbeat(sent), process)


class SimRestApi(SimCalls):
    """An implementation of ``RestApi``."""

    async def create(self, name: str) -> None:
        """Create the consumer, or accept an existing one."""
        new = NewConsumer(
            instance=name,
            format="json",
            auto_offset_reset="earliest",
            is_auto_commit=False,
            fetch_min_bytes=1,
            request_timeout_ms=1_000,
        )

        async def ask(ports: Ports) -> None:
            try:
                await ports.consumers.create(self.group, new)
            except ConsumerExistsError:
                return

        await self._ask(ask)

    async def subscribe(self, name: str) -> None:
        """Subscribe to the topic."""
        await self._ask(lambda ports: ports.consumers.subscribe(self.group, name, (TOPIC,), None))

    async def delete(self, name: str) -> None:
        """Delete the consumer."""
        await self._ask(lambda ports: ports.consumers.delete(self.group, name))

    async def records(self, name: str) -> list[tuple[int, int, str]]:
        """Return the next records."""

        async def ask(ports: Ports) -> list[tuple[int, int, str]]:
            delivered = await ports.consumers.records(
                self.group, name, timeout_ms=REST_WAIT_MS, max_bytes=FETCH_BYTES
            )
            return [
                (part.partition, offset, value)
                for part in delivered.deliveries
                for offset, value in records_of(part.batches, part.start_offset, part.end_offset)
            ]

        return await self._ask(ask)

    async def assignments(self, name: str) -> frozenset[int]:
        """Return the partitions that it reads."""
        found = await self._ask(lambda ports: ports.consumers.assignments(self.group, name))
        return frozenset(partition for _, partition in found)

    async def seek(self, name: str, offsets: dict[int, int]) -> None:
        """Set the positions."""
        seeks = [
            Seek(topic=TOPIC, partition=partition, offset=offset)
            for partition, offset in sorted(offsets.items())
        ]
        await self._ask(lambda ports: ports.consumers.seek(self.group, name, seeks))

    async def commit(self, name: str) -> None:
        """Commit the delivered records."""
        await self._ask(lambda ports: ports.consumers.commit(self.group, name, None))


def to_commit(offsets: dict[int, int]) -> list[OffsetToCommit]:
    """Return offsets in the form that ports take."""
    return [
        OffsetToCommit(topic=TOPIC, partition=partition, offset=offset)
        for partition, offset in sorted(offsets.items())
    ]


def records_of(batches: bytes, start: int, end: int) -> list[tuple[int, str]]:
    """Return (offset, value) of the records in [start, end)."""
    found = []
    for position, header in iterate_batches(batches):
        columns = decode_columns(batches, header, position, bytes_max=1 << 20)
        for number, value in enumerate(columns.values):
            offset = header.base_offset + number
            if start <= offset < end:
                found.append((offset, (value or b"").decode()))
    return found
