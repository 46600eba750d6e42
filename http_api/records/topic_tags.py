"""Tags of topics, in values that a client keeps and sends back: ``ETag`` and ids of events.

An offset does not tell whether its topic was deleted and created again under the same name. So these values start with
the first digits of the topic's id: ``9f3a12bc44de.42``.
"""

import re
from typing import NamedTuple

DIGITS = 12
"""Hex digits of the id. Two topics of one name have an equal tag once in 10**14 times."""
PATTERN = f"[0-9a-f]{{{DIGITS}}}"
EXAMPLE = "9f3a12bc44de"
_TAGGED = re.compile(rf"(?:({PATTERN})\.)?(.*)", re.DOTALL)


class Tagged(NamedTuple):
    """A value that a client sent back. Empty ``tag``: it names no topic."""

    tag: str
    rest: str


def tag_of(topic_id: str) -> str:
    """Return the tag of a topic; empty for one without an id."""
    return topic_id[:DIGITS]


def tagged(topic_id: str, rest: str) -> str:
    """Return ``rest`` behind the tag of its topic."""
    return f"{tag_of(topic_id)}.{rest}" if topic_id else rest


def split(text: str) -> Tagged:
    """Split a text into its tag and the rest."""
    found = _TAGGED.fullmatch(text)
    assert found is not None, "it fits every text"
    return Tagged(found[1] or "", found[2])
