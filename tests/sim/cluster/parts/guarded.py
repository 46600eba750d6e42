"""A cluster with access control: tokens are created and revoked while nodes are disconnected, and clients try them.

Promises: no node accepts a revoked token for longer than ``access_silence_ms_max`` after the revocation was
acknowledged, whatever the node hears and however often it starts. A node that knows a valid token never refuses it. No
node ever accepts a caller without credentials, from the first moment of its process. At the end every node agrees. Half
of the runs start without access control, which is then enabled, disabled and enabled again while tokens are used: a
valid token is never refused. In these runs, callers without credentials are refused only at the end, when no node is
disconnected.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from http_api.access.callers import CallersPort
from http_api.access.port import RequestedToken
from http_api.ports.node import NewTopic, Ports
from milena.model.access import (
    ANY_HOST,
    AccessMode,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from milena.model.errors import MilenaError, NotReadyError, UnauthenticatedError
from milena.model.secret import Secret
from raft_meta.machine.access.access import LEVEL
from raft_meta.machine.image import Acl
from tests.sim.cluster.invariants import ViolationError
from tests.sim.cluster.parts.part import Part, TopicClients

if TYPE_CHECKING:
    from tests.sim.cluster.machine import NodeProcess
    from tests.sim.cluster.world import World

TOPIC = "guarded"
USER = "robot"
HOST = "10.0.0.1"
SILENCE_MS_MAX = 2_000
SLACK_S = 0.05
"""The largest difference between two clocks, in s."""
READY_S = 30.0
TOKENS = 3
PASSWORD_FILE = Path(__file__).with_name("guarded_password.txt")
NEW = RequestedToken(note="", grants=(), lifetime_ms=None, expires_ms_max=0)


@dataclass(slots=True)
class KnownToken:
    """A token, with the times from which it certainly exists and is certainly revoked; the times are of responses."""

    token_id: str
    header: str
    made_s: float
    asked_s: float = float("inf")
    """The time of the first request to revoke the token; from then on a node may refuse it."""
    revoked_s: float = float("inf")


class GuardedClients(TopicClients):
    """A client that creates and revokes tokens, and some clients that use them."""

    topic = TOPIC
    prefix = "g"

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.tokens: list[KnownToken] = []
        self.admitted = self.refused = self.uncertain = 0
        self.is_closed = True
        """Whether every node must refuse callers without credentials; at first false in a cluster that starts open."""
        self.begins_open = False
        self.modes_set = 0

    @property
    def partition_count(self) -> int:
        return 1

    def all(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        switching = [self._switch] if self.begins_open else []
        clients = (self._administer, *[self._knock] * 3, *switching)
        return [self._counted(client) for client in clients]

    async def _administer(self) -> None:
        while not self._is_over:
            await asyncio.sleep(self._rng.uniform(0.1, 1.0))
            alive = [token for token in self.tokens if token.asked_s == float("inf")]
            if len(alive) < TOKENS:
                await self._make()
            else:
                await self._revoke(self._rng.choice(alive))

    async def _switch(self) -> None:
        """Enable, disable and enable access control."""
        while not self._is_over:
            await asyncio.sleep(self._rng.uniform(0.1, 1.5))
            await self._set_mode(self._rng.choice(list(AccessMode)))

    async def _set_mode(self, mode: AccessMode) -> bool:
        node = self._some_node()
        if node is None:
            return False
        try:
            await node.ask(lambda ports: ports.access.set_mode(mode))
        except MilenaError:
            return False
        self.modes_set += 1
        return True

    async def _make(self) -> None:
        node = self._some_node()
        if node is None:
            return
        try:
            token, secret = await node.ask(lambda ports: ports.access.create_token(USER, NEW))
        except MilenaError:
            return
        header = f"Bearer {secret.reveal()}"
        self.tokens.append(KnownToken(token.token_id, header, self._world.scheduler.now))

    async def _revoke(self, token: KnownToken) -> None:
        token.asked_s = self._world.scheduler.now
        while token.revoked_s == float("inf"):
            node = self._some_node()
            if node is not None:
                try:
                    await node.ask(lambda ports: ports.access.delete_token(USER, token.token_id))
                except MilenaError as error:
                    if error.code == "token_not_found":
                        token.revoked_s = self._world.scheduler.now
                else:
                    token.revoked_s = self._world.scheduler.now
            await self._pause()

    async def _knock(self) -> None:
        while not self._is_over:
            await self._pause()
            node = self._some_node()
            if node is not None:
                await self._knock_at(node, self._rng.choice([None, *self.tokens]))

    async def _knock_at(self, node: "NodeProcess", token: KnownToken | None) -> None:
        header = None if token is None else token.header
        world = self._world

        async def knock(callers: CallersPort) -> tuple[str, float]:
            # The decision and its time must be from one moment of the node.
            try:
                caller = callers.known(header, HOST)
            except UnauthenticatedError:
                return "refused", world.scheduler.now
            except NotReadyError:
                return "uncertain", world.scheduler.now
            assert caller is not None, "a token takes no waiting"
            may = token is None or caller.may(Operation.READ, ResourceType.TOPIC, TOPIC)
            return "admitted" if may else "refused", world.scheduler.now

        try:
            verdict, now_s = await node.ask(lambda ports: knock(ports.callers))
        except MilenaError:
            return
        setattr(self, verdict, getattr(self, verdict) + 1)
        if verdict == "admitted" and self.begins_open and not _has_heard(node):
            return
        if token is None:
            if verdict == "admitted" and self.is_closed:
                raise ViolationError(f"{node.name} lets anybody in")
            return
        bound_s = SILENCE_MS_MAX / 1000 + SLACK_S
        late_s = now_s - token.revoked_s
        if verdict == "admitted" and late_s > bound_s and self.is_closed:
            raise ViolationError(f"{node.name} admits {token.token_id}, revoked {late_s:.3f} s ago")
        is_good = now_s < token.asked_s
        if verdict == "refused" and is_good and now_s - token.made_s > bound_s:
            raise ViolationError(
                f"{node.name} refuses {token.token_id}, made {now_s - token.made_s:.3f} s ago"
            )

    async def finish(self) -> None:
        await super().finish()
        if self.begins_open:
            while not await self._set_mode(AccessMode.REQUIRED):
                await self._pause()
            await asyncio.sleep(SILENCE_MS_MAX / 1000)
            self.is_closed = True
            for machine in self._world.machines.values():
                assert machine.process is not None
                await self._knock_at(machine.process, None)
        for token in self.tokens:
            for machine in self._world.machines.values():
                assert machine.process is not None
                await self._knock_at(machine.process, token)


def _has_heard(node: "NodeProcess") -> bool:
    """Return whether the node knows the present mode; until then, it may use the last one that it knew."""
    return node.node is not None and node.node.membership.heard_ms is not None


class GuardedTopic(Part):
    """The topic, and the checks; see the module."""

    level = LEVEL

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.clients: GuardedClients = GuardedClients(world)
        # Use a separate random generator, so that all other draws stay the same.
        begins_open = Random(f"{world.seed} guarded").random() < 0.5
        self.clients.begins_open, self.clients.is_closed = begins_open, not begins_open
        for machine in world.machines.values():
            machine.config = replace(
                machine.config,
                admin_password_file=None if begins_open else PASSWORD_FILE,
                access_silence_ms_max=SILENCE_MS_MAX,
            )

    def topic(self) -> NewTopic:
        return NewTopic(
            name=TOPIC,
            partition_count=1,
            replication_factor=min(3, len(self.world.node_ids)),
            configs={"min.insync.replicas": "2", "retention.ms": "-1"},
        )

    async def prepare(self) -> None:
        world = self.world
        await world.until(
            lambda: (
                world.checker.newest_image().feature_level >= LEVEL
                and (self.clients.begins_open or bool(world.checker.newest_image().users))
            ),
            READY_S,
            "no first user",
        )
        await super().prepare()
        process = world.machines[1].process
        assert process is not None
        await process.ask(self._make_users)

    async def _make_users(self, ports: Ports) -> None:
        if self.clients.begins_open:
            password = Secret(PASSWORD_FILE.read_text().strip())
            await ports.access.put_user(
                "admin", password=password, is_superuser=True, keeps_previous=False
            )
        await ports.access.put_user(USER, password=None, is_superuser=False, keeps_previous=False)
        may_read = Acl(
            principal=f"User:{USER}",
            resource_type=ResourceType.TOPIC,
            pattern_type=PatternType.LITERAL,
            name=TOPIC,
            operation=Operation.READ,
            permission=Permission.ALLOW,
            host=ANY_HOST,
        )
        await ports.access.add_acls([may_read])

    def check_end(self) -> None:
        clients = self.clients
        self.world.note(
            f"{len(clients.tokens)} tokens: {clients.admitted} admitted, {clients.refused} refused, "
            f"{clients.uncertain} by nodes that could not tell, {clients.modes_set} modes"
        )
