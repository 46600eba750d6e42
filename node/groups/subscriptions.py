"""Subscriptions of members: topic names, and patterns that RE2 matches in linear time. Pure.

Python's ``re`` backtracks. A short pattern of a client could keep it and the whole node busy for hours, and then each
further node that coordinates the group. RE2 follows all possibilities at once, and therefore has no backreferences and
no lookaround. Kafka 4 matches subscriptions with RE2 for the same reason (KIP-848).
"""

from collections.abc import Iterable

import re2
from immutables import Map

from milena.model.errors import InvalidConsumerError
from node.groups.assignors import SubscribedTopic
from raft_meta.machine.image import GroupMember, Image, Topic

PATTERN_LENGTH_MAX = 1_000
"""The most characters of a pattern."""
PATTERN_MEMORY_BYTES_MAX = 1 << 20
"""The most memory of one compiled pattern, with the cached states of its automaton."""
PATTERNS_KEPT_MAX = 1_000


def _options() -> re2.Options:
    options = re2.Options()
    options.max_mem = PATTERN_MEMORY_BYTES_MAX
    options.log_errors = False
    return options


_OPTIONS = _options()


class TopicPattern:
    """One compiled pattern; it matches a whole name.

    Raises:
        InvalidConsumerError: the pattern is too long or invalid; see the message.
    """

    def __init__(self, pattern: str) -> None:
        if len(pattern) > PATTERN_LENGTH_MAX:
            raise InvalidConsumerError(
                f"the topic pattern has {len(pattern)} characters; {PATTERN_LENGTH_MAX} are allowed"
            )
        try:
            self._compiled = re2.compile(pattern, _OPTIONS)
        except (re2.error, UnicodeEncodeError) as error:
            raise InvalidConsumerError(
                f"the topic pattern {pattern[:100]!r} is not understood: {_reason(error)}; "
                "backreferences and lookaround are not possible, repetitions go up to 1000"
            ) from None

    def matches(self, name: str) -> bool:
        """Return whether the whole name matches."""
        return self._compiled.fullmatch(name) is not None


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(error)


class Subscriptions:
    """Maps names and patterns to topic ids. Topics that do not exist yet are left out."""

    def __init__(self) -> None:
        self._topics: Map[str, Topic] = Map()
        self._topic_ids: Map[str, str] = Map()
        self._matches: dict[str, frozenset[str]] = {}
        self._patterns: dict[str, TopicPattern] = {}

    def look(self, image: Image) -> None:
        """Use the topics of this image from now on."""
        if image.topics is not self._topics:
            self._topics, self._topic_ids = image.topics, image.topic_ids
            self._matches.clear()

    def topic_ids(self, member: GroupMember) -> frozenset[str]:
        """Return the topics that the member subscribes to."""
        named = frozenset(
            self._topic_ids[name] for name in member.topics if name in self._topic_ids
        )
        return named if member.pattern is None else named | self._matching(member.pattern)

    def topics(self, topic_ids: Iterable[str]) -> list[SubscribedTopic]:
        """Return these topics, as an assignor sees them."""
        return [
            SubscribedTopic(
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
