"""What a caller needs for a request, as each endpoint declares it; an endpoint that does not say cannot be made.

``http_api.access.rights`` holds callers against it, before anything but path and credentials is looked at.
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
    ``is_strict``: who may not is refused also where other refusals are only logged: what changes access outlives that.
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
"""For anybody: what says nothing about the cluster."""
KNOWN = Access()
"""For everybody whom the cluster knows."""
IN_REQUEST = Access(has_more=True)
IN_ANSWER = Access(is_filtered=True)
STRICT = Access(has_more=True, is_strict=True)


ALL_TOPICS = "-"
"""In the place of a topic, where v3 has it: all of them; what is answered is filtered then."""


def on_topic(operation: Operation, *, is_filtered: bool = False) -> Access:
    """To do this to the topic of the path; ``is_filtered``: it may be ``ALL_TOPICS``."""
    needs = NeededOperation(operation, ResourceType.TOPIC, "topic")
    return Access(needs=needs, is_filtered=is_filtered)


def on_group(operation: Operation, *, has_more: bool = False, is_filtered: bool = False) -> Access:
    """To do this to the group of the path."""
    needs = NeededOperation(operation, ResourceType.GROUP, "group")
    return Access(needs=needs, has_more=has_more, is_filtered=is_filtered)


def on_cluster(operation: Operation, *, is_strict: bool = False) -> Access:
    """To do this to the cluster."""
    return Access(needs=NeededOperation(operation, ResourceType.CLUSTER), is_strict=is_strict)
