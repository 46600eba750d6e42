"""The audit topic: users, quotas and topic configs change all the time, and each change is in the topic once.

Promises: every change that was applied after the topic was created is in its log once, in order, as it was applied,
with the user who requested it. This holds although the node that writes it may die, be disconnected, or get no
response.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from http_api.access import on_behalf
from http_api.ports.node import NewTopic, Ports
from milena.model.errors import MilenaError
from milena.model.quotas import QuotaKey
from node.metadata.audit_records import as_json
from raft_meta.machine.access import audit
from raft_meta.machine.image import AuditEntry, Image
from tests.sim.cluster.invariants import ViolationError
from tests.sim.cluster.parts.part import Part, TopicClients

if TYPE_CHECKING:
    from tests.sim.cluster.world import World

USERS = ("ann", "bob", "cid")


class AuditedClients(TopicClients):
    """Administrators, who write to no topic."""

    topic = audit.TOPIC
    prefix = "w"

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.acknowledged: list[int] = []
        """The amounts of quotas that were certainly set; all are different."""
        self._amounts = 0

    @property
    def partition_count(self) -> int:
        return 0

    def all(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        return [self._counted(client) for client in (self._bound, self._bound, self._rename)]

    def final_values(self) -> dict[int, dict[int, str]]:
        """Return nothing: clients write no values."""
        return {}

    async def _bound(self) -> None:
        while not self._is_over:
            await asyncio.sleep(self._rng.uniform(0.02, 0.6))
            self._amounts += 1
            amount = self._amounts
            bound = partial(_bound, user=self._rng.choice(USERS), amount=amount)
            if await self._change(bound):
                self.acknowledged.append(amount)

    async def _rename(self) -> None:
        while not self._is_over:
            await asyncio.sleep(self._rng.uniform(0.1, 1.0))
            user = self._rng.choice(USERS)
            await self._change(partial(_make, user=user))
            if self._rng.random() < 0.5:
                await self._change(partial(_delete, user=user))

    async def _change(self, make: Callable[[Ports], Awaitable[object]]) -> bool:
        """Make a change; return whether it was certainly applied."""
        node = self._some_node()
        if node is None:
            return False

        async def asked(ports: Ports) -> None:
            on_behalf.principal.set(f"User:root{node.name}")
            await make(ports)

        try:
            await node.ask(asked)
        except MilenaError:
            return False
        return True


async def _bound(ports: Ports, *, user: str, amount: int) -> None:
    await ports.access.alter_quota(user, "", {QuotaKey.REQUEST_RATE: amount})


async def _make(ports: Ports, *, user: str) -> None:
    await ports.access.put_user(user, password=None, is_superuser=None, keeps_previous=False)


async def _delete(ports: Ports, *, user: str) -> None:
    await ports.access.delete_user(user)


class AuditTopic(Part):
    """The topic, and the checks; see the module."""

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.clients: AuditedClients = AuditedClients(world)
        self._applied: dict[int, AuditEntry] = {}

    def topic(self) -> NewTopic:
        return NewTopic(
            name=audit.TOPIC,
            partition_count=1,
            replication_factor=min(3, len(self.world.node_ids)),
            configs={"min.insync.replicas": "2", "retention.ms": "-1"},
        )

    def check_image(self, image: Image) -> None:
        entry = image.audited.get(image.audit_count)
        if entry is not None and entry.index == image.index:
            self._applied[entry.number] = entry

    def is_settled(self) -> bool:
        return not self.world.checker.newest_image().audited

    def check_end(self) -> None:
        values = self.ledger(0).values
        written = [values[offset] for offset in sorted(values)]
        wanted = [as_json(self._applied[number]).decode() for number in sorted(self._applied)]
        if written != wanted:
            raise ViolationError(
                f"the audit topic has {len(written)} records, {len(set(written))} different, of {len(wanted)} changes"
            )
        for amount in self.clients.acknowledged:
            told = f'[["request_rate",{amount}]]'
            if sum(told in value for value in written) != 1:
                raise ViolationError(
                    f"a quota of {amount} was acknowledged, and is not told of once"
                )
        named = sum("User:root" in value for value in written)
        self.world.note(f"{len(written)} changes in the audit topic, {named} with a name")
