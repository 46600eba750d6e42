"""Rebalancing: plans of moves for a whole cluster, computed from one image. Pure.

``plan_drain`` empties one broker. ``plan_rebalance`` balances the replicas and leaders of brokers and moves as few
replicas as possible. A plan changes nothing by itself: its rows become the targets of ``ReassignPartitions``.

The goals, in this order:

1. Racks: no move puts more replicas of a partition into one rack. Replicas in one rack move apart if possible.
2. Replicas: the brokers' numbers of replicas differ by at most one, as far as racks allow. Each move takes a replica
   from a broker with too many to a broker with too few, so that no move is wasted. Of the replicas that may move, the
   plan chooses one of the topic that is spread least evenly.
3. Preferred leaders: the brokers' numbers of them differ by at most one, as far as this is possible by reordering
   replicas. Reordering moves no data.

Replicas move only between brokers that are alive and not draining. A replica on a dead broker stays, because the broker
may come back, unless that broker is being drained. A partition that is being reassigned counts as moved already.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from operator import itemgetter

from milena.model.errors import BrokerNotFoundError, InvalidReplicationError
from raft_meta.machine.image import Image, PartitionKey
from raft_meta.machine.topics import partitions

CANDIDATES_MAX = 200
"""Replicas that are compared before one is chosen to move. More would spread topics slightly more evenly. But for ten
thousand partitions, the plan would take minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMove:
    """The replicas of a partition before and after the planned move, preferred leader first.

    If the partition is being reassigned now, ``before`` is the target of that reassignment.
    """

    topic_id: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def added(self) -> tuple[int, ...]:
        """The brokers that must copy the partition."""
        return tuple(replica for replica in self.after if replica not in self.before)


def plan_drain(image: Image, broker_id: int) -> tuple[PlannedMove, ...]:
    """Plan to move every replica of the broker elsewhere, and to spread the leaders of the moved partitions evenly.

    Raises:
        BrokerNotFoundError: the broker does not exist.
        InvalidReplicationError: a partition has replicas on all brokers that could take the broker's replica.
    """
    if broker_id not in image.brokers:
        raise BrokerNotFoundError(f"Node {broker_id} is not registered.")
    layout = _Layout(image, without=broker_id)
    for key in list(layout.held[broker_id]):
        takers = [member for member in layout.members if member not in layout.replicas[key]]
        if not takers:
            raise InvalidReplicationError(
                f"Cannot drain node {broker_id}: no other live node could take partition {key[1]} of topic"
                f" '{image.topics[key[0]].name}', which is on nodes {partitions.ids(layout.replicas[key])}."
                " Add a node first, or use fewer replicas."
            )
        layout.move(key, broker_id, min(takers, key=lambda b: layout.cost(key, broker_id, b)))
    _even_out(layout.members, layout.leads, layout.leader_edge(set(layout.moved)), layout.lead)
    return layout.plan()


def plan_rebalance(image: Image) -> tuple[PlannedMove, ...]:
    """Plan the moves that balance the cluster; empty if it is balanced."""
    layout = _Layout(image)
    for key in sorted(layout.replicas):
        while (apart := layout.apart(key)) is not None:
            layout.move(key, *apart)
    _even_out(
        layout.members,
        {b: layout.held[b] for b in layout.members},
        layout.replica_edge,
        layout.move,
    )
    _even_out(layout.members, layout.leads, layout.leader_edge(None), layout.lead)
    return layout.plan()


Edge = Callable[[int, int], PartitionKey | None]
"""Takes two brokers, (from, to); returns a partition that may move between them, None if there is none."""
Carry = Callable[[PartitionKey, int, int], None]


def _even_out(
    members: Sequence[int], load: Mapping[int, Collection[PartitionKey]], edge: Edge, carry: Carry
) -> None:
    """Move partitions from brokers with more to brokers with less, over other brokers if needed, until no move helps.

    Each round finds a path of brokers and moves one partition along each step of the path. So the first broker of the
    path has one partition less, the last has one more, and the brokers between them have as many as before.
    """
    stuck: set[int] = set()
    while len(stuck) < len(members):
        source = max(
            (member for member in members if member not in stuck), key=lambda b: (len(load[b]), -b)
        )
        path = _path(members, load, edge, source)
        if path is None:
            stuck.add(source)
            continue
        # Start at the far end, so that no broker passes on the partition that it has just received.
        for giver, taker in reversed([*pairwise(path)]):
            key = edge(giver, taker)
            if key is None:
                stuck.add(source)
                break
            carry(key, giver, taker)


def _path(
    members: Sequence[int], load: Mapping[int, Collection[PartitionKey]], edge: Edge, source: int
) -> list[int] | None:
    """Return the shortest path from the source to a broker that has fewer by at least two; None if there is none.

    Of several such paths, prefer brokers with less load.
    """
    goal = len(load[source]) - 2
    if min(len(load[member]) for member in members) > goal:
        return None
    came_from: dict[int, int] = {source: source}
    waiting = deque([source])
    by_load = sorted(members, key=lambda b: (len(load[b]), b))
    while waiting:
        giver = waiting.popleft()
        for taker in by_load:
            if taker in came_from or edge(giver, taker) is None:
                continue
            came_from[taker] = giver
            if len(load[taker]) <= goal:
                return _way_back(came_from, taker)
            waiting.append(taker)
    return None


def _way_back(came_from: dict[int, int], end: int) -> list[int]:
    path = [end]
    while came_from[path[-1]] != path[-1]:
        path.append(came_from[path[-1]])
    return path[::-1]


