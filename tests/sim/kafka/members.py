"""Members of consumer groups: by the classic protocol, and by Kafka's consumer protocol (KIP-848).

A member learns what it owns and under which generation, lets go when it is told to, and joins again when it is fenced.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from http_api.protocol.kafka_codes import KafkaCode
from tests.sim.kafka.client import (
    CONSUMER_HEARTBEAT,
    GROUP,
    HEARTBEAT,
    JOIN,
    LEAVE,
    SYNC,
    Client,
    RefusedError,
    check,
)
from tests.sim.kafka.producers import Membership

if TYPE_CHECKING:
    from tests.sim.kafka.world import KafkaWorld

SESSION_MS, REBALANCE_MS = 3_000, 5_000
JOIN_PATIENCE_S = 12.0
"""How long a member waits for a response that the coordinator may hold back."""
BEAT_S = 0.4
UNKNOWN = frozenset(
    {KafkaCode.UNKNOWN_MEMBER_ID, KafkaCode.FENCED_INSTANCE_ID, KafkaCode.FENCED_MEMBER_EPOCH}
)
"""Codes after which a member is none any more."""
STALE = frozenset(
    {
        *UNKNOWN,
        KafkaCode.ILLEGAL_GENERATION,
        KafkaCode.REBALANCE_IN_PROGRESS,
        KafkaCode.STALE_MEMBER_EPOCH,
    }
)
"""Codes after which a member has to look what it owns now."""
NEVER, AWAY, LEAVING = 0, -2, -1
"""Epochs of the consumer protocol: of a member that joins, is away, or leaves."""


class Member(ABC):
    """The part that both protocols share."""

    def __init__(
        self, world: "KafkaWorld", client: Client, group: str, instance_id: str | None
    ) -> None:
        self._world = world
        self._client = client
        self._rng = client.rng
        self.group = group
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.owned: frozenset[int] = frozenset()
        self._beat_at_s = 0.0

    @property
    def membership(self) -> Membership:
        """The member as a commit names it."""
        return Membership(self.group, self.member_id, self.generation, self.instance_id)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def _ask(self, key: int, version: int, fields: dict[str, Any], **how: Any) -> Any:
        broker_id = await self._client.coordinator(GROUP, self.group)
        found = await self._client.ask(broker_id, key, version, fields, **how)
        self._world.look()
        return found

    @abstractmethod
    async def attend(self) -> None:
        """Send what is due: join, or a heartbeat.

        Raises:
            ConnectionLostError, RetriableError, RefusedError: it did not work out.
        """

    @abstractmethod
    async def leave(self) -> None:
        """Leave the group. Errors as of ``attend``."""

    def forget(self) -> None:
        """Be another process from now on."""
        self.member_id, self.generation, self.owned = "", -1, frozenset()

    def look_again(self) -> None:
        """Find out soon what is owned now: a request was refused as one of an earlier generation."""
        self._beat_at_s = 0.0


class ClassicMember(Member):
    """A member by JoinGroup, SyncGroup and Heartbeat; the first one of a generation deals the partitions out."""

    async def attend(self) -> None:
        """Join if need be; otherwise send a heartbeat when it is due."""
        try:
            if self.generation < 0:
                await self._join()
            elif self._now_s() >= self._beat_at_s:
                await self._beat()
        except RefusedError as error:
            self._on_refused(error.code)
            raise

    def _on_refused(self, code: KafkaCode) -> None:
        if code in UNKNOWN:
            self.forget()
        self.generation, self.owned = -1, frozenset()

    def look_again(self) -> None:
        """Join again: this protocol has no other way to learn of a generation."""
        self.generation, self.owned = -1, frozenset()

    async def _beat(self) -> None:
        self._beat_at_s = self._now_s() + BEAT_S
        fields = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
        }
        found = await self._ask(HEARTBEAT, self._rng.randint(3, 4), fields)
        check(found.error_code)

    async def _join(self) -> None:
        fields = {
            "group_id": self.group,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": self._rng.choice((b"a", b"a", b"b"))}],
        }
        version = self._rng.randint(5, 9)
        joined = await self._ask(JOIN, version, fields, patience_s=JOIN_PATIENCE_S)
        if joined.error_code == KafkaCode.MEMBER_ID_REQUIRED:
            self.member_id = fields["member_id"] = joined.member_id
            joined = await self._ask(JOIN, version, fields, patience_s=JOIN_PATIENCE_S)
        check(joined.error_code)
        self.member_id = joined.member_id
        shares = self._shares(joined) if joined.leader == joined.member_id else {}
        synced = await self._ask(
            SYNC,
            self._rng.randint(3, 5),
            {
                "group_id": self.group,
                "generation_id": joined.generation_id,
                "member_id": self.member_id,
                "group_instance_id": self.instance_id,
                "protocol_type": "consumer",
                "protocol_name": "range",
                "assignments": [
                    {"member_id": member_id, "assignment": assignment}
                    for member_id, assignment in shares.items()
                ],
            },
            patience_s=JOIN_PATIENCE_S,
        )
        check(synced.error_code)
        self.generation = joined.generation_id
        self.owned = frozenset(json.loads(bytes(synced.assignment) or b"[]"))
        self._beat_at_s = self._now_s() + BEAT_S
        self._world.judge.on_assignment(
            self.group, self.generation, self.instance_id or self.member_id, self.owned
        )

    def _shares(self, joined: Any) -> dict[str, bytes]:
        """Deal the partitions out in a random order."""
        numbers = list(range(self._world.partitions))
        self._rng.shuffle(numbers)
        count = len(joined.members)
        return {
            member.member_id: json.dumps(sorted(numbers[at::count])).encode()
            for at, member in enumerate(joined.members)
        }

    async def leave(self) -> None:
        """Leave the group for good."""
        leaving = {"member_id": self.member_id, "group_instance_id": self.instance_id}
        self.owned = frozenset()
        await self._ask(LEAVE, 5, {"group_id": self.group, "members": [leaving]})
        self.forget()


class ConsumerMember(Member):
    """A member by ConsumerGroupHeartbeat. It works within its times only, as far as its own clock tells.

    A group removes a member after its session without a heartbeat, or if it does not give partitions back within its
    rebalance timeout (KIP-848). The group may begin to wait as soon as it has answered a heartbeat that took nothing
    away, and the member hears that only with a later one.
    """

    def __init__(
        self, world: "KafkaWorld", client: Client, group: str, instance_id: str | None
    ) -> None:
        super().__init__(world, client, group, instance_id)
        self._lives = 0
        self._until_s = 0.0
        self._whole_s = 0.0
        """When it sent its last heartbeat whose response took nothing away."""
        self.forget()

    def forget(self) -> None:
        """Be another process, with a member id of its own."""
        if self.member_id:
            self._world.judge.let_go(self.group, self.member_id)
        self._lives += 1
        self.member_id, self.generation = f"{self._client.name}-{self._lives}", NEVER
        self.owned = frozenset()
        self._said: frozenset[int] | None = None
        self._beat_at_s = 0.0

    async def attend(self) -> None:
        """Send a heartbeat when it is due, and let go of what it takes away."""
        if self.owned and self._now_s() >= self._until_s:
            self._keep(frozenset())
        if self._now_s() < self._beat_at_s:
            return
        try:
            await self._beat(self.generation)
        except RefusedError as error:
            if error.code in UNKNOWN:
                self.forget()
            raise
        except Exception:
            self._said = None
            raise

    def _keep(self, owned: frozenset[int]) -> None:
        self.owned = owned
        self._world.judge.let_go(self.group, self.member_id, keeps=owned)

    async def _beat(self, epoch: int) -> None:
        sent_s = self._now_s()
        self._beat_at_s = sent_s + BEAT_S
        is_new = epoch == NEVER
        owned = self.owned
        is_said = not is_new and self._said == owned
        self._said = owned
        named = [{"topic_id": self._client.ids["in"], "partitions": sorted(owned)}]
        found = await self._ask(
            CONSUMER_HEARTBEAT,
            1,
            {
                "group_id": self.group,
                "member_id": self.member_id,
                "member_epoch": epoch,
                "instance_id": self.instance_id,
                "rebalance_timeout_ms": REBALANCE_MS if is_new else -1,
                "subscribed_topic_names": ["in"] if is_new else None,
                "server_assignor": "uniform" if is_new else None,
                "topic_partitions": None if is_said else named if owned else [],
            },
        )
        check(found.error_code)
        if epoch < 0:
            return
        self.generation = found.member_epoch
        assigned = frozenset(
            number for one in found.assignment.topic_partitions for number in one.partitions
        )
        if self.owned - assigned:
            # Confirm it at once.
            self._beat_at_s = 0.0
        else:
            self._whole_s = sent_s
        self._until_s = min(sent_s + SESSION_MS / 1000, self._whole_s + REBALANCE_MS / 1000)
        if self._now_s() >= self._until_s:
            self._keep(frozenset())
            return
        self.owned = assigned
        self._world.judge.claim(
            self.group, self.member_id, assigned, now_s=self._now_s(), until_s=self._until_s
        )

    async def leave(self) -> None:
        """Leave for good; a static member sometimes says only that it is away."""
        self._keep(frozenset())
        is_away = self.instance_id is not None and self._rng.random() < 0.7
        await self._beat(AWAY if is_away else LEAVING)
        self.forget()
