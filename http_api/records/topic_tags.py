"""Topic tags: the first digits of a topic's id, in values that a client keeps and sends back (``ETag``, event ids).

If a topic is deleted and created again under the same name, an offset in a client means another record. With the tag,
as in ``9f3a12bc44de.42``, the server notices that.
"""

import re
from typing import NamedTuple

from http_api.describing.schemas import Fields
from http_api.protocol.errors import InvalidFieldError

DIGITS = 12
"""Number of hex digits in a tag. The chance that two topics of one name have the same tag is 1 in 10**14."""
PATTERN = f"[0-9a-f]{{{DIGITS}}}"
EXAMPLE = "9f3a12bc44de"
_ID = re.compile(rf"[0-9a-f]{{{DIGITS},32}}")
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


def named_topic_id(fields: Fields) -> str:
    """Return the id of a topic, or its first digits, from the field ``topic_id``; empty if the field is absent.

    Raises:
        InvalidFieldError: the field has another value.
    """
    found = fields.text("topic_id")
    if found is not None and not _ID.fullmatch(found):
        raise InvalidFieldError(
            f"'topic_id' is {found[:40]!a}: give the topic's id, or its first {DIGITS} digits, as in {EXAMPLE}"
        )
    return found or ""


def split(text: str) -> Tagged:
    """Split a text into its tag and the rest."""
    found = _TAGGED.fullmatch(text)
    assert found is not None, "it fits every text"
    return Tagged(found[1] or "", found[2])
