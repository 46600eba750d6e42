"""Topic tags: the first digits of a topic's id, in values that a client keeps and sends back (``ETag``, event ids).

If a topic is deleted and created again under the same name, an offset in a client means another record. With the tag,
as in ``9f3a12bc44de.42``, the server notices that.
"""

import re
from typing import NamedTuple

DIGITS = 12
"""Number of hex digits in a tag. The chance that two topics of one name have the same tag is 1 in 10**14."""
PATTERN = f"[0-9a-f]{{{DIGITS}}}"
EXAMPLE = "9f3a12bc44de"
_TAGGED = re.compile(rf"(?:({PATTERN})\.)?(.*)", re.DOTALL)


class Tagged(NamedTuple):
    """A value that a client sent back, split; ``tag`` is empty if the value has none."""

    tag: str
    rest: str


def tag_of(topic_id: str) -> str:
    """Return the tag of a topic; empty if the id is empty."""
    return topic_id[:DIGITS]


def tagged(topic_id: str, rest: str) -> str:
    """Return the topic's tag, a point and ``rest``; only ``rest`` if the id is empty."""
    return f"{tag_of(topic_id)}.{rest}" if topic_id else rest


def split(text: str) -> Tagged:
    """Split a text into its tag and the rest."""
    found = _TAGGED.fullmatch(text)
    assert found is not None, "it fits every text"
    return Tagged(found[1] or "", found[2])