class _Layout:
    """The replicas and leaders of all brokers while a plan is made: each planned move changes them.

    Invariants:
        ``held``, ``leads`` and the counters always agree with ``replicas``. Maps by broker have all registered brokers
        and all brokers with replicas as keys. The order of keys depends only on the image.
    """

    def __init__(self, image: Image, *, without: int | None = None) -> None:
        self.members = [
            broker_id
            for broker_id in image.live_brokers()
            if not image.brokers[broker_id].is_draining and broker_id != without
        ]
        self._rack_of = {b.broker_id: b.rack for b in image.brokers.values()}
        self._before = {
            key: state.replicas if state.moving is None else state.moving.target
            for key, state in sorted(image.partitions.items(), key=itemgetter(0))
        }
        self.replicas = dict(self._before)
        self.held: dict[int, dict[PartitionKey, None]] = {b: {} for b in image.brokers}
        self.leads: dict[int, dict[PartitionKey, None]] = {b: {} for b in image.brokers}
        self._topic_held: Counter[tuple[int, str]] = Counter()
        self._topic_leads: Counter[tuple[int, str]] = Counter()
        for key in self.replicas:
            self._count(key, 1)

    def _count(self, key: PartitionKey, sign: int) -> None:
        row = self.replicas[key]
        for replica in row:
            self._topic_held[replica, key[0]] += sign
        self._topic_leads[row[0], key[0]] += sign
        if sign > 0:
            for replica in row:
                self.held.setdefault(replica, {})[key] = None
            self.leads.setdefault(row[0], {})[key] = None
        else:
            for replica in row:
                del self.held[replica][key]
            del self.leads[row[0]][key]

    def _set(self, key: PartitionKey, row: Iterable[int]) -> None:
        self._count(key, -1)
        self.replicas[key] = tuple(row)
        self._count(key, 1)

    @property
    def moved(self) -> Iterable[PartitionKey]:
        """The partitions whose replicas differ from those of the image."""
        return (key for key, row in self.replicas.items() if row != self._before[key])

    def plan(self) -> tuple[PlannedMove, ...]:
        """Return the planned moves, in order of keys."""
        return tuple(
            PlannedMove(
                topic_id=key[0],
                partition=key[1],
                before=self._before[key],
                after=self.replicas[key],
            )
            for key in sorted(self.moved)
        )

    # -- replicas --------------------------------------------------------------------------------

    def move(self, key: PartitionKey, giver: int, taker: int) -> None:
        """Put the broker ``taker`` in the place of ``giver`` among the partition's replicas."""
        self._set(key, (taker if replica == giver else replica for replica in self.replicas[key]))

    def _crowding(self, key: PartitionKey, giver: int, taker: int) -> int:
        """Return how many other replicas share a rack with the taker, minus those that share the giver's rack."""
        others = [self._rack_of.get(b) for b in self.replicas[key] if b != giver]
        return others.count(self._rack_of.get(taker)) - others.count(self._rack_of.get(giver))

    def cost(self, key: PartitionKey, giver: int, taker: int) -> tuple[int, ...]:
        """Return the cost of the move. The smallest tuple is the best move."""
        is_leader = self.replicas[key][0] == giver
        return (
            self._crowding(key, giver, taker),
            len(self.held[taker]),
            self._topic_held[taker, key[0]],
            len(self.leads[taker]) if is_leader else 0,
            taker,
        )

    def apart(self, key: PartitionKey) -> tuple[int, int] | None:
        """Return the move (giver, taker) that spreads the partition best over racks; None if none improves it."""
        row = self.replicas[key]
        moves = [
            (self.cost(key, giver, taker), giver, taker)
            for giver in row
            if giver in self.members
            for taker in self.members
            if taker not in row and self._crowding(key, giver, taker) < 0
        ]
        if not moves:
            return None
        _, giver, taker = min(moves, key=lambda m: (m[0][0], -len(self.held[m[1]]), m))
        return giver, taker

    def replica_edge(self, giver: int, taker: int) -> PartitionKey | None:
        """Return the partition that is best to move from the giver to the taker; None if there is none."""
        if giver == taker:
            return None
        fitting = (
            key
            for key in self.held[giver]
            if taker not in self.replicas[key] and self._crowding(key, giver, taker) <= 0
        )
        has_leaders_to_give = len(self.leads[giver]) > len(self.leads[taker])
        return max(
            islice(fitting, CANDIDATES_MAX),
            key=lambda key: (
                self._topic_held[giver, key[0]] - self._topic_held[taker, key[0]],
                (self.replicas[key][0] == giver) == has_leaders_to_give,
            ),
            default=None,
        )

    # -- leaders ---------------------------------------------------------------------------------

    def lead(self, key: PartitionKey, giver: int, taker: int) -> None:
        """Swap the places of the giver, which is the preferred leader, and the taker among the replicas."""
        places = {giver: taker, taker: giver}
        self._set(key, (places.get(replica, replica) for replica in self.replicas[key]))

    def leader_edge(self, among: set[PartitionKey] | None) -> Edge:
        """Return a function that finds a partition which ``giver`` leads and ``taker`` could lead.

        ``among``: the partitions to choose from; None for all.
        """

        def edge(giver: int, taker: int) -> PartitionKey | None:
            if giver == taker:
                return None
            fitting = (
                key
                for key in self.leads[giver]
                if taker in self.replicas[key] and (among is None or key in among)
            )
            return max(
                islice(fitting, CANDIDATES_MAX),
                key=lambda key: (
                    self._topic_leads[giver, key[0]] - self._topic_leads[taker, key[0]],
                    self.replicas[key] != self._before[key],
                ),
                default=None,
            )

        return edge
