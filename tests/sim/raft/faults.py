"""Faults of a simulated run, at times that are drawn from the seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raft_meta.consensus.core import RaftCore
    from tests.sim.raft.world import Peer, World

_KINDS = (
    "crash",
    "crash",
    "kill",
    "break_connection",
    "break_connection",
    "cut_one_way",
    "stall",
    "isolate",
    "split",
    "transfer",
    "compact",
    "crash_all",
    "pause",
    "fill_disk",
    "fail_sync",
)

_HARD_KINDS = (
    "crash",
    "break_connection",
    "break_connection",
    "stall",
    "cut_one_way",
    "transfer",
    "compact",
    "isolate",
)


class Faults:
    """Injects faults until ``heal``."""

    def __init__(self, world: World, *, has_wipes: bool) -> None:
        rng = world.rng
        self._world = world
        self._gap_s = rng.choice((0.1, 0.2, 0.5))
        self._kinds = rng.sample(_KINDS, rng.randint(3, len(_KINDS)))
        if has_wipes:
            self._kinds += ["wipe", "wipe"]

    def harden(self) -> None:
        """Inject faults often, mostly into connections and snapshots."""
        self._gap_s = 0.12
        self._kinds = [*_HARD_KINDS, *self._kinds[:3]]

    def heal(self) -> None:
        """Undo all lasting faults."""
        for peer in self._world.peers:
            peer.paused_until = 0.0
            peer.files.capacity = None

    def strike(self) -> None:
        """Inject one fault, and plan the next one."""
        world, rng = self._world, self._world.rng
        if world.healed_at is not None:
            return
        kind, peer = rng.choice(self._kinds), rng.choice(world.peers)
        until = world.now + rng.choice((0.2, 1.0, 3.0)) * rng.random()
        world.trace("fault", kind, peer.id)
        world.checker.stats["faults"] += 1
        getattr(self, "_" + kind)(peer, until)
        world.at(self._gap_s * rng.expovariate(1), self.strike)

    def _crash(self, peer: Peer, _until: float) -> None:
        if peer.core is not None:
            peer.crash()

    def _kill(self, peer: Peer, _until: float) -> None:
        if peer.core is not None:
            peer.kill()

    def _crash_all(self, _peer: Peer, _until: float) -> None:
        if self._world.rng.random() < 0.3:
            for peer in self._world.peers:
                self._crash(peer, 0.0)

    def _break_connection(self, _peer: Peer, _until: float) -> None:
        live = self._world.network.live()
        if live:
            self._world.network.sever(self._world.rng.choice(live))

    def _cut_one_way(self, _peer: Peer, until: float) -> None:
        if len(self._world.peers) > 1:
            source, target = self._world.rng.sample(range(len(self._world.peers)), 2)
            self._world.network.cuts[source, target] = until

    def _stall(self, peer: Peer, until: float) -> None:
        for connection in self._world.network.live():
            if peer.id in connection.ends and self._world.rng.random() < 0.5:
                connection.last[peer.id] = until

    def _isolate(self, peer: Peer, until: float) -> None:
        self._divide({peer.id}, until)

    def _split(self, _peer: Peer, until: float) -> None:
        count = len(self._world.peers)
        if count > 1:
            size = self._world.rng.randint(1, count // 2)
            self._divide(set(self._world.rng.sample(range(count), size)), until)

    def _divide(self, side: set[int], until: float) -> None:
        network, rng = self._world.network, self._world.rng
        for inside in sorted(side):
            for outside in sorted(set(range(len(self._world.peers))) - side):
                network.cuts[inside, outside] = network.cuts[outside, inside] = until
        for connection in network.live():
            if len(side & set(connection.ends)) == 1 and rng.random() < 0.5:
                network.sever(connection)

    def _transfer(self, _peer: Peer, _until: float) -> None:
        for peer in self._world.peers:
            peer.run(_transfer_leadership)

    def _compact(self, peer: Peer, _until: float) -> None:
        peer.run(lambda core: core.force_compaction())

    def _pause(self, peer: Peer, until: float) -> None:
        peer.paused_until = until

    def _fill_disk(self, peer: Peer, until: float) -> None:
        peer.files.capacity = peer.files.used_bytes()
        self._world.at(until - self._world.now, self._empty_disk, peer)

    def _empty_disk(self, peer: Peer) -> None:
        peer.files.capacity = None

    def _fail_sync(self, peer: Peer, _until: float) -> None:
        peer.files.fail_next_sync("wal")

    def _wipe(self, peer: Peer, _until: float) -> None:
        """Remove the directories of at most a minority of voters at a time."""
        world = self._world
        if not peer.is_voter:
            return
        others = [other for other in world.peers if other.is_voter and other is not peer]
        missing = sum(not o.is_member or o.wiped_at > world.now - 2 for o in others)
        if missing < (len(world.voters) - 1) // 2:
            peer.wipe()


def _transfer_leadership(core: RaftCore) -> None:
    core.transfer_leadership()
