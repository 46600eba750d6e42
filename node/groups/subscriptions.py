"""Which topics members subscribe to, by the image. Pure; remembers what it has worked out for one set of topics."""

from collections.abc import Iterable

from immutables import Map

from node.groups.assignors import SharedTopic
from node.groups.topic_patterns import TopicPattern
from raft_meta.machine.image import GroupMember, Image, Topic

PATTERNS_KEPT_MAX = 1_000


class Subscriptions:
    """Names and patterns → topic ids. A topic that does not exist yet is in no answer until it does."""

    def __init__(self) -> None:
        self._topics: Map[str, Topic] = Map()
        self._topic_ids: Map[str, str] = Map()
        self._matches: dict[str, frozenset[str]] = {}
        self._patterns: dict[str, TopicPattern] = {}

    def look(self, image: Image) -> None:
        """Answer by this image from now on."""
        if image.topics is not self._topics:
            self._topics, self._topic_ids = image.topics, image.topic_ids
            self._matches.clear()

    def topic_ids(self, member: GroupMember) -> frozenset[str]:
        """What the member subscribes to."""
        named = frozenset(
            self._topic_ids[name] for name in member.topics if name in self._topic_ids
        )
        return named if member.pattern is None else named | self._matching(member.pattern)

    def topics(self, topic_ids: Iterable[str]) -> list[SharedTopic]:
        """What an assignor needs to know of them."""
        return [
            SharedTopic(
                topic_id=topic_id,
                name=self._topics[topic_id].name,
                partition_count=self._topics[topic_id].partition_count,
            )
            for topic_id in topic_ids
        ]

    def _matching(self, pattern: str) -> frozenset[str]:
        known = self._matches.get(pattern)
        if known is None:
            compiled = self._compiled(pattern)
            known = self._matches[pattern] = frozenset(
                topic_id for name, topic_id in self._topic_ids.items() if compiled.matches(name)
            )
        return known

    def _compiled(self, pattern: str) -> TopicPattern:
        known = self._patterns.get(pattern)
        if known is None:
            if len(self._patterns) >= PATTERNS_KEPT_MAX:
                self._patterns.clear()
                self._matches.clear()
            known = self._patterns[pattern] = TopicPattern(pattern)
        return known
