"""Tags of topics, in what a client keeps and gives back later: ``ETag`` and ids of events.

An offset says nothing of a topic that was deleted and made again under its name. So these begin with the first digits
of the topic's id: ``9f3a12bc44de.42``.
"""

import re
from typing import NamedTuple

DIGITS = 12
"""Hex digits of the id: two topics of one name have the same tag once in 10**14 times."""
PATTERN = f"[0-9a-f]{{{DIGITS}}}"
EXAMPLE = "9f3a12bc44de"
_TAGGED = re.compile(rf"(?:({PATTERN})\.)?(.*)", re.DOTALL)


class Tagged(NamedTuple):
    """What a client gave back. ``tag`` empty: it names no topic."""

    tag: str
    rest: str


def tag_of(topic_id: str) -> str:
    """The tag of a topic; empty for one without an id."""
    return topic_id[:DIGITS]


def tagged(topic_id: str, rest: str) -> str:
    """``rest`` behind the tag of its topic."""
    return f"{tag_of(topic_id)}.{rest}" if topic_id else rest


def split(text: str) -> Tagged:
    """Take a tag off."""
    found = _TAGGED.fullmatch(text)
    assert found is not None, "it fits every text"
    return Tagged(found[1] or "", found[2])
