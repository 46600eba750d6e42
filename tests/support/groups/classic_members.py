"""Members of classic groups of a simulated cluster, as Kafka's clients behave."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from http_api.ports.groups import OffsetToCommit
from milena.model.errors import MemberIdRequiredError, MilenaError
from node.groups.classic.calls import (
    JoinAnswer,
    JoinRequest,
    LeaveOutcome,
    LeavingMember,
    SyncRequest,
)
from node.groups.classic.service import ClassicGroups
from tests.support.clusters.nodes import Cluster
from tests.support.groups.sim_members import coordinator


class Notes:
    """The offsets that the audit log was told of."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, list[int]]] = []

    async def add(self, topic: str, partitions: Sequence[int]) -> None:
        self.rows.append((topic, list(partitions)))


@dataclass
class ClassicMember:
    """A client. As leader it gives every member its own id as assignment, with the generation."""

    cluster: Cluster
    name: str
    group: str = "g"
    instance_id: str | None = None
    session_ms: int = 10_000
    rebalance_ms: int = 20_000
    protocols: tuple[tuple[str, bytes], ...] = (("range", b"m"),)
    protocol_type: str = "consumer"
    needs_known_id: bool = True
    can_skip_assignment: bool = False
    member_id: str = ""
    generation: int = -1
    assignment: bytes | None = None
    joined: JoinAnswer | None = field(default=None, repr=False)

    @property
    def port(self) -> ClassicGroups:
        """The port of the node that coordinates the group."""
        return coordinator(self.cluster, self.group).groups.classic

    async def join_once(self) -> JoinAnswer:
        """One request."""
        request = JoinRequest(
            group_id=self.group,
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.name,
            host="10.0.0.7",
            session_ms=self.session_ms,
            rebalance_ms=self.rebalance_ms,
            protocol_type=self.protocol_type,
            protocols=self.protocols,
            needs_known_id=self.needs_known_id,
            can_skip_assignment=self.can_skip_assignment,
        )
        return await self.port.join(request)

    async def join(self) -> JoinAnswer:
        """Join, with the id that the coordinator asks for."""
        try:
            answer = await self.join_once()
        except MemberIdRequiredError as required:
            self.member_id = required.member_id
            answer = await self.join_once()
        self.member_id, self.generation, self.joined = answer.member_id, answer.generation, answer
        return answer

    @property
    def is_leader(self) -> bool:
        return self.joined is not None and self.joined.leader == self.member_id

    def assignments(self) -> Mapping[str, bytes]:
        """Return the assignments that the leader computes."""
        assert self.joined is not None
        return {
            member.member_id: f"{member.member_id}@{self.generation}".encode()
            for member in self.joined.members
        }

    async def sync(self, assignments: Mapping[str, bytes] | None = None) -> bytes:
        if assignments is None:
            computes = (
                self.is_leader and self.joined is not None and not self.joined.skips_assignment
            )
            assignments = self.assignments() if computes else {}
        answer = await self.port.sync(
            SyncRequest(
                group_id=self.group,
                member_id=self.member_id,
                generation=self.generation,
                instance_id=self.instance_id,
                assignments=assignments,
            )
        )
        self.assignment = answer.assignment
        return answer.assignment

    async def enter(self) -> bytes:
        """Join and sync."""
        await self.join()
        return await self.sync()

    async def beat(self) -> None:
        await self.port.heartbeat(self.group, self.member_id, self.generation, self.instance_id)

    async def leave(self) -> Sequence[LeaveOutcome]:
        leaving = LeavingMember(member_id=self.member_id, instance_id=self.instance_id)
        return await self.port.leave(self.group, [leaving])

    async def commit(
        self, partition: int, offset: int, topic: str = "t"
    ) -> Mapping[tuple[str, int], MilenaError]:
        return await self.port.commit(
            self.group,
            [OffsetToCommit(topic=topic, partition=partition, offset=offset)],
            member_id=self.member_id,
            generation=self.generation,
            instance_id=self.instance_id,
        )
