"""The objects with which a consumer reads one subscription or assignment. They start and end together."""

from collections.abc import Callable
from dataclasses import dataclass

from milena.cluster.metadata import MetadataCache
from milena.cluster.transport import ClusterTransport
from milena.cluster.view import ClusterView
from milena.consuming.assignment import Assignment, StandaloneAssignment
from milena.consuming.feeds import Feeds
from milena.consuming.group import GroupLink, OffsetCommits
from milena.consuming.group_calls import GroupCalls
from milena.consuming.membership import GroupMembership
from milena.consuming.options import ConsumerOptions, Subscription
from milena.consuming.rebalance import Rebalancer
from milena.errors import ClientError, TargetNotFoundError
from milena.model.clock import Clock
from milena.records import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPorts:
    """The interfaces that a consumer calls."""

    calls: GroupCalls
    transport: ClusterTransport
    metadata: MetadataCache
    clock: Clock


class ActiveSubscription:
    """The partitions that a consumer reads: from its group, assigned by hand, or all partitions of some topics."""

    def __init__(
        self,
        options: ConsumerOptions,
        ports: ConsumerPorts,
        *,
        assignment: Assignment,
        link: GroupLink | None = None,
        topics: tuple[str, ...] | None = None,
        on_change: Callable[[], None],
        on_news: Callable[[], None],
    ) -> None:
        """Build the objects; ``begin`` starts them.

        ``topics`` are topics of which all partitions are read, including partitions that are added later. ``on_change``
        is called when the set of partitions changes, ``on_news`` when records have arrived.
        """
        self.assignment = assignment
        self.link = link
        self._topics = topics
        self._metadata = ports.metadata
        self._on_change = on_change
        self._stop_listening: Callable[[], None] | None = None
        self.feeds = Feeds(
            options,
            transport=ports.transport,
            metadata=ports.metadata,
            clock=ports.clock,
            on_news=on_news,
        )
        self.feeds.outlasts_topics = link is not None
        self.commits = (
            None
            if options.group is None
            else OffsetCommits(options.group, calls=ports.calls, clock=ports.clock, link=link)
        )
        self.rebalancer = Rebalancer(
            options,
            assignment=assignment,
            feeds=self.feeds,
            calls=ports.calls,
            clock=ports.clock,
            commits=self.commits,
            link=link,
            is_growing=self.is_growing,
        )

    @property
    def is_growing(self) -> bool:
        """True if all partitions of some topics are read, including those that are added later."""
        return self._topics is not None

    @classmethod
    def of_group(
        cls,
        options: ConsumerOptions,
        subscription: Subscription,
        ports: ConsumerPorts,
        *,
        new_id: Callable[[], str],
        on_change: Callable[[], None],
        on_news: Callable[[], None],
    ) -> "ActiveSubscription":
        """Return a subscription that reads as a member of the group ``options.group``."""
        assert options.group is not None, "a member has a group"
        membership = GroupMembership(options, subscription, new_id)
        link = GroupLink(
            options.group,
            membership,
            options=options,
            calls=ports.calls,
            clock=ports.clock,
            on_change=on_change,
        )
        return cls(
            options, ports, assignment=membership, link=link, on_change=on_change, on_news=on_news
        )

    async def begin(self) -> None:
        """Join the group, or find out which partitions the topics have.

        Raises:
            TargetNotFoundError: there is no such topic.
        """
        if self.link is not None:
            self.link.start()
        if self._topics is not None:
            assert isinstance(self.assignment, StandaloneAssignment), (
                "a consumer that reads all partitions shares with no other"
            )
            counts = [await self._metadata.partition_count(topic) for topic in self._topics]
            self.assignment.wanted = _all_of(dict(zip(self._topics, counts, strict=True)))
            self._stop_listening = self._metadata.listen(self._on_view)

    async def end(self, *, patience_ms: float) -> None:
        """Give up all partitions, leave the group, and stop fetching. If one step fails, the others still run."""
        if self._stop_listening is not None:
            self._stop_listening()
        try:
            await self.rebalancer.part_for_good(patience_ms=patience_ms)
        finally:
            if self.link is not None:
                await self.link.leave()
                await self.link.close()
            await self.feeds.drop([feed.where for feed in self.feeds])

    async def missing_topics(self) -> list[str]:
        """Return the subscribed topics that do not exist; empty if the consumer has partitions or is no member."""
        if not isinstance(self.assignment, GroupMembership) or self.assignment.owned:
            return []
        missing = []
        for topic in self.assignment.topics:
            try:
                await self._metadata.partition_count(topic)
            except TargetNotFoundError:
                missing.append(topic)
            except ClientError:
                # If the cluster does not respond, the heartbeats report it. This check does not.
                return []
        return missing

    def _on_view(self, view: ClusterView) -> None:
        """Add new partitions of the topics.

        Partitions of a deleted topic stay, so that reading them reports the error.
        """
        assert isinstance(self.assignment, StandaloneAssignment), self.assignment
        assert self._topics is not None, "it listens for topics"
        counts = {t.name: len(t.partitions) for t in view.topics if t.name in self._topics}
        grown = self.assignment.wanted | _all_of(counts)
        if grown != self.assignment.wanted:
            self.assignment.wanted = grown
            self._on_change()


def _all_of(counts: dict[str, int]) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(topic, partition)
        for topic, count in counts.items()
        for partition in range(count)
    )
