"""What a caller needs for a request, as each endpoint declares it; an endpoint that does not say cannot be made.

Nothing is asked of anybody yet: no cluster has a mode but ``off`` (``milena.model.access``).
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
    """What is looked at before the body is: whether anybody at all may call, and what the path needs.

    ``has_more``: the body or the query names resources, too, which the handler asks for before it does anything.
    ``is_filtered``: of what the answer holds, the caller sees what he may ``DESCRIBE``.
    """

    is_public: bool = False
    needs: NeededOperation | None = None
    has_more: bool = False
    is_filtered: bool = False

    def __str__(self) -> str:
        words = ["public"] if self.is_public else []
        if self.needs is not None:
            words.append(f"{self.needs.operation} {self.needs.resource_type}")
        if self.has_more:
            words.append("more in the request")
        if self.is_filtered:
            words.append("filtered")
        return ", ".join(words) or "known"


PUBLIC = Access(is_public=True)
"""For anybody: what says nothing about the cluster."""
KNOWN = Access()
"""For everybody whom the cluster knows."""
IN_REQUEST = Access(has_more=True)
IN_ANSWER = Access(is_filtered=True)


def on_topic(operation: Operation) -> Access:
    """To do this to the topic of the path."""
    return Access(needs=NeededOperation(operation, ResourceType.TOPIC, "topic"))


def on_group(operation: Operation, *, has_more: bool = False, is_filtered: bool = False) -> Access:
    """To do this to the group of the path."""
    needs = NeededOperation(operation, ResourceType.GROUP, "group")
    return Access(needs=needs, has_more=has_more, is_filtered=is_filtered)


def on_cluster(operation: Operation) -> Access:
    """To do this to the cluster."""
    return Access(needs=NeededOperation(operation, ResourceType.CLUSTER))
