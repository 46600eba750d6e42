"""The rights that a request needs, as each endpoint declares them. An endpoint that declares nothing cannot be created.

``http_api.access.rights`` checks callers against them, before the server reads anything but path and credentials.
"""

from dataclasses import dataclass

from milena.model.access import Operation, ResourceType


@dataclass(frozen=True, slots=True)
class NeededOperation:
    """An operation on the resource that the path names; ``path_name`` is empty for the cluster."""

    operation: Operation
    resource_type: ResourceType
    path_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The check before the body is read: whether the endpoint is public, and what the path needs.

    ``has_more``: the body or the query names resources too. The handler checks the rights to them before it acts.
    ``is_filtered``: the response has only resources that the caller may ``DESCRIBE``.
    ``is_strict``: a caller without the right is refused even in the mode that only logs refusals. A change of access
    outlasts that mode.
    """

    is_public: bool = False
    needs: NeededOperation | None = None
    has_more: bool = False
    is_filtered: bool = False
    is_strict: bool = False

    def __str__(self) -> str:
        words = ["public"] if self.is_public else []
        if self.needs is not None:
            words.append(f"{self.needs.operation} {self.needs.resource_type}")
        if self.has_more:
            words.append("more in the request")
        if self.is_filtered:
            words.append("filtered")
        if self.is_strict:
            words.append("strict")
        return ", ".join(words) or "known"


PUBLIC = Access(is_public=True)
"""Any caller, even an unknown one: the response tells nothing about the cluster."""
KNOWN = Access()
"""Any caller that the cluster knows."""
IN_REQUEST = Access(has_more=True)
IN_ANSWER = Access(is_filtered=True)
STRICT = Access(has_more=True, is_strict=True)


ALL_TOPICS = "-"
"""All topics, in place of a topic's name in v3 paths. The response is filtered then."""


def on_topic(operation: Operation, *, is_filtered: bool = False) -> Access:
    """Require this operation on the topic of the path. ``is_filtered``: it may be ``ALL_TOPICS``."""
    needs = NeededOperation(operation, ResourceType.TOPIC, "topic")
    return Access(needs=needs, is_filtered=is_filtered)


def on_group(operation: Operation, *, has_more: bool = False, is_filtered: bool = False) -> Access:
    """Require this operation on the group of the path."""
    needs = NeededOperation(operation, ResourceType.GROUP, "group")
    return Access(needs=needs, has_more=has_more, is_filtered=is_filtered)


def on_cluster(operation: Operation, *, is_strict: bool = False) -> Access:
    """Require this operation on the cluster."""
    return Access(needs=NeededOperation(operation, ResourceType.CLUSTER), is_strict=is_strict)
