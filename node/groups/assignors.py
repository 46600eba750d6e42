"""The assignors of consumer groups, with Kafka's names: they decide which member reads which partition. Pure.

- ``range``: topic by topic, each subscriber takes a run of partitions; the first subscribers may take one more. If
  topics have the same subscribers and partition counts, a member gets the same partition numbers of each.
- ``roundrobin``: the partitions of all topics go to the members in turn.
- ``sticky``: shares are as even as subscriptions allow, and members keep as many partitions as that allows. It is also
  Kafka's cooperative-sticky, because with any assignor members give back partitions before others get them.

Members are ordered by their instance ids, or by member ids without one, so that a restarted static member keeps its
place. Topics are ordered by name.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from raft_meta.machine.image import PartitionKey, PartitionSet
from raft_meta.machine.topics import partition_sets

STICKY = "sticky"
RANGE = "range"
ROUND_ROBIN = "roundrobin"
DEFAULT = STICKY


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """A member, as an assignor sees it. ``target``: its partitions by the last assignment; some may not exist now."""

    member_id: str
    order: str
    """The key by which members are ordered."""
    topic_ids: frozenset[str]
    target: PartitionSet


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribedTopic:
    """A topic with a subscriber."""

    topic_id: str
    name: str
    partition_count: int


Assignment = dict[str, PartitionSet]
"""Partitions by member id; every member is in it."""

_Assignor = Callable[[Sequence[Subscriber], Sequence[SubscribedTopic]], Assignment]


def assign(
    name: str, subscribers: Iterable[Subscriber], topics: Iterable[SubscribedTopic]
) -> Assignment:
    """Assign all partitions of the topics to their subscribers.

    Each partition goes to exactly one subscriber of its topic, if there is any.
    """
    members = sorted(subscribers, key=lambda m: (m.order, m.member_id))
    ordered = sorted(topics, key=lambda topic: topic.name)
    return ASSIGNORS[name](members, ordered)


def _range(members: Sequence[Subscriber], topics: Sequence[SubscribedTopic]) -> Assignment:
    taken: dict[str, list[PartitionKey]] = {member.member_id: [] for member in members}
    for topic in topics:
        readers = [member for member in members if topic.topic_id in member.topic_ids]
        if not readers:
            continue
        share, extra = divmod(topic.partition_count, len(readers))
        first = 0
        for place, member in enumerate(readers):
            end = first + share + (place < extra)
            taken[member.member_id] += [(topic.topic_id, number) for number in range(first, end)]
            first = end
    return _sets(taken)


def _round_robin(members: Sequence[Subscriber], topics: Sequence[SubscribedTopic]) -> Assignment:
    taken: dict[str, list[PartitionKey]] = {member.member_id: [] for member in members}
    place = 0
    for topic in topics:
        if not any(topic.topic_id in member.topic_ids for member in members):
            continue
        for number in range(topic.partition_count):
            while topic.topic_id not in members[place % len(members)].topic_ids:
                place += 1
            taken[members[place % len(members)].member_id].append((topic.topic_id, number))
            place += 1
    return _sets(taken)


def _sticky(members: Sequence[Subscriber], topics: Sequence[SubscribedTopic]) -> Assignment:
    kept = _kept(members, topics)
    free = _free(kept, members, topics)
    if len({member.topic_ids for member in members}) == 1:
        _even_out_alike(members, kept, free)
    else:
        _even_out(members, kept, free)
    return _sets(kept)


def _kept(
    members: Sequence[Subscriber], topics: Sequence[SubscribedTopic]
) -> dict[str, list[PartitionKey]]:
    """Return the partitions that members had and may still have, ascending."""
    counts = {topic.topic_id: topic.partition_count for topic in topics}
    return {
        member.member_id: [
            (topic_id, number)
            for topic_id, number in partition_sets.keys_of(member.target)
            if topic_id in member.topic_ids and number < counts.get(topic_id, 0)
        ]
        for member in members
    }


def _free(
    kept: Mapping[str, list[PartitionKey]],
    members: Sequence[Subscriber],
    topics: Sequence[SubscribedTopic],
) -> list[PartitionKey]:
    """Return the unassigned partitions; those of topics with few readers first, because they leave the least choice."""
    had = {key for keys in kept.values() for key in keys}
    readers = {
        topic.topic_id: sum(topic.topic_id in member.topic_ids for member in members)
        for topic in topics
    }
    ordered = sorted(topics, key=lambda topic: readers[topic.topic_id])
    return [
        (topic.topic_id, number)
        for topic in ordered
        if readers[topic.topic_id]
        for number in range(topic.partition_count)
        if (topic.topic_id, number) not in had
    ]


def _even_out_alike(
    members: Sequence[Subscriber],
    kept: dict[str, list[PartitionKey]],
    free: list[PartitionKey],
) -> None:
    """Even out members with equal subscriptions.

    Shares differ by at most one, and the larger shares go to the members that have most.
    """
    total = len(free) + sum(len(keys) for keys in kept.values())
    share, larger = divmod(total, len(members))
    by_size = sorted(members, key=lambda member: -len(kept[member.member_id]))
    for place, member in enumerate(by_size):
        quota = share + (place < larger)
        free += kept[member.member_id][quota:]
        del kept[member.member_id][quota:]
    free.reverse()
    # Members with the fewest partitions come last; earlier members take the lowest numbers.
    for place, member in enumerate(by_size):
        quota = share + (place < larger)
        keys = kept[member.member_id]
        while len(keys) < quota:
            keys.append(free.pop())


def _even_out(
    members: Sequence[Subscriber],
    kept: dict[str, list[PartitionKey]],
    free: Sequence[PartitionKey],
) -> None:
    """Even out members with different subscriptions.

    Afterwards no chain of moves leads from a member to another one that has at least two partitions less.
    """
    shares = _Shares(members, kept)
    for key in free:
        shares.add(shares.least(key[0]), key)
    shares.move_directly()
    while shares.move_by_chains():
        pass  # a chain may make another one possible, from a member that was checked before
    kept.update(shares.kept())


class _Shares:
    """The assignment while it is evened out.

    ``_least`` holds for each topic a heap of its readers by the size of their share. Outdated entries are skipped.
    """

    def __init__(
        self, members: Sequence[Subscriber], kept: Mapping[str, Sequence[PartitionKey]]
    ) -> None:
        self._places = {member.member_id: place for place, member in enumerate(members)}
        self._topics = {member.member_id: sorted(member.topic_ids) for member in members}
        self._sizes = {member_id: len(keys) for member_id, keys in kept.items()}
        self._kept: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in kept}
        for member_id, keys in kept.items():
            for topic_id, number in keys:
                self._kept[member_id].setdefault(topic_id, []).append(number)
        self._readers: dict[str, list[str]] = {}
        for member_id, topic_ids in self._topics.items():
            for topic_id in topic_ids:
                self._readers.setdefault(topic_id, []).append(member_id)
        self._least: dict[str, list[tuple[int, int, str]]] = {
            topic_id: [(self._sizes[m], self._places[m], m) for m in readers]
            for topic_id, readers in self._readers.items()
        }
        for waiting in self._least.values():
            heapq.heapify(waiting)

    def kept(self) -> dict[str, list[PartitionKey]]:
        """Return the partitions by member id."""
        return {
            member_id: [(t, number) for t, numbers in topics.items() for number in numbers]
            for member_id, topics in self._kept.items()
        }

    def least(self, topic_id: str) -> str:
        """Return the reader of the topic that has the fewest partitions."""
        waiting = self._least[topic_id]
        while waiting[0][0] != self._sizes[waiting[0][2]]:
            heapq.heappop(waiting)
        return waiting[0][2]

    def add(self, member_id: str, key: PartitionKey) -> None:
        """Give a partition to a member."""
        self._kept[member_id].setdefault(key[0], []).append(key[1])
        self._resize(member_id, 1)

    def _take(self, member_id: str, topic_id: str) -> PartitionKey:
        """Take a partition of the topic from a member, the one that it got last, and return it."""
        numbers = self._kept[member_id][topic_id]
        number = numbers.pop()
        if not numbers:
            del self._kept[member_id][topic_id]
        self._resize(member_id, -1)
        return topic_id, number

    def _resize(self, member_id: str, change: int) -> None:
        self._sizes[member_id] += change
        entry = (self._sizes[member_id], self._places[member_id], member_id)
        for topic_id in self._topics[member_id]:
            heapq.heappush(self._least[topic_id], entry)

    def move_directly(self) -> None:
        """Move single partitions while a member has two more than another reader of one of its topics.

        Members with the most partitions give first.
        """
        waiting = [(-size, self._places[m], m) for m, size in self._sizes.items()]
        heapq.heapify(waiting)
        while waiting:
            size, place, member_id = heapq.heappop(waiting)
            if -size != self._sizes[member_id]:
                continue
            topic_id = self._poorest_topic(member_id)
            if topic_id is None:
                continue
            taker = self.least(topic_id)
            self.add(taker, self._take(member_id, topic_id))
            heapq.heappush(waiting, (size + 1, place, member_id))
            heapq.heappush(waiting, (-self._sizes[taker], self._places[taker], taker))

    def _poorest_topic(self, member_id: str) -> str | None:
        """Return the topic from which the member should give a partition away, or None.

        It is the topic, among those of its partitions, whose smallest reader has the fewest partitions. That reader
        must have at least two less than the member.
        """
        sizes = self._sizes
        poorest = min(
            self._kept[member_id],
            key=lambda topic_id: (sizes[self.least(topic_id)], topic_id),
            default=None,
        )
        if poorest is None or sizes[self.least(poorest)] > sizes[member_id] - 2:
            return None
        return poorest

    def move_by_chains(self) -> bool:
        """Move partitions along chains; return whether any was moved.

        In a chain one member gives to a second, which gives to a third. A chain may even out shares that no direct move
        does. This ends, because each chain brings the shares of two members closer.
        """
        has_moved = False
        settled: set[str] = set()
        for member_id in sorted(self._sizes, key=lambda m: (-self._sizes[m], self._places[m])):
            while member_id not in settled:
                chain, reached = self._chain_from(member_id)
                if not chain:
                    # All members that chains reach from here have as much, or one less. None of them can give either.
                    settled |= reached
                has_moved |= bool(chain)
                for giver, topic_id, taker in chain:
                    self.add(taker, self._take(giver, topic_id))
        return has_moved

    def _chain_from(self, giver: str) -> tuple[list[tuple[str, str, str]], set[str]]:
        """Return the shortest chain of moves from this member to one with two less.

        If there is none, return an empty chain and the members that chains reach.
        """
        came: dict[str, tuple[str, str]] = {}
        seen_topics: set[str] = set()
        waiting = deque([giver])
        while waiting:
            at = waiting.popleft()
            for topic_id in sorted(self._kept[at].keys() - seen_topics):
                seen_topics.add(topic_id)
                for member_id in self._readers[topic_id]:
                    if member_id != giver and member_id not in came:
                        came[member_id] = (at, topic_id)
                        waiting.append(member_id)
                end = self.least(topic_id)
                if self._sizes[end] <= self._sizes[giver] - 2:
                    return _walked(end, giver, came), set()
        return [], {giver, *came}


def _walked(
    end: str, giver: str, came: Mapping[str, tuple[str, str]]
) -> list[tuple[str, str, str]]:
    """Return the moves of a chain, its end first, so that a member passes a partition on before it gets another."""
    chain: list[tuple[str, str, str]] = []
    while end != giver:
        before, topic_id = came[end]
        chain.append((before, topic_id, end))
        end = before
    return chain


def _sets(taken: Mapping[str, Sequence[PartitionKey]]) -> Assignment:
    return {member_id: partition_sets.of(keys) for member_id, keys in taken.items()}


ASSIGNORS: Mapping[str, _Assignor] = {
    STICKY: _sticky,
    RANGE: _range,
    ROUND_ROBIN: _round_robin,
}
