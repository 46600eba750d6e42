"""A metadata quorum in one process: one shared log, which every reachable node applies.

The fake keeps Raft's guarantees: one order of commands, and no committed command is lost. The test controls the rest:
which node leads, which nodes are reachable, which responses are lost, and how late a node applies commands.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from milena.model.errors import FateUnknownError, MilenaError, NoQuorumError
from node.metadata.store import MetadataMachine
from raft_meta.consensus.quorum import QuorumStatus, Role
from tests.support.time.virtual_time import LoopClock


@dataclass(eq=False)
class SharedLog:
    """The committed commands, and the state machines that apply them."""

    commands: list[bytes] = field(default_factory=list)
    members: list["FakeQuorum"] = field(default_factory=list)
    leader_id: int | None = None
    term: int = 0
    delay_ms: Callable[[], float] = lambda: 0.0
    """The delay in ms after which nodes other than the proposer apply a command."""

    def elect(self, node_id: int | None) -> None:
        """Elect another Raft leader; all reachable nodes learn of it."""
        self.term += 1
        self.leader_id = node_id
        for member in list(self.members):
            member.hear()

    def commit(self, command: bytes) -> int:
        self.commands.append(command)
        for member in list(self.members):
            asyncio.get_running_loop().call_later(self.delay_ms() / 1000, member.catch_up)
        return len(self.commands)


class FakeQuorum:
    """One node's quorum. ``is_reachable`` returns whether it now reaches a majority."""

    def __init__(
        self,
        log: SharedLog,
        node_id: int,
        machine: MetadataMachine,
        *,
        on_role_change: Callable[[QuorumStatus], None] | None = None,
        is_reachable: Callable[[], bool] = lambda: True,
    ) -> None:
        self.node_id = node_id
        self.machine = machine
        self.faults: list[str] = []
        """The outcomes of the next proposals: "ok", "refused" (never applied), "lost" (applied, without a
        response) or "vanished" (neither)."""
        self.proposed: list[bytes] = []
        self.contacts: dict[int, int] = {}
        self.is_stopped = False
        self._log = log
        self._on_role_change = on_role_change
        self._is_reachable = is_reachable
        self._applied = 0
        self._responses: dict[int, bytes] = {}
        self._known: tuple[int, int | None] = (log.term, log.leader_id)
        log.members.append(self)

    def stop_now(self) -> None:
        """Stop, as if the process had ended."""
        self.is_stopped = True
        if self in self._log.members:
            self._log.members.remove(self)

    def hear(self) -> None:
        """Learn which node leads, if this node reaches a majority."""
        known = (self._log.term, self._log.leader_id)
        if self._is_reachable() and known != self._known:
            self._known = known
            if self._on_role_change is not None:
                self._on_role_change(self.status())
        self.catch_up()

    def forget_leader(self) -> None:
        """Forget the leader, as after a timeout without a message."""
        self._known = (self._known[0], None)
        if self._on_role_change is not None:
            self._on_role_change(self.status())

    def catch_up(self) -> None:
        """Apply all committed commands."""
        if self.is_stopped or not self._is_reachable():
            return
        while self._applied < len(self._log.commands):
            command = self._log.commands[self._applied]
            self._applied += 1
            self._responses[self._applied] = self.machine.apply(self._applied, command)
        self.machine.publish()

    # Methods of the protocol ``Quorum``.

    def status(self) -> QuorumStatus:
        term, leader_id = self._known
        role = Role.LEADER if leader_id == self.node_id else Role.FOLLOWER
        return QuorumStatus(
            role=role,
            leader_id=leader_id,
            term=term,
            commit_index=len(self._log.commands),
            applied_index=self._applied,
        )

    async def propose(self, command: bytes, *, timeout_ms: int) -> bytes:
        self.proposed.append(command)
        fault = self.faults.pop(0) if self.faults else "ok"
        await asyncio.sleep(self._log.delay_ms() / 1000)
        if fault == "refused":
            raise NoQuorumError("no majority; the command was not applied")
        if fault == "vanished":
            await asyncio.sleep(timeout_ms / 1000)
            raise FateUnknownError("no answer in time")
        if not await self._reached(timeout_ms):
            raise NoQuorumError("no majority in time; the command was not applied")
        index = self._log.commit(command)
        if fault == "lost":
            await asyncio.sleep(min(timeout_ms, 50) / 1000)
            raise FateUnknownError("the answer got lost")
        self.catch_up()
        if index not in self._responses:
            await asyncio.sleep(timeout_ms / 1000)
            raise FateUnknownError("cut off before the answer")
        return self._responses.pop(index)

    async def _reached(self, timeout_ms: int) -> bool:
        """Return whether a majority is reachable, now or within the timeout."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while self.is_stopped or not self._is_reachable() or self._log.leader_id is None:
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(min(0.02, deadline - loop.time() + 1e-6))
        return True

    async def barrier(self, *, timeout_ms: int) -> int:
        await asyncio.sleep(self._log.delay_ms() / 1000)
        if not await self._reached(timeout_ms):
            raise NoQuorumError("no majority answered in time")
        self.catch_up()
        return self._applied

    async def transfer_leadership(self, *, timeout_ms: int) -> bool:
        del timeout_ms
        others = [m.node_id for m in self._log.members if m is not self and m._is_reachable()]
        if self._log.leader_id == self.node_id and others:
            self._log.elect(others[0])
        return self._log.leader_id != self.node_id

    def accept(self, connection: object) -> None:
        raise AssertionError(f"{self} has no sockets: {connection}")

    def start_obstacle(self) -> str:
        return ""

    def last_contact_ms(self, node_id: int) -> int | None:
        """Return the time that the test sets; by default now, if this node reaches a majority."""
        if node_id in self.contacts or not self._is_reachable():
            return self.contacts.get(node_id)
        return LoopClock().now_ms()

    async def stop(self) -> None:
        self.stop_now()


class RefusingQuorum(FakeQuorum):
    """A quorum that refuses every proposal with the same error."""

    error: MilenaError

    async def propose(self, command: bytes, *, timeout_ms: int) -> bytes:
        del timeout_ms
        self.proposed.append(command)
        raise self.error
