"""Regular expressions for names of topics, matched in linear time by RE2. Pure.

Python's ``re`` backtracks: a short pattern from outside can keep it busy for hours, and with it the whole node (every
node in turn, as each would coordinate the group). RE2 walks all possibilities at once, which rules out backreferences
and lookaround; Kafka 4 matches subscriptions with it for the same reason (KIP-848).
"""

import re2

from milena.model.errors import InvalidConsumerError

LENGTH_MAX = 1_000
"""Characters of a pattern."""
MEMORY_BYTES_MAX = 1 << 20
"""Of one compiled pattern with what it remembers of its automaton."""


def _options() -> re2.Options:
    options = re2.Options()
    options.max_mem = MEMORY_BYTES_MAX
    options.log_errors = False
    return options


_OPTIONS = _options()


class TopicPattern:
    """One compiled pattern; it matches a whole name.

    Raises:
        InvalidConsumerError: the message says what is wrong with the pattern.
    """

    def __init__(self, pattern: str) -> None:
        if len(pattern) > LENGTH_MAX:
            raise InvalidConsumerError(
                f"the topic pattern has {len(pattern)} characters; {LENGTH_MAX} are allowed"
            )
        try:
            self._compiled = re2.compile(pattern, _OPTIONS)
        except (re2.error, UnicodeEncodeError) as error:
            raise InvalidConsumerError(
                f"the topic pattern {pattern[:100]!r} is not understood: {_reason(error)}; "
                "backreferences and lookaround are not possible, repetitions go up to 1000"
            ) from None

    def matches(self, name: str) -> bool:
        """Whether the whole name matches."""
        return self._compiled.fullmatch(name) is not None


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(error)
